"""Which app declares which stage."""

from __future__ import annotations

from collections.abc import Sequence

from stagepost.flow.declaration import Declaration, Undeclared
from stagepost.store.sqlite.queue import Run
from stagepost.store.sqlite.statements import SQL


class SqliteDeclarations:
    """Implements ``transaction.seams.Declarations``. Writes are part of whatever transaction is open."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def lock(self) -> None:
        """Who has a transaction open is the only writer."""

    def listed(self) -> list[Declaration]:
        return [Declaration(*row) for row in self._run(SQL["list_declarations"]).fetchall()]

    def put(self, declarations: Sequence[Declaration]) -> None:
        for each in declarations:
            self._run(SQL["put_declaration"], each._asdict())

    def undeclared(self) -> list[Undeclared]:
        return [Undeclared(*row) for row in self._run(SQL["list_undeclared"]).fetchall()]
