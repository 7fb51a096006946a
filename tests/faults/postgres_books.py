"""A bank in a PostgreSQL database, with a row for each of its workers."""

from __future__ import annotations

from typing import Any

import psycopg

from tests.books import InPostgres, as_psycopg
from tests.faults.bank import LEDGER
from tests.faults.books import Books
from tests.waiting import last_of


class PostgresBooks(InPostgres, Books):
    def __init__(self, url: str) -> None:
        InPostgres.__init__(self, url)
        Books.__init__(self)
        # One for all statements, until the server is killed.
        self._connection = psycopg.connect(url, autocommit=True, application_name="books")
        for statement in LEDGER:
            self._connection.execute(statement.replace("BLOB", "bytea").encode())

    def rows(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        if self._connection.closed:
            self._connection = psycopg.connect(self.url, autocommit=True, application_name="books")
        return self._connection.execute(as_psycopg(statement), parameters).fetchall()

    def registered(self) -> int:
        return self.number("SELECT count(*) FROM stagepost_incarnation")

    def hearts_beat_since(self, moment: float) -> int:
        """By how often they did: it is once a second, at the most."""
        return self.number(
            "SELECT count(*) FROM stagepost_incarnation WHERE started_at + beat * 1000000 > ?", int(moment * 1_000_000)
        )

    # What the server knows of the workers

    def terminate(self, which: str) -> int:
        """End the workers' connections of which that is so; returns how many. They do not end by themselves."""
        return self.number(
            "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid, 10000)) FROM pg_stat_activity"
            f" WHERE datname = current_database() AND application_name = 'stagepost' AND ({which})"
        )

    def controls(self) -> dict[int, int]:
        """By the process of each worker that lives: the backend of the connection that proves it."""
        return dict(
            self.rows(
                "SELECT i.process, l.pid FROM stagepost_incarnation AS i JOIN pg_locks AS l ON l.objid = i.id"
                " WHERE l.locktype = 'advisory' AND l.granted"
                " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            )
        )

    def beats(self) -> dict[int, int]:
        """How often the heart of each worker process has beaten."""
        return dict(self.rows("SELECT process, beat FROM stagepost_incarnation"))

    def is_looked_at(self) -> bool:
        """Whether somebody has looked who lives."""
        return bool(
            self.rows(
                "SELECT 1 FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name = 'stagepost' AND query ^@ 'SELECT i.id'"
            )
        )

    def is_locked_out(self) -> bool:
        """Whether some worker waits for what somebody has locked."""
        return bool(
            self.rows(
                "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
                " AND application_name = 'stagepost' AND wait_event_type = 'Lock'"
            )
        )

    def close(self) -> None:
        self._connection.close()

    def _store_problems(self) -> list[str]:
        # A sound worker is between two statements for a moment; a lost connection stays there.
        last_of(lambda: not self._idle_in_transaction())
        prepared = self.rows("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
        return [
            *(f"prepared: {name}" for (name,) in prepared),
            *(f"idle in a transaction: {statement}" for (statement,) in self._idle_in_transaction()),
        ]

    def _idle_in_transaction(self) -> list[tuple[Any, ...]]:
        return self.rows(
            "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND state ^@ 'idle in transaction'"
        )
