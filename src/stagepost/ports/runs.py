"""Capability: the books of bulk runs.

A run is begun by each start of its driver. Its counts are kept for each start and task, and commit with the rows that
they count. A task that is tried again replaces its counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class RunCounts:
    """The counts of a run; ``rows_in`` is None until the run has ended."""

    rows_in: int | None
    started: int
    repeated: int
    quarantined: int

    @property
    def done(self) -> int:
        return self.started + self.repeated + self.quarantined

    @property
    def is_balanced(self) -> bool:
        return self.rows_in == self.done


@dataclass(frozen=True, slots=True)
class Run:
    """A bulk run. ``started_at`` is the moment of its first start, in microseconds."""

    id: str
    target: str
    source: str
    started_at: int
    counts: RunCounts


@dataclass(frozen=True, slots=True)
class TaskAttempt:
    """One attempt at one task of a run. ``start`` is the driver's start, counted from 1. Later attempts have a greater
    ``number``."""

    run_id: str
    start: int
    task: int
    number: int


class Quarantined(NamedTuple):
    """A row that started no flow: its file, its record counted from 1, the reason, and the row as JSON."""

    file: str
    record: int
    reason: str
    flow_id: str | None
    row: str


class Runs(Protocol):
    """The runs' part of a session. Writes happen in its open transaction."""

    def begin(self, run_id: str, target: str, source: str, now: int) -> int:
        """Add a run, or continue a known one. Return the number of this start of its driver, counted from 1."""

    def end(self, run_id: str, start: int, rows_in: int, now: int) -> None:
        """Note how many rows a start read. From now on the counts of the run are those of this start.

        The end of a start changes nothing after a later one has ended.
        """

    def count(self, attempt: TaskAttempt, counts: RunCounts) -> None:
        """Replace the counts of the attempt's task, unless a later attempt has written them."""

    def quarantine(self, run_id: str, rows: Sequence[Quarantined]) -> None:
        """Add rows that started no flow. A row that the run has quarantined before stays as it is."""

    def counts(self, run_id: str) -> RunCounts:
        """Return the counts of the latest start that ended, else of the latest one; all are 0 for an unknown run."""

    def quarantined(self, run_id: str, limit: int, after: tuple[str, int] = ("", 0)) -> list[Quarantined]:
        """Return the first quarantined rows behind a file and record, in their order."""

    def with_quarantine(self, limit: int) -> list[Run]:
        """Return the newest runs that quarantined rows, the newest first."""
