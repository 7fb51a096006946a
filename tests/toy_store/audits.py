"""The findings and states of audits, in memory."""

from __future__ import annotations

from collections.abc import Sequence

from stagepost.ports.audits import AuditFinding, KeptFinding, NamedState
from tests.toy_store.tables import Tables


class ToyAudits:
    """Implements ``ports.audits.Audits``."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def note(self, findings: Sequence[AuditFinding], now: int) -> None:
        for each in findings:
            key = (each.kind, each.stage, each.message_id)
            known = self._tables.findings.get(key)
            self._tables.findings.put(key, KeptFinding(each, now if known is None else known.first_at, now))

    def findings(self, limit: int) -> list[KeptFinding]:
        return sorted(self._tables.findings.values(), key=lambda each: -each.last_at)[:limit]

    def state(self, series: str) -> NamedState | None:
        return self._tables.audit_states.get(series)

    def name_state(self, series: str, former: NamedState | None, state: NamedState, now: int) -> bool:
        if self.state(series) != former:
            return False
        self._tables.audit_states.put(series, state)
        return True
