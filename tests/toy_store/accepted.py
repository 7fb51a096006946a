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
        digest = self._tables.accepted.get(key)
        if digest is None:
            self._tables.accepted.put(key, acceptance.digest)
            return Verdict("started", acceptance.digest)
        return Verdict("repeated" if digest == acceptance.digest else "conflict", digest)
