"""The times at which flows of dead letters began, and the ends of other messages of that time.

All moments are in microseconds.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stagepost.flow.clock import SECOND

MINUTE = 60 * SECOND
HOUR = 3_600 * SECOND

LETTER_COLUMNS = ("stage", "fingerprint", "origin_at")


def minutes_of_letters(letters: DataFrame) -> DataFrame:
    """Return one row per group of dead letters and minute of origin, with the number of its letters."""
    begin = _floor(F.unix_micros("origin_at"), MINUTE)
    return letters.groupBy("stage", "fingerprint", begin.alias("minute")).agg(F.count("*").alias("letters"))


def hours_of_deaths(messages: DataFrame) -> DataFrame:
    """Return one row per stage and hour of origin in which messages died.

    ``minutes``  a list of its minutes, in any order, each with the messages that ended ``well``, and those that died
    ``dead``     the number of its messages that are still dead

    A message that was replayed or edited after its death counts as died. Otherwise an outage would look like poison
    as soon as most of its letters are replayed.
    """
    died = (F.col("buried") > 0) | (F.col("replays") > 0)
    ended = F.col("standing").isin("committed", "confirmed")
    begin = _floor(F.unix_micros("origin_at"), MINUTE)
    minutes = messages.groupBy("stage", begin.alias("minute")).agg(
        F.count_if(ended & ~died).alias("well"),
        F.count_if(died).alias("died"),
        F.count_if(F.col("standing") == "dead").alias("dead"),
    )
    hours = minutes.groupBy("stage", _floor(F.col("minute"), HOUR).alias("hour")).agg(
        F.collect_list(F.struct("minute", "well", "died")).alias("minutes"),
        F.sum("died").alias("died"),
        F.sum("dead").alias("dead"),
    )
    return hours.where(F.col("died") > 0)


def _floor(moment: Column, width: int) -> Column:
    return moment - F.pmod(moment, F.lit(width))
