"""Which app declares which stage, in memory."""

from __future__ import annotations

from collections.abc import Sequence

from stagepost.ports.declarations import Declaration, Undeclared
from tests.toy_store.tables import Tables


class ToyDeclarations:
    """Implements ``ports.declarations.Declarations``."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def declared(self, stages: Sequence[str]) -> set[str]:
        found = {stage: self._tables.declarations.get(stage) for stage in stages}
        return {stage for stage, known in found.items() if known is not None and known.dropped_at is None}

    def lock(self) -> None:
        """Who has a transaction open is the only writer."""

    def listed(self) -> list[Declaration]:
        return sorted(self._tables.declarations.values())

    def put(self, declarations: Sequence[Declaration]) -> None:
        for each in declarations:
            self._tables.declarations.put(each.stage, each)

    def undeclared(self) -> list[Undeclared]:
        tables = self._tables
        waiting = {held.row.stage for held in tables.ready.values() if held.owner is None}
        waiting |= {row.stage for table in (tables.delayed, tables.suspect) for row in table.values()}
        found = [(stage, tables.declarations.get(stage)) for stage in sorted(waiting)]
        return [
            Undeclared(stage, known.app if known else None, known.dropped_at if known else None)
            for stage, known in found
            if known is None or known.dropped_at is not None
        ]
