"""The shop in PostgreSQL: in one database, or with its messages in another one than its ledger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import psycopg

from stagepost import App
from stagepost.transaction.stage import Mode
from tests.pipeline.books import Books, Flow
from tests.pipeline.shop import open_shop

# What the messages' database is asked for; all else is the ledger's.
OF_MESSAGES = (
    "stagepost_ready",
    "stagepost_delayed",
    "stagepost_suspect",
    "stagepost_journal",
    "stagepost_dead_letter",
    "stagepost_incarnation",
)


class PostgresBooks(Books):
    def __init__(self, url: str) -> None:
        self.url = url
        self._make()

    @contextmanager
    def connected(self) -> Iterator[psycopg.Connection[Any]]:
        with closing(psycopg.connect(self.url)) as connection:
            yield connection

    def rows(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with closing(psycopg.connect(self.url, autocommit=True)) as connection:
            asked = statement.replace("%", "%%").replace("?", "%s").encode()
            return connection.execute(asked, parameters).fetchall()

    def locks(self) -> list[Any]:
        return self.rows("SELECT owner FROM stagepost_incarnation")

    def in_doubt(self) -> int:
        return self.number("SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()")


class PostgresInTwo(PostgresBooks):
    def __init__(self, url: str, queue: PostgresBooks, mode: Mode) -> None:
        self.queue = queue
        self.mode = mode
        super().__init__(url)

    @property
    def app(self) -> App:
        return open_shop(self.url, transport=self.queue.url, mode=self.mode, pause_after_death=None)

    def rows(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        if any(name in statement for name in OF_MESSAGES):
            return self.queue.rows(statement, *parameters)
        return super().rows(statement, *parameters)

    def waiting(self) -> int:
        return self.number("SELECT count(*) FROM stagepost_outbox") + super().waiting()

    def problems(self, flows: Sequence[Flow]) -> list[str]:
        unmarked = self.number("SELECT count(*) FROM stagepost_inbox WHERE NOT is_sent")
        in_doubt = self.queue.in_doubt()
        return [
            *super().problems(flows),
            *([f"inbox: {unmarked} messages were handled and are not marked as sent"] if unmarked else []),
            *([f"in doubt: {in_doubt} transactions"] if in_doubt else []),
        ]
