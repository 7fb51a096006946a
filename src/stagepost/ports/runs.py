"""Capability: the books of bulk runs. Counts commit with the rows they count, so a repeated chunk counts once."""

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


class Quarantined(NamedTuple):
    """A row that started no flow: its file, its record counted from 1, the reason, and the row as JSON."""

    file: str
    record: int
    reason: str
    flow_id: str | None
    row: str


class Runs(Protocol):
    """The runs' part of a session. Writes happen in its open transaction."""

    def begin(self, run_id: str, target: str, source: str, now: int) -> None:
        """Add a run."""

    def end(self, run_id: str, rows_in: int, now: int) -> None:
        """Note how many rows the run read."""

    def has_chunk(self, run_id: str, task: int, chunk: int) -> bool:
        """Say whether a chunk was counted."""

    def add_chunk(self, run_id: str, task: int, chunk: int, counts: RunCounts) -> None:
        """Count a chunk."""

    def quarantine(self, run_id: str, rows: Sequence[Quarantined]) -> None:
        """Add rows that started no flow."""

    def counts(self, run_id: str) -> RunCounts:
        """Return the counts of a run; all are 0 for an unknown run."""

    def quarantined(self, run_id: str, limit: int) -> list[Quarantined]:
        """Return the first quarantined rows, by file and record."""
