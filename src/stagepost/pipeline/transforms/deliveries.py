"""Compare the journals of services that send to each other over a broker.

A message leaves a service as an outbound row, whose stage names its address. The journal of its sender has it as sent,
and as confirmed once the broker has it. The journal of its receiver has it as arrived. It keeps its id on the way.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stagepost.flow.target import OUTBOUND_PREFIX, REPLIES_PREFIX

# The columns of the journal that are compared.
LINE_COLUMNS = ("waypoint", "at", "stage", "message_id", "flow_id", "origin_at", "kind")
# In Java's regular expressions. The last group is the store that a private reply address names.
REPLY_STORE = r"^[^@]+\.reply\.[0-9a-f-]{36}@([0-9a-f-]{36})$"
COUNTED = ("sent", "confirmed", "arrived")
VERDICTS = ("ok", "lost", "unexpected", "duplicated", "recovered", "in_flight", "dead", "unprovable")
# A window of an address.
WINDOW_KEY = ["address", "window"]


@dataclass(frozen=True, slots=True)
class DeliveryTerms:
    """The moments and time limits of a comparison.

    ``seen_until``       what happened before it is in all journals that were read
    ``proved_from``      a journal may lack earlier lines, which were purged; None for whole journals
    ``late_seconds``     a message is overtaken by one that left so much later
    ``overdue_seconds``  a message is lost if it left so long ago
    """

    seen_until: datetime
    proved_from: datetime | None
    late_seconds: int
    overdue_seconds: int


def delivery_lines(journal: DataFrame) -> DataFrame:
    """Return the lines about messages between services.

    ``address``  the message's address at the broker. All private reply addresses of one store have the same
    ``event``    ``sent``, ``confirmed``, ``dead`` or ``replayed`` at the sender, ``arrived`` at the receiver

    Arrived publications are left out: a copy has an id of its own.
    """
    leaves = F.col("stage").startswith(OUTBOUND_PREFIX)
    name = F.col("waypoint")
    event = (
        F.when(leaves & name.isin("accepted", "sent"), "sent")
        .when(leaves & name.isin("confirmed", "dead", "replayed"), name)
        .when(~leaves & (name == "arrived") & ~F.col("kind").eqNullSafe("publish"), name)
    )
    store = F.regexp_extract("stage", REPLY_STORE, 1)
    address = (
        F.when(leaves, F.substring("stage", len(OUTBOUND_PREFIX) + 1, 1_000))
        .when(store != "", F.concat(F.lit(REPLIES_PREFIX), store))
        .otherwise(F.col("stage"))
    )
    lines = journal.select(address.alias("address"), event.alias("event"), "message_id", "flow_id", "origin_at", "at")
    return lines.where(F.col("event").isNotNull())


def window_digests(lines: DataFrame, width_seconds: int) -> DataFrame:
    """Return one row per address and window of origin, with the count and the digest of the ids of each event.

    ``is_equal``         as many messages were sent, confirmed and arrived, and they have the same ids
    ``confirmed_until``  when the last one was confirmed
    """
    facts: list[Column] = []
    for event in COUNTED:
        is_it = F.col("event") == event
        # A sum does not depend on the order, and unlike XOR it does not cancel an id that occurs twice.
        digest = F.sum(F.when(is_it, F.xxhash64("message_id").cast("decimal(20,0)")))
        facts += [F.count_if(is_it).alias(event), digest.alias(f"{event}_digest")]
    last = F.max(F.when(F.col("event") == "confirmed", F.col("at"))).alias("confirmed_until")
    folded = in_windows(lines, width_seconds).groupBy(*WINDOW_KEY).agg(*facts, last)
    is_equal = F.lit(True)
    for event in COUNTED[1:]:
        is_equal &= F.col(event) == F.col("sent")
        is_equal &= F.col(f"{event}_digest").eqNullSafe(F.col("sent_digest"))
    return folded.withColumn("is_equal", is_equal)


def in_windows(lines: DataFrame, width_seconds: int) -> DataFrame:
    """Add the begin of each line's window of origin, in seconds since 1970."""
    begin = F.unix_seconds("origin_at")
    return lines.withColumn("window", begin - F.pmod(begin, F.lit(width_seconds)))


def per_message(lines: DataFrame) -> DataFrame:
    """Return one row per message and address, with its moments and counts."""
    first = {name: F.min(F.when(F.col("event") == name, F.col("at"))) for name in COUNTED}
    counts = {name: F.count_if(F.col("event") == name) for name in ("arrived", "dead", "replayed")}
    return lines.groupBy("address", "message_id").agg(
        F.min("flow_id").alias("flow_id"),
        F.min("origin_at").alias("origin_at"),
        *(column.alias(f"{name}_at") for name, column in first.items()),
        *(column.alias(f"{name}_count") for name, column in counts.items()),
    )


def overtaken_until(windows: DataFrame, messages: DataFrame) -> DataFrame:
    """Return for each address when the last message left that has arrived."""
    arrived = messages.where(F.col("arrived_count") > 0).select("address", F.col("confirmed_at").alias("at"))
    whole = windows.where("is_equal").select("address", F.col("confirmed_until").alias("at"))
    return whole.unionByName(arrived).groupBy("address").agg(F.max("at").alias("overtaken_until"))


def verdicts(messages: DataFrame, overtaken: DataFrame, terms: DeliveryTerms) -> DataFrame:
    """Return the messages, each with a ``verdict`` of ``VERDICTS``.

    ``ok``          it left, and arrived once
    ``lost``        the broker had it, and it did not arrive: a message that left later did, or it left long ago
    ``unexpected``  it arrived, and no journal has sent it
    ``duplicated``  it arrived more than once
    ``recovered``   it arrived, and the broker did not confirm it
    ``in_flight``   it has not left, or may still arrive
    ``dead``        it is a dead letter of its sender
    ``unprovable``  a journal may have had the missing line, and purged it
    """
    late = F.expr(f"INTERVAL {terms.late_seconds} SECONDS")
    overdue = F.expr(f"INTERVAL {terms.overdue_seconds} SECONDS")
    seen_until = F.lit(terms.seen_until)
    # LEAST ignores nulls. Without a message that arrived, none is overtaken.
    is_overtaken = F.col("overtaken_until").isNotNull() & (
        F.col("confirmed_at") + late < F.least(F.col("overtaken_until"), seen_until)
    )
    is_overdue = F.col("confirmed_at") + overdue < seen_until
    is_old = F.lit(False) if terms.proved_from is None else F.col("origin_at") < F.lit(terms.proved_from)
    missing = (
        F.when((F.col("dead_count") > F.col("replayed_count")) & F.col("confirmed_at").isNull(), "dead")
        .when(F.col("confirmed_at").isNull(), "in_flight")
        .when(~(is_overtaken | is_overdue), "in_flight")
        .when(is_old, "unprovable")
        .otherwise("lost")
    )
    unsent = F.when(is_old, "unprovable").when(F.col("arrived_at") >= seen_until, "in_flight").otherwise("unexpected")
    verdict = (
        F.when(F.col("arrived_count") == 0, missing)
        .when(F.col("arrived_count") > 1, "duplicated")
        .when(F.col("sent_at").isNull() & F.col("confirmed_at").isNull(), unsent)
        .when(F.col("confirmed_at").isNull(), "recovered")
        .otherwise("ok")
    )
    return messages.join(overtaken, "address", "left").withColumn("verdict", verdict)
