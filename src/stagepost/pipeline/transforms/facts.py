"""Facts per window of origin and stage. Every figure of the report is a sum, a maximum or a percentile of them.

A window holds the flows that *began* in it, so all hops of a flow fall into one window, however slow they are.
All facts merge: counts add up, digests are combined by exclusive or, and percentiles are KLL sketches.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stagepost.pipeline.transforms.messages import stage_shown
from stagepost.pipeline.transforms.windows import WindowGrid

STANDINGS = ("committed", "expired", "dead", "edited", "open")
# Durations, in milliseconds. ``delivery`` is the time from sending to the commit, ``duplicate`` that to a late copy.
DURATIONS = ("wait", "run", "delivery", "duplicate")
MERGED_BY = {
    **dict.fromkeys(
        ("sent", *STANDINGS, "failures", "deaths", "waypoints", "bytes", "backwards", "doubled", "doubted"), F.sum
    ),
    **dict.fromkeys((f"{name}_count" for name in DURATIONS), F.sum),
    "digest": F.bit_xor,
    "last_at": F.max,
    **dict.fromkeys((f"{name}_max" for name in DURATIONS), F.max),
    **dict.fromkeys((f"{name}_sketch" for name in DURATIONS), F.kll_merge_agg_double),
}
SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p9999": 0.9999}


def window_facts(messages: DataFrame, grid: WindowGrid) -> DataFrame:
    """Return one row per window and stage: the messages that were sent, their outcomes, and durations as sketches.

    sent = committed + expired + dead + edited + open. Late copies alone are no message. ``digest`` covers stages and
    message ids. Two journals agree on a window if ``digest`` and ``sent`` are equal. ``doubled`` counts messages with
    two commits, and edited ones that were committed too. ``doubted`` counts runs that the mode ``best_effort`` repeated
    because the first run may not have sent its messages. ``backwards`` counts messages received before they were sent,
    because clocks disagree.
    """
    durations = {
        "wait": F.when(_is("committed"), _milliseconds("sent_at", "received_at")),
        "run": F.when(_is("committed"), F.col("ms")),
        "delivery": _milliseconds("sent_at", "committed_at"),
        "duplicate": _milliseconds("sent_at", "duplicate_at"),
    }
    timed = messages.select(
        grid.begin_of(F.col("origin_at")).alias("window"),
        stage_shown().alias("stage"),
        # The message that a copy alone belongs to was counted before, and exclusive or would take it out again.
        F.when(_is("copy"), F.lit(0)).otherwise(F.xxhash64("stage", "message_id")).alias("id_digest"),
        *("standing", "failures", "deaths", "waypoints", "bytes", "last_at", "commits", "edits", "doubts"),
        *(each.alias(name) for name, each in durations.items()),
    )
    return timed.groupBy("window", "stage").agg(
        F.count_if(~_is("copy")).alias("sent"),
        *(F.count_if(_counts_as(standing)).alias(standing) for standing in STANDINGS),
        *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("failures", "deaths", "waypoints", "bytes")),
        F.count_if(F.col("wait") < 0).alias("backwards"),
        F.sum(
            (F.col("commits") - F.col("doubts") > 1).cast("bigint")
            + ((F.col("commits") > 0) & (F.col("edits") > 0)).cast("bigint")
        ).alias("doubled"),
        F.coalesce(F.sum("doubts"), F.lit(0)).alias("doubted"),
        *(F.count(name).alias(f"{name}_count") for name in DURATIONS),
        F.bit_xor("id_digest").alias("digest"),
        F.max("last_at").alias("last_at"),
        *(F.max(name).alias(f"{name}_max") for name in DURATIONS),
        *(F.kll_sketch_agg_double(name).alias(f"{name}_sketch") for name in DURATIONS),
    )


def merge_facts(facts: DataFrame, *by: Column | str) -> DataFrame:
    """Return the facts merged into one row per group of ``by``, such as a wider window, or a stage."""
    return facts.groupBy(*by).agg(*(how(name).alias(name) for name, how in MERGED_BY.items()))


def totals(facts: DataFrame) -> DataFrame:
    """Return the facts of each window (``stage`` is null) and of each stage (``window`` is null), with percentiles."""
    sets = facts.groupingSets([["window"], ["stage"]], "window", "stage")
    return with_percentiles(sets.agg(*(how(name).alias(name) for name, how in MERGED_BY.items())))


def with_percentiles(facts: DataFrame) -> DataFrame:
    """Return the facts with columns such as ``wait_p99`` in place of the sketches."""
    shares = F.array(*(F.lit(share) for share in SHARES.values()))
    columns: list[Column | str] = [name for name in facts.columns if not name.endswith("_sketch")]
    for name in DURATIONS:
        # A sketch of nothing has no percentile.
        found = F.when(F.col(f"{name}_count") > 0, F.kll_sketch_get_quantile_double(f"{name}_sketch", shares))
        columns += [found[index].alias(f"{name}_{label}") for index, label in enumerate(SHARES)]
    return facts.select(*columns)


def _is(standing: str) -> Column:
    return F.col("standing") == standing


def _counts_as(standing: str) -> Column:
    """A message that left the store counts as committed once the broker has confirmed it."""
    return F.col("standing").isin("committed", "confirmed") if standing == "committed" else _is(standing)


def _milliseconds(begin: str, end: str) -> Column:
    return (F.unix_micros(F.col(end)) - F.unix_micros(F.col(begin))) / F.lit(1000.0)
