"""Fold the journal into one row per message and stage, from which the audit derives all other facts.

A folded row has the key and values of fixed width only: texts would make Spark sort the journal in place of hashing it.
Two folds of two parts of a journal merge into the fold of the whole, so an audit can continue where the last one ended.
"""

from __future__ import annotations

from typing import get_args

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stagepost.ports.journal import WaypointName

WAYPOINTS: tuple[WaypointName, ...] = get_args(WaypointName)
SENT: tuple[WaypointName, ...] = ("accepted", "sent", "arrived")

# A message belongs to one flow. The flow is a part of the key, because a key costs less than a folded text.
KEY = ("flow_id", "stage", "message_id")
# The columns of the journal that the fold reads.
JOURNAL_COLUMNS = (
    *("waypoint", "at", "node", "stage", "message_id", "flow_id", "origin_at"),
    *("attempt", "cause_id", "kind", "ordinal", "ms", "bytes", "detail"),
)
# How each fact of two parts of a message's history becomes that of both.
FOLDED_BY = {
    "origin_at": F.min,
    "send": F.max,
    "node_key": F.max,
    "sent_at": F.min,
    "received_at": F.min,
    "committed_at": F.max,
    "duplicate_at": F.max,
    "last_at": F.max,
    "ms": F.max,
    "bytes": F.max,
    "waypoints": F.sum,
    "commits": F.sum,
    "failures": F.sum,
    "deaths": F.sum,
    "buried": F.sum,
    "replays": F.sum,
    "edits": F.sum,
    "expiries": F.sum,
    "duplicates": F.sum,
    "confirms": F.sum,
    "doubts": F.sum,
    "direct": F.max,
}


def per_message(journal: DataFrame) -> DataFrame:
    """Return one row per message and stage, with its facts from the journal.

    ``send``          a digest of the send that made it: sender, cause, kind and ordinal; null for one from outside
    ``node_key``      a digest of the node that committed it
    ``sent_at``       when it was accepted or sent, or arrived from a broker; null if the journal no longer has it
    ``received_at``   when it was first claimed
    ``committed_at``, ``ms``  its commit: the time, and how long the handler ran
    ``duplicate_at``  when it last arrived again after its commit
    ``last_at``       its last line
    ``bytes``         the size of its envelope
    ``waypoints``     the number of its lines in the journal
    ``commits``       1 if it was executed exactly once
    ``doubts``        how often it ran again because its committed run may not have sent its messages
    ``direct``        1 if it was sent over the broker without a row of the queue, which proves its loss
    ``standing``      ``committed``, ``confirmed`` (it left, and the broker has it), ``expired``, ``edited`` (another
                      message replaced it, with this one as its cause), ``dead`` (and not replayed since), ``copy``
                      (the journal has late copies alone, of a message that it forgot or never had), else ``open``
    """
    return merge_messages(message_facts(journal))


def message_facts(journal: DataFrame) -> DataFrame:
    """Return one row per line: the facts of a message that has no other line."""
    # Numbers compare faster than texts, and make shorter code for Java to compile.
    number = F.array_position(F.array(*map(F.lit, WAYPOINTS)), F.col("waypoint"))
    return journal.withColumn("waypoint", number).select(*KEY, *_facts_of_lines())


def merge_messages(parts: DataFrame) -> DataFrame:
    """Return one row per message and stage from the folded parts of its history, as ``per_message`` does."""
    return with_standing(parts.groupBy(*KEY).agg(*(how(name).alias(name) for name, how in FOLDED_BY.items())))


def with_standing(folded: DataFrame) -> DataFrame:
    """Add the ``standing`` to rows that are folded already."""
    # A message that came back from an archive died before, and the journal no longer has its first lines.
    is_forgotten = F.col("sent_at").isNull() & (F.col("replays") > 0)
    return folded.withColumn(
        "standing",
        F.when(F.col("commits") > 0, "committed")
        .when(F.col("confirms") > 0, "confirmed")
        .when(F.col("edits") > 0, "edited")
        .when(F.col("expiries") > 0, "expired")
        .when(F.col("buried") + is_forgotten.cast("int") > F.col("replays"), "dead")
        .when(F.col("duplicates") == F.col("waypoints"), "copy")
        .otherwise("open"),
    )


def node_entries() -> Column:
    """Return an aggregate of journal lines: the set of nodes that committed, with their digests."""
    return F.collect_set(F.when(F.col("waypoint") == "committed", F.struct(_node_key(), "node")))


def stage_shown() -> Column:
    """Return the stage, with one name for all replies to callers outside stages. Each process has its own address."""
    return F.regexp_replace("stage", r"\.reply\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(@.*)?$", ".reply")


def _facts_of_lines() -> list[Column]:
    was_sent = _is_any("sent") & F.col("cause_id").isNotNull()
    facts = {
        "send": F.when(was_sent, F.xxhash64("detail", "cause_id", "kind", "ordinal")),
        "node_key": F.when(_is_any("committed"), _node_key()),
        "sent_at": _at(*SENT),
        "received_at": _at("received"),
        "committed_at": _at("committed"),
        "duplicate_at": _at("duplicate"),
        "last_at": F.col("at"),
        "ms": F.when(_is_any("committed"), F.col("ms")),
        "waypoints": F.lit(1).cast("bigint"),
        "commits": _count("committed"),
        "failures": _count("failed"),
        "deaths": _count("died"),
        "buried": _count("dead"),
        "replays": _count("replayed"),
        "edits": _count("edited"),
        "expiries": _count("expired"),
        "duplicates": _count("duplicate"),
        "confirms": _count("confirmed"),
        "doubts": _count("doubted"),
        "direct": (_is_any("sent", "accepted") & (F.col("attempt") > 0)).cast("bigint"),
    }
    return [facts.get(name, F.col(name)).alias(name) for name in FOLDED_BY]


def _node_key() -> Column:
    return F.xxhash64("node").alias("node_key")


def _at(*waypoints: WaypointName) -> Column:
    return F.when(_is_any(*waypoints), F.col("at"))


def _count(waypoint: WaypointName) -> Column:
    return _is_any(waypoint).cast("bigint")


def _is_any(*waypoints: WaypointName) -> Column:
    """Return whether the line's ``waypoint``, a number, is that of one of these."""
    return F.col("waypoint").isin(*(WAYPOINTS.index(each) + 1 for each in waypoints))
