"""Turns of a series of audits, with and without Spark, and the states that they leave."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from stagepost.cli.audit_series import AuditSeries
from stagepost.flow.clock import SECOND, to_microseconds
from stagepost.pipeline.jobs.audit import AuditTerms, audit
from stagepost.pipeline.jobs.audit_state import AuditState
from stagepost.pipeline.report.audit_report import AuditReport
from stagepost.ports.journal import Position, Waypoint
from stagepost.ports.session import Session
from stagepost.testing import ManualClock
from tests.pipeline.journal import BEGIN

NOW = to_microseconds(BEGIN) + 86_400 * SECOND

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


class Auditor:
    """Writes a journal in parts, and audits it after each."""

    def __init__(self, spark: SparkSession, session: Session, url: str, folder: Path, terms: AuditTerms) -> None:
        self._spark, self._session, self._url, self._folder, self._terms = spark, session, url, folder, terms
        self._states = 0
        self.state: AuditState | None = None

    def write(self, lines: Sequence[Waypoint]) -> None:
        self._session.begin()
        self._session.journal.record(lines)
        self._session.commit()

    def full(self, **options: Any) -> AuditReport:
        return self._audit(**options)

    def go_on(self, until: Position | None = None, at: int = NOW, **options: Any) -> AuditReport:
        self._states += 1
        folder = self._folder / str(self._states)
        report = self._audit(until, at, former=self.state, save_to=folder, **options)
        self.state = AuditState.read(folder, self._terms.window_seconds)
        return report

    def kept(self) -> list[str]:
        """The flows whose messages the state has."""
        assert self.state is not None
        rows = self.state.messages(self._spark).select("flow_id").distinct().collect()
        return sorted(row.flow_id for row in rows)

    def position(self) -> Position:
        return self._session.journal.position()

    def _audit(self, until: Position | None = None, at: int = NOW, **options: Any) -> AuditReport:
        until = until or self.position()
        return audit(self._spark, self._url, until=until, at=at, terms=self._terms, **options)
