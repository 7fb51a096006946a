"""A bank whose ledger is in one database and whose messages are in another."""

from __future__ import annotations

from typing import Literal

from stagepost.runtime.modes import check_mode
from tests.books import InTwo
from tests.faults.bank import Bank, open_bank
from tests.faults.books import Books
from tests.faults.postgres_books import PostgresBooks
from tests.waiting import last_of

# How soon what somebody did not mark is looked at; a minute where it is not said.
LEASE_SECONDS = 2


Side = Literal["business", "queue"]
SIDES: tuple[Side, ...] = ("business", "queue")


class TwoBooks(InTwo, Books):
    business: Books
    queue: Books

    def __init__(self, business: Books, queue: Books, mode: str) -> None:
        InTwo.__init__(self, business, queue)
        self.mode = check_mode(mode)
        Books.__init__(self)
        self.settings = {"queue": queue.url, "mode": mode, "lease": str(LEASE_SECONDS)}

    def bank(self) -> Bank:
        return open_bank(self.url, self.queue.url, self.mode)

    def side(self, side: Side) -> PostgresBooks:
        """One of them by its name, where both are PostgreSQL."""
        found = self.business if side == "business" else self.queue
        assert isinstance(found, PostgresBooks)
        return found

    def registered(self) -> int:
        return self.queue.registered()

    def hearts_beat_since(self, moment: float) -> int:
        return self.queue.hearts_beat_since(moment)

    def close(self) -> None:
        self.business.close()
        self.queue.close()

    def _store_problems(self) -> list[str]:
        # Whoever was killed before it could mark what it had sent leaves that to the sweep.
        last_of(lambda: self._unmarked() == 0)
        unmarked = self._unmarked()
        return [
            *self.business._store_problems(),
            *self.queue._store_problems(),
            *([f"outbox: {unmarked} messages were handled and are not marked as sent"] if unmarked else []),
        ]

    def _unmarked(self) -> int:
        return self.business.number("SELECT count(*) FROM stagepost_inbox WHERE NOT is_sent")
