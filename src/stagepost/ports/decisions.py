"""Capabilities of two databases that commit together: one prepares transactions, the other decides on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class InDoubt(NamedTuple):
    """A prepared transaction. ``gid`` is unique in its server; ``age_seconds`` is the time since it was prepared."""

    gid: str
    age_seconds: float


class Decisions(Protocol):
    """The decisions of this database on transactions that are prepared in the queue's database.

    Writes happen in the session's open transaction.
    """

    def decide(self, gid: str, *, is_commit: bool) -> bool:
        """Insert a decision. Returns False where there is one.

        Waits for a transaction that is inserting one; raises ``StoreContention`` where that takes long.
        """

    def find(self, gid: str) -> bool | None:
        """Return whether the decision is to commit; None where there is no decision."""

    def kept(self, age: int, limit: int, *, is_commit: bool) -> list[str]:
        """Return decisions of that kind, at least ``age`` microseconds old by the server's clock, oldest first."""

    def forget(self, gids: Sequence[str]) -> None:
        """Delete decisions."""


class Prepared(Protocol):
    """The prepared transactions of this database. They survive a crash."""

    def begin_to_prepare(self) -> None:
        """Open the session's transaction, to be prepared."""

    def prepare(self, gid: str) -> None:
        """Prepare the open transaction.

        Raises ``StoreError`` where it is not prepared, ``StoreUnavailable`` where that is not known.
        """

    def commit_prepared(self, gid: str) -> None:
        """Commit a prepared transaction. Does nothing where another session did it."""

    def rollback_prepared(self, gid: str) -> None:
        """Roll a prepared transaction back. Does nothing where another session did it, or none was prepared."""

    def in_doubt(self, prefix: str) -> list[InDoubt]:
        """Return the prepared transactions whose gid begins with ``prefix``, the oldest first."""

    @property
    def prepared_max(self) -> int:
        """The limit of transactions that are prepared at a time."""
