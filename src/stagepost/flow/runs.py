"""A bulk run and its books. What it counts commits with what it counts, so a chunk that is tried again counts once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class RunCounts:
    """``rows_in`` is None until the run has ended."""

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
    """A row that was not let in: which record of which file, counted from 1, why, and the row as JSON."""

    file: str
    record: int
    reason: str
    flow_id: str | None
    row: str
