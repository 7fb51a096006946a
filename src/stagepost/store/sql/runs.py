"""The books of bulk runs."""

from __future__ import annotations

from collections.abc import Sequence

from stagepost.ports.runs import Quarantined, Run, RunCounts, TaskAttempt
from stagepost.store.sql.database import SqlPart, only
from stagepost.store.sql.texts import writable


class SqlRuns(SqlPart):
    """Implements ``ports.runs.Runs``. Writes are part of the open transaction."""

    def begin(self, run_id: str, target: str, source: str, now: int) -> int:
        # Read out: SQLite commits nothing while rows of a RETURNING are left.
        ((start,),) = self._run("begin_run", (run_id, target, source, now)).fetchall()
        return int(start)

    def end(self, run_id: str, start: int, rows_in: int, now: int) -> None:
        self._database.later("end_run", {"rows_in": rows_in, "now": now, "start": start, "id": run_id})
        self._database.later("remove_starts", {"run_id": run_id, "start": start})

    def count(self, attempt: TaskAttempt, counts: RunCounts) -> None:
        key = (attempt.run_id, attempt.start, attempt.task, attempt.number)
        self._database.later("count_task", (*key, counts.started, counts.repeated, counts.quarantined))

    def quarantine(self, run_id: str, rows: Sequence[Quarantined]) -> None:
        written = [
            (run_id, file, record, writable(reason), flow_id, writable(row))
            for file, record, reason, flow_id, row in rows
        ]
        self._database.insert("quarantine_row", written)

    def counts(self, run_id: str) -> RunCounts:
        (rows_in,) = self._run("find_run", (run_id,)).fetchone() or (None,)
        return RunCounts(rows_in, *only(self._run("count_run", (run_id,))))

    def quarantined(self, run_id: str, limit: int, after: tuple[str, int] = ("", 0)) -> list[Quarantined]:
        file, record = after
        wanted = {"run_id": run_id, "file": file, "record": record, "limit": limit}
        return [Quarantined(*row) for row in self._run("list_quarantine", wanted).fetchall()]

    def with_quarantine(self, limit: int) -> list[Run]:
        rows = self._run("list_quarantine_runs", (limit,)).fetchall()
        return [
            Run(run_id, target, source, started_at, self.counts(run_id)) for run_id, target, source, started_at in rows
        ]
