"""The findings and states of audits."""

from __future__ import annotations

from collections.abc import Sequence

from stagepost.ports.audits import AuditFinding, KeptFinding, NamedState
from stagepost.store.sql.database import SqlPart


class SqlAudits(SqlPart):
    """Implements ``ports.audits.Audits``. Writes are part of the open transaction."""

    def note(self, findings: Sequence[AuditFinding], now: int) -> None:
        for each in findings:
            row = (each.kind, each.stage, each.message_id, each.flow_id, each.detail, now, now)
            self._database.later("note_finding", row)

    def findings(self, limit: int) -> list[KeptFinding]:
        rows = self._run("list_findings", (limit,)).fetchall()
        return [KeptFinding(AuditFinding(*row[:-2]), *row[-2:]) for row in rows]

    def state(self, series: str) -> NamedState | None:
        row = self._run("find_audit_state", (series,)).fetchone()
        return None if row is None else NamedState(*row)

    def name_state(self, series: str, former: NamedState | None, state: NamedState, now: int) -> bool:
        if former is None:
            return self._run("put_audit_state", (series, *state, now)).fetchone() is not None
        return self._run("move_audit_state", (*state, now, series, *former)).fetchone() is not None
