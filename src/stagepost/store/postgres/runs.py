"""The books of bulk runs."""

from __future__ import annotations

from collections.abc import Sequence

from stagepost.flow.runs import Quarantined, RunCounts
from stagepost.store.postgres.statements import SQL
from stagepost.store.postgres.texts import writable
from stagepost.store.postgres.wire import Wire, insert, only


class PostgresRuns:
    """Implements ``app.stores.Runs``. Writes are part of whatever transaction is open."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def begin(self, run_id: str, target: str, source: str, now: int) -> None:
        self._wire.later(SQL["begin_run"], (run_id, target, source, now))

    def end(self, run_id: str, rows_in: int, now: int) -> None:
        self._wire.later(SQL["end_run"], (rows_in, now, run_id))

    def has_chunk(self, run_id: str, task: int, chunk: int) -> bool:
        return self._wire.run(SQL["find_chunk"], (run_id, task, chunk)).fetchone() is not None

    def add_chunk(self, run_id: str, task: int, chunk: int, counts: RunCounts) -> None:
        row = (run_id, task, chunk, counts.started, counts.repeated, counts.quarantined)
        self._wire.later(SQL["add_chunk"], row)

    def quarantine(self, run_id: str, rows: Sequence[Quarantined]) -> None:
        written = [
            (run_id, file, record, writable(reason), flow_id, writable(row))
            for file, record, reason, flow_id, row in rows
        ]
        insert(self._wire, SQL["quarantine_row"], written)

    def counts(self, run_id: str) -> RunCounts:
        (rows_in,) = self._wire.run(SQL["find_run"], (run_id,)).fetchone() or (None,)
        started, repeated, quarantined = only(self._wire.run(SQL["count_run"], (run_id,)))
        return RunCounts(rows_in, started, repeated, quarantined)

    def quarantined(self, run_id: str, limit: int) -> list[Quarantined]:
        return [Quarantined(*row) for row in self._wire.run(SQL["list_quarantine"], (run_id, limit)).fetchall()]
