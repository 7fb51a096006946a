"""A consumer's own database: a ledger without a unique key, so that a doubled row shows."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg

from stagepost.gateway.receiver import make_table

Connect = Callable[[], Any]


class KilledSqlite(sqlite3.Connection):
    """A connection whose process dies before or after its commit, if ``when`` says so."""

    when = ""

    def commit(self) -> None:
        die("before", self.when)
        super().commit()
        die("after", self.when)


class KilledPostgres(psycopg.Connection[Any]):
    when = ""

    def commit(self) -> None:
        die("before", self.when)
        super().commit()
        die("after", self.when)


def die(at: str, when: str) -> None:
    if at == when:
        os.kill(os.getpid(), signal.SIGKILL)


def connector(url: str, when: str = "") -> Connect:
    """Return a function that connects. Its connections die at their commit as ``when`` says."""

    def connect() -> Any:
        made: Any
        if url.startswith("sqlite"):
            path = url.removeprefix("sqlite:///")
            made = sqlite3.connect(path, factory=KilledSqlite, check_same_thread=False, timeout=0.2)
        else:
            made = KilledPostgres.connect(url)
        made.when = when
        return made

    return connect


def prepare(connect: Connect) -> None:
    with closing(connect()) as connection:
        make_table(connection)
        make_table(connection)
        connection.execute("CREATE TABLE IF NOT EXISTS ledger (entry TEXT)")
        connection.commit()


def entries(connect: Connect) -> list[str]:
    with closing(connect()) as connection:
        return [row[0] for row in connection.execute("SELECT entry FROM ledger ORDER BY entry").fetchall()]


def write(connection: Any, entry: str) -> None:
    mark = "?" if isinstance(connection, sqlite3.Connection) else "%s"
    connection.execute(f"INSERT INTO ledger (entry) VALUES ({mark})", (entry,))
