"""Which app declares which stage."""

from __future__ import annotations

from collections.abc import Sequence

from stagepost.ports.declarations import Declaration, Undeclared
from stagepost.store.sql.database import SqlPart, text_of


class SqlDeclarations(SqlPart):
    """Implements ``ports.declarations.Declarations``. Writes are part of the open transaction."""

    def declared(self, stages: Sequence[str]) -> set[str]:
        return {text_of(stage) for (stage,) in self._run("list_declared", (self._database.array(stages),)).fetchall()}

    def lock(self) -> None:
        """Do nothing where a database has one writer at a time."""

    def listed(self) -> list[Declaration]:
        return [Declaration(*row) for row in self._run("list_declarations").fetchall()]

    def put(self, declarations: Sequence[Declaration]) -> None:
        for each in declarations:
            self._database.later("put_declaration", each)

    def undeclared(self) -> list[Undeclared]:
        return [Undeclared(*row) for row in self._run("list_undeclared").fetchall()]
