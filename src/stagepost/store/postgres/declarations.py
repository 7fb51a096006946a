"""Which app declares which stage."""

from __future__ import annotations

from collections.abc import Sequence

from stagepost.flow.declaration import Declaration, Undeclared
from stagepost.store.postgres.statements import SQL
from stagepost.store.postgres.wire import Wire


class PostgresDeclarations:
    """Implements ``transaction.seams.Declarations``. Writes are part of whatever transaction is open."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def lock(self) -> None:
        self._wire.run(SQL["lock_declarations"])

    def listed(self) -> list[Declaration]:
        return [Declaration(*row) for row in self._wire.run(SQL["list_declarations"]).fetchall()]

    def put(self, declarations: Sequence[Declaration]) -> None:
        for each in declarations:
            self._wire.later(SQL["put_declaration"], each._asdict())

    def undeclared(self) -> list[Undeclared]:
        return [Undeclared(*row) for row in self._wire.run(SQL["list_undeclared"]).fetchall()]
