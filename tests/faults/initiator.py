"""A script that starts flows, and is killed while it does.

    python -m tests.faults.initiator URL HOW POINT OCCURRENCE COUNT [FIRST]

HOW is ``start`` (one flow a transaction), ``initiate`` (all together) or ``joined`` (all together, in a transaction of
its own connection, with an entry of its own in the ledger), or one of ``SETTINGS``: each in a transaction of its own
connection, which is set to that. POINT is one of ``POINTS``, or ``none``. It prints how many flows it
started that had not been started before.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import partial
from typing import Any

import psycopg

from stagepost import Started
from stagepost.app.app import engine_of
from stagepost.store.postgres.session import PostgresSession
from stagepost.store.postgres.writer import PostgresAccepted
from stagepost.store.sql.journal import SqlJournal
from stagepost.store.sqlite.session import SqliteSession
from stagepost.store.sqlite.writer import SqliteAccepted
from tests.faults.bank import Bank, Transfer, open_bank
from tests.waiting import PATIENCE_SECONDS

# Where a transaction of its own can be cut: a method of the session or of a part of it, and on which side of it.
POINTS: dict[str, tuple[str, str]] = {
    "before-begin": ("begin", "before"),
    "after-begin": ("begin", "after"),
    "after-accept": ("accept", "after"),
    "after-record": ("record", "after"),
    "before-commit": ("commit", "before"),
    "after-commit": ("commit", "after"),
}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def cut(url: str, point: str, occurrence: int) -> None:
    name, side = POINTS[point]
    owner = owner_of(name, url)
    method: Callable[..., Any] = getattr(owner, name)
    passed = 0

    def cut_method(*arguments: Any, **options: Any) -> Any:
        nonlocal passed
        passed += 1
        if side == "before" and passed == occurrence:
            die()
        result = method(*arguments, **options)
        if side == "after" and passed == occurrence:
            die()
        return result

    setattr(owner, name, cut_method)


def owner_of(name: str, url: str) -> type:
    if name == "record":
        return SqlJournal
    if name == "accept":
        return SqliteAccepted if is_sqlite(url) else PostgresAccepted
    return SqliteSession if is_sqlite(url) else PostgresSession


def is_sqlite(url: str) -> bool:
    return url.startswith("sqlite:")


def connect(url: str) -> Any:
    return (
        sqlite3.connect(url.removeprefix("sqlite:///"), timeout=PATIENCE_SECONDS)
        if is_sqlite(url)
        else psycopg.connect(url)
    )


def send(bank: Bank, out: Any, number: int) -> Started:
    order = Transfer(f"t{number}/from", f"t{number}/to", 100)
    started: Started = out.send(bank.transfer, order, flow_id=f"t{number}", reply_to=bank.done)
    return started


def start(bank: Bank, numbers: range, point: str) -> list[Started]:
    orders = [(number, Transfer(f"t{number}/from", f"t{number}/to", 100)) for number in numbers]
    return [bank.app.start(bank.transfer, order, flow_id=f"t{number}", reply_to=bank.done) for number, order in orders]


def initiate(bank: Bank, numbers: range, point: str) -> list[Started]:
    with bank.app.initiate() as out:
        return [send(bank, out, number) for number in numbers]


def joined(bank: Bank, numbers: range, point: str) -> list[Started]:
    with closing(connect(bank.app.database)) as connection:
        connection.execute("INSERT INTO scratch (name) VALUES ('the caller')")
        with bank.app.initiate(connection=connection) as out:
            started = [send(bank, out, number) for number in numbers]
        if point == "before-own-commit":
            die()
        connection.commit()
        if point == "after-own-commit":
            die()
    return started


@contextmanager
def transaction_of_sqlite(url: str, **factories: Any) -> Iterator[Callable[[], AbstractContextManager[Any]]]:
    with closing(connect(url)) as connection:
        for name, factory in factories.items():
            setattr(connection, name, factory)
        yield lambda: committed(connection)


@contextmanager
def committed(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    with connection:
        yield connection


@contextmanager
def transaction_of_postgres(
    url: str, *, encoding: str = "UTF8", is_pipelined: bool = False
) -> Iterator[Callable[[], AbstractContextManager[Any]]]:
    with closing(psycopg.connect(url, client_encoding=encoding)) as connection:

        @contextmanager
        def begun() -> Iterator[Any]:
            with connection.transaction(), connection.pipeline() if is_pipelined else nullcontext():
                yield connection

        yield begun


# Of the caller's own connection: how the driver speaks, in which encoding, and what it makes of rows and texts.
SETTINGS: dict[str, Callable[[str], AbstractContextManager[Callable[[], AbstractContextManager[Any]]]]] = {
    "texts as bytes": partial(transaction_of_sqlite, text_factory=bytes),
    "rows as objects": partial(transaction_of_sqlite, row_factory=sqlite3.Row),
    "pipeline mode": partial(transaction_of_postgres, is_pipelined=True),
    "LATIN1": partial(transaction_of_postgres, encoding="LATIN1"),
    "SQL_ASCII": partial(transaction_of_postgres, encoding="SQL_ASCII"),
}


def each_joined(setting: str, bank: Bank, numbers: range, point: str) -> list[Started]:
    assert bank.app.database is not None
    started: list[Started] = []
    with SETTINGS[setting](bank.app.database) as transaction:
        for number in numbers:
            with transaction() as connection:
                connection.execute(f"INSERT INTO scratch (name) VALUES ('t{number}') ON CONFLICT DO NOTHING")
                with bank.app.initiate(connection=connection) as out:
                    started.append(send(bank, out, number))
    return started


HOW: dict[str, Callable[[Bank, range, str], list[Started]]] = {
    "start": start,
    "initiate": initiate,
    "joined": joined,
    **{setting: partial(each_joined, setting) for setting in SETTINGS},
}


def main(url: str, how: str, point: str, occurrence: str, count: str, first: str = "0") -> None:
    bank = open_bank(url)
    assert engine_of(bank.app).store
    if point in POINTS:
        cut(url, point, int(occurrence))
    started = HOW[how](bank, range(int(first), int(count)), point)
    print(sum(each.is_new for each in started))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
