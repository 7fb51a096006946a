"""The part of an audit's rows that the next audit still needs, and the part that is settled.

A flow is settled when all its messages have ended, and its last line is older than the retention of ids. A dead message
has ended when its letter has left the store because of its age. The figures of a settled flow are kept as sums, and its
rows are forgotten. So a double that comes later is found by a full audit only.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stagepost.pipeline.transforms.facts import MERGED_BY, merge_facts
from stagepost.pipeline.transforms.messages import FOLDED_BY, KEY
from stagepost.pipeline.transforms.windows import WindowGrid

# The stored columns, as Spark writes and reads them.
_MOMENTS = {"origin_at", "sent_at", "received_at", "committed_at", "duplicate_at", "last_at"}
MESSAGES = ", ".join(
    (
        *(f"{name} string" for name in KEY),
        *(
            f"{name} {'timestamp' if name in _MOMENTS else 'double' if name == 'ms' else 'bigint'}"
            for name in FOLDED_BY
        ),
    )
)
_TYPES = {"_sketch": "binary", "_max": "double", "last_at": "timestamp"}
FACTS = ", ".join(
    (
        *("window timestamp", "stage string"),
        *(f"{name} {next((_TYPES[end] for end in _TYPES if name.endswith(end)), 'bigint')}" for name in MERGED_BY),
    )
)
# A state of an earlier version may lack some of these columns. Then Spark reads nulls, which mean zero.
MESSAGE_COUNTS = [*(name for name, how in FOLDED_BY.items() if how is F.sum), "direct"]
FACT_COUNTS = [name for name, how in MERGED_BY.items() if how is F.sum]
FLOW_COUNTS = ("flows", "completed", "dead_flows", "under_way", "twins")
FLOWS = ", ".join(("window timestamp", *(f"{name} bigint" for name in FLOW_COUNTS)))


def settled_flows(
    messages: DataFrame, doubles: DataFrame | None, removed: DataFrame | None, *, before: datetime
) -> DataFrame:
    """Return digests of the flows that ended and were quiet since ``before``, except for those of ``doubles``.

    A dead message has ended if ``removed`` has its ``message_digest``: its letter has left the store.
    """
    is_unended = F.col("standing").isin("open", "dead")
    if removed is not None:
        gone = F.broadcast(removed.select("message", F.lit(True).alias("is_removed")))
        messages = messages.withColumn("message", message_digest()).join(gone, "message", "left")
        is_unended &= (F.col("standing") == "open") | F.col("is_removed").isNull()
    flows = messages.groupBy(_flow()).agg(
        F.max(is_unended.cast("int")).alias("unended"), F.max("last_at").alias("last_at")
    )
    quiet = flows.where((F.col("unended") == 0) & (F.col("last_at") < F.lit(before))).select("flow")
    if doubles is None:
        return quiet
    return quiet.join(doubles.select(_flow()).distinct(), "flow", "left_anti")


def settling(messages: DataFrame, settled: DataFrame) -> DataFrame:
    """Return the messages of the settled flows."""
    return messages.withColumn("flow", _flow()).join(settled, "flow", "left_semi").drop("flow")


def needed(messages: DataFrame, settled: DataFrame) -> DataFrame:
    """Return the messages of all other flows, as ``merge_messages`` takes them."""
    others = messages.withColumn("flow", _flow()).join(settled, "flow", "left_anti")
    return others.select(*KEY, *FOLDED_BY)


def add_facts(facts: DataFrame, others: DataFrame, grid: WindowGrid) -> DataFrame:
    """Return the facts of both, one row per window and stage. Windows of ``others`` may be narrower than the grid's."""
    moved = others.withColumn("window", grid.begin_of(F.col("window")))
    return merge_facts(facts.unionByName(moved), "window", "stage")


def add_flows(flows: DataFrame, others: DataFrame, grid: WindowGrid) -> DataFrame:
    """Return the counts of flows of both, one row per window."""
    moved = others.withColumn("window", grid.begin_of(F.col("window")))
    return flows.unionByName(moved).groupBy("window").agg(*(F.sum(name).alias(name) for name in FLOW_COUNTS))


def message_digest() -> Column:
    """Return a digest of 64 bits of a message at its stage."""
    return F.xxhash64(*KEY).alias("message")


def _flow() -> Column:
    return F.xxhash64("flow_id").alias("flow")
