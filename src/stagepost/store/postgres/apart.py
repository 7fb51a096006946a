"""Sessions of the same database, for commits that cannot wait for the transaction of a stage."""

from __future__ import annotations

from collections.abc import Callable

from stagepost.store.postgres.session import PostgresSession


class SameDatabase:
    """Implements ``ports.store.Apart``: PostgreSQL has many writers at a time."""

    exists = True
    has_outbox = False

    def __init__(self, opened: Callable[[], PostgresSession]) -> None:
        self._opened = opened

    def renumber(self) -> None:
        """Do nothing: the log is in the database of the messages."""

    def migrate(self) -> list[int]:
        """Do nothing, for the same reason."""
        return []

    def start_over(self) -> None:
        """Do nothing, for the same reason."""

    def session(self) -> PostgresSession:
        return self._opened()
