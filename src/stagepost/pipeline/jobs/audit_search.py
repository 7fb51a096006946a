"""The search of an audit: in all tables that hold messages, then in the journal lines that were written meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from stagepost.flow.clock import to_datetime, to_microseconds
from stagepost.pipeline.stores import read_table
from stagepost.pipeline.transforms.losses import (
    PLACE_KEY,
    has_left_by_age,
    is_in_doubt,
    is_stuck,
    is_unaccounted,
    latest_first,
    located,
    lost,
    lost_facts,
    stuck,
)
from stagepost.pipeline.transforms.state import message_digest
from stagepost.pipeline.transforms.windows import WindowGrid
from stagepost.ports.registry import driver_of

# The report counts all findings, and lists at most this number of each.
LISTED_MAX = 100
# So many messages whose letters have left are found at most. The next audit finds the others.
REMOVED_MAX = 100_000
PLACE_COLUMNS = (*PLACE_KEY, "place", "due_at")

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchScope:
    """The scope of a search.

    ``until``    the position up to which the journal was read
    ``forgets``  whether the dead messages are wanted whose letters have left the store
    """

    spark: SparkSession
    url: str
    until: int
    now: datetime
    stuck_seconds: int
    grid: WindowGrid
    forgets: bool
    step: Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Search:
    """The messages that were looked for: those that are lost or in doubt, and those that wait or run for too long.

    ``removed``  digests of dead messages whose letters have left the store for their age
    """

    lost_count: int = 0
    lost: Rows = field(default_factory=list)
    in_doubt_count: int = 0
    in_doubt: Rows = field(default_factory=list)
    lost_by_window: dict[int, dict[str, Any]] = field(default_factory=dict)
    stuck_count: int = 0
    stuck: Rows = field(default_factory=list)
    removed: Sequence[int] = ()


NOTHING_FOUND = Search()


def search_once(scope: SearchScope, messages: DataFrame) -> Search:
    """Look for the messages that have not ended, and for the dead. Raises the errors of Spark."""
    with scope.step("looking for messages in the queue and the dead letters"):
        # The checkpoint reads the tables here, before the journal's head: only then is the second look sound. The
        # tables change, so a checkpoint that is lost with an executor ends this search.
        places = read_table(scope.spark, scope.url, "places", PLACE_COLUMNS)
        whereabouts = located(messages, places).localCheckpoint()
        mark = driver_of(scope.url).export(scope.url).letters_removed()
        letters_removed = None if mark is None else to_datetime(mark)
        is_missing, has_left = is_unaccounted(letters_removed), has_left_by_age(letters_removed)
        is_late = is_stuck(now=scope.now, after_seconds=scope.stuck_seconds)
        counts = (F.count_if(each) for each in (is_missing, is_late, has_left))
        ((missing_count, stuck_count, left_count),) = whereabouts.agg(*counts).collect()
        stuck_rows: Rows = []
        if stuck_count:
            late = stuck(whereabouts, now=scope.now, after_seconds=scope.stuck_seconds)
            stuck_rows = rows_of(late.limit(LISTED_MAX))
    removed: list[int] = []
    if left_count and scope.forgets:
        with scope.step("looking for messages whose letters have left the store"):
            # A letter that was replayed or edited meanwhile has left a line.
            left = lost(whereabouts.where(has_left), _head(scope)).select(message_digest())
            removed = [row["message"] for row in left.limit(REMOVED_MAX).collect()]
    if not missing_count:
        return Search(stuck_count=stuck_count, stuck=stuck_rows, removed=removed)
    with scope.step("looking for missing messages in the newest waypoints"):
        gone = lost(whereabouts.where(is_missing), _head(scope)).localCheckpoint()
        found = by_window(lost_facts(gone, scope.grid))
        lost_count, doubt_count = (sum(row[name] for row in found.values()) for name in ("lost", "in_doubt"))
        lost_rows = _listed(gone.where(~is_in_doubt())) if lost_count else []
        doubt_rows = _listed(gone.where(is_in_doubt())) if doubt_count else []
    return Search(lost_count, lost_rows, doubt_count, doubt_rows, found, stuck_count, stuck_rows, removed)


def _head(scope: SearchScope) -> DataFrame:
    return read_table(scope.spark, scope.url, "journal", PLACE_KEY, **{"from": scope.until})


def _listed(gone: DataFrame) -> Rows:
    return rows_of(latest_first(gone.select(*PLACE_KEY, "flow_id", "sent_at"), "sent_at").limit(LISTED_MAX))


def by_window(facts: DataFrame) -> dict[int, dict[str, Any]]:
    """Collect facts of windows, by the begin of each window in microseconds. Facts without a window are left out."""
    rows = [row.asDict() for row in facts.collect()]
    return {moment_of(row["window"]): row for row in rows if row["window"] is not None}


def rows_of(frame: DataFrame) -> Rows:
    """Collect the rows of a frame, with moments as texts."""
    return [{name: _plain(value) for name, value in row.asDict().items()} for row in frame.collect()]


def _plain(value: Any) -> Any:
    # Spark returns timestamps without a zone, in the time zone of this process.
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value


def moment_of(value: datetime) -> int:
    return to_microseconds(value.astimezone(UTC))
