"""A bank whose ledger is in one database and whose messages are in another."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Literal

from stagepost.app.modes import check_mode
from tests.faults.bank import Bank, open_bank
from tests.faults.books import Books
from tests.faults.postgres_books import PostgresBooks
from tests.faults.waiting import is_soon

# What the messages' database is asked for; all else is the ledger's.
OF_MESSAGES = (
    "stagepost_ready",
    "stagepost_delayed",
    "stagepost_suspect",
    "stagepost_journal",
    "stagepost_dead_letter",
    "stagepost_incarnation",
)
# How soon what somebody did not mark is looked at; a minute where it is not said.
LEASE_SECONDS = 2
MARKED_SECONDS_MAX = 30.0


Side = Literal["business", "queue"]
SIDES: tuple[Side, ...] = ("business", "queue")


class TwoBooks(Books):
    def __init__(self, business: Books, queue: Books, mode: str) -> None:
        self.business = business
        self.queue = queue
        self.mode = check_mode(mode)
        super().__init__(business.url)
        self.settings = {"transport": queue.url, "mode": mode, "lease": str(LEASE_SECONDS)}

    def bank(self) -> Bank:
        return open_bank(self.url, self.queue.url, self.mode)

    def connected(self) -> AbstractContextManager[Any]:
        return self.business.connected()

    def rows(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        is_of_messages = any(name in statement for name in OF_MESSAGES)
        return (self.queue if is_of_messages else self.business).rows(statement, *parameters)

    def side(self, side: Side) -> PostgresBooks:
        """One of them by its name, where both are PostgreSQL."""
        found = self.business if side == "business" else self.queue
        assert isinstance(found, PostgresBooks)
        return found

    def waiting(self) -> int:
        # In this order, which is that of what moves: what is in neither is done.
        held = self.business.number("SELECT count(*) FROM stagepost_outbox")
        return held + super().waiting()

    def registered(self) -> int:
        return self.queue.registered()

    def hearts_beat_since(self, moment: float) -> int:
        return self.queue.hearts_beat_since(moment)

    def close(self) -> None:
        self.business.close()
        self.queue.close()

    def _store_problems(self) -> list[str]:
        # Whoever was killed before it could mark what it had sent leaves that to the sweep.
        is_soon(lambda: self._unmarked() == 0, MARKED_SECONDS_MAX)
        unmarked = self._unmarked()
        return [
            *self.business._store_problems(),
            *self.queue._store_problems(),
            *([f"outbox: {unmarked} messages were handled and are not marked as sent"] if unmarked else []),
        ]

    def _unmarked(self) -> int:
        return self.business.number("SELECT count(*) FROM stagepost_inbox WHERE NOT is_sent")
