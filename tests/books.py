"""A store of the tests, asked from outside.

``tests.faults.books`` and ``tests.pipeline.books`` judge what is in it.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg

from tests.waiting import PATIENCE_SECONDS

# The tables of the queue's database, where it is not the business database.
OF_QUEUE = (
    "stagepost_ready",
    "stagepost_delayed",
    "stagepost_suspect",
    "stagepost_journal",
    "stagepost_dead_letter",
    "stagepost_incarnation",
)


class Books(ABC):
    """``url`` is of the app's database. ``?`` stands for a parameter in a statement."""

    url: str

    @abstractmethod
    def connected(self) -> AbstractContextManager[Any]:
        """Return a connection of a caller that is no worker, in a transaction of its own."""

    @abstractmethod
    def rows(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run a statement in a transaction of its own."""

    def number(self, statement: str, *parameters: Any) -> int:
        return int(self.rows(statement, *parameters)[0][0])

    def waiting(self) -> int:
        return self.number(
            "SELECT (SELECT count(*) FROM stagepost_ready) + (SELECT count(*) FROM stagepost_delayed)"
            " + (SELECT count(*) FROM stagepost_suspect)"
        )

    def is_drained(self) -> bool:
        return self.waiting() == 0

    def waypoints(self, name: str, flow_id: str | None = None) -> int:
        """Return how often the journal has it, of that flow or of all."""
        return self.number(
            "SELECT count(*) FROM stagepost_journal WHERE waypoint = ? AND flow_id = coalesce(?, flow_id)",
            name,
            flow_id,
        )


class InSqlite(Books):
    """``locks`` is the folder of the workers' lock files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"
        self.locks = path.with_name(f"{path.name}-workers")

    @contextmanager
    def connected(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, timeout=PATIENCE_SECONDS)) as connection:
            yield connection

    def rows(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with self.connected() as connection, connection:
            return connection.execute(statement, parameters).fetchall()


class InPostgres(Books):
    def __init__(self, url: str) -> None:
        self.url = url

    @contextmanager
    def connected(self) -> Iterator[psycopg.Connection[Any]]:
        with closing(psycopg.connect(self.url, application_name="books")) as connection:
            yield connection

    def rows(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True, application_name="books") as connection:
            return connection.execute(as_psycopg(statement), parameters).fetchall()


class InTwo(Books):
    """The queue is in another database than the business data."""

    def __init__(self, business: Books, queue: Books) -> None:
        self.business = business
        self.queue = queue
        self.url = business.url

    def connected(self) -> AbstractContextManager[Any]:
        return self.business.connected()

    def rows(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        is_of_queue = any(name in statement for name in OF_QUEUE)
        return (self.queue if is_of_queue else self.business).rows(statement, *parameters)

    def waiting(self) -> int:
        # A message moves from the outbox to the queue. In this order it is seen in one of them, or in both.
        held = self.business.number("SELECT count(*) FROM stagepost_outbox")
        return held + super().waiting()


def as_psycopg(statement: str) -> bytes:
    return statement.replace("%", "%%").replace("?", "%s").encode()
