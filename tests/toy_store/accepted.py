"""The accepted ids in memory."""

from __future__ import annotations

from collections.abc import Sequence

from stagepost.flow.initiation import Acceptance, Verdict
from tests.toy_store.tables import Tables


class ToyAccepted:
    """Implements ``ports.accepted.Accepted``."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def accept(self, acceptances: Sequence[Acceptance], *, is_patient: bool = True) -> list[Verdict]:
        return [self._accept(each) for each in acceptances]

    def _accept(self, acceptance: Acceptance) -> Verdict:
        key = (acceptance.scope, acceptance.key)
        before = self._tables.accepted.get(key)
        if before is None:
            self._tables.accepted.put(key, (acceptance.digest, acceptance.run_id, acceptance.is_direct))
            return Verdict("started", acceptance.digest, acceptance.run_id)
        return Verdict("repeated" if before[0] == acceptance.digest else "conflict", *before[:2])
