"""Turns of a series of audits without Spark, and the states that they leave."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from stagepost.cli.audit_series import AuditSeries
from stagepost.pipeline.jobs.audit_state import AuditState
from stagepost.ports.journal import Position
from stagepost.ports.session import Session
from stagepost.testing import ManualClock

REST = '"messages":3,"nodes":{},"work":{},"final":{}}'


def a_turn(folder: Path, session: Session) -> AuditSeries:
    """A turn whose state is on the disk."""
    made = AuditSeries.begin(folder, session, ManualClock())
    made.folder.mkdir()
    return made


def parts_of_a_state(folder: Path, messages: int) -> Path:
    for name in ("messages", "facts", "flows"):
        (folder / name).mkdir()
        pq.write_table(pa.table({"row": list(range(messages))}), folder / name / "part-0.parquet")
    return folder


def end_a_turn(folder: Path, session: Session, end: int) -> AuditSeries:
    """An audit that ends, and leaves a state that the next one can read."""
    made = a_turn(folder, session)
    (parts_of_a_state(made.folder, 3) / "state.json").write_text(
        f'{{"format":1,"until":"{end}","window_seconds":60,{REST}'
    )
    made.end(session, [], Position(end), end)
    return made


class OvertakenReader:
    """Reads states as the audit does. Before each of so many readings, another audit of the series ends."""

    def __init__(self, folder: Path, others: Iterator[Session]) -> None:
        self._folder, self._others, self._ends = folder, others, count(2)
        self.last: AuditSeries | None = None

    def read(self, folder: Path, window_seconds: int = 60) -> AuditState:
        for other in islice(self._others, 1):
            self.last = end_a_turn(self._folder, other, next(self._ends))
        return AuditState.read(folder, window_seconds)
