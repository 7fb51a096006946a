"""The findings of audits."""

from __future__ import annotations

from collections.abc import Sequence

from stagepost.ports.audits import AuditFinding, KeptFinding
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
