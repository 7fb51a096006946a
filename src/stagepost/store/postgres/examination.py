"""Looking at a server for ``stagepost doctor``: at one that cannot be worked with as well, and without changing it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any, TypeVar

import psycopg

from stagepost.flow.clock import SECOND, Clock
from stagepost.flow.errors import StoreError
from stagepost.flow.urls import shown_url
from stagepost.ports.findings import Version, critical
from stagepost.ports.health import Heart, StoreHealth, Unseen
from stagepost.store.postgres import migrate
from stagepost.store.postgres.address import parsed
from stagepost.store.postgres.checks import check_server
from stagepost.store.postgres.faults import one_line, translate
from stagepost.store.postgres.server_facts import (
    ClockGap,
    PreparedTransaction,
    Replica,
    RoleSetting,
    Server,
    ServerFacts,
    Slot,
    Table,
    TransactionOpen,
)
from stagepost.store.postgres.statements import SQL
from stagepost.store.postgres.store import SERVER_VERSION_MIN
from stagepost.store.postgres.wire import Cursor, opened
from stagepost.store.postgres.worker_registry import LOCK_CLASS
from stagepost.store.sql.database import Parameters, in_order
from stagepost.store.sql.examination import health_of

T = TypeVar("T")

# A look neither waits behind a migration nor counts without limit. A pooled connection keeps none of these settings.
PATIENCE = b"SET LOCAL statement_timeout TO '30s'; SET LOCAL lock_timeout TO '5s'"
# The quickest of several answers says the most exactly what the time was.
CLOCK_QUESTIONS = 5
PREPARED_SHOWN_MAX = 100
WHAT_TIME = b"SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"


def examine(url: str, source: str, clock: Clock) -> StoreHealth:
    """Look at the server. ``source`` says where its URL was found."""
    try:
        with closing(opened(parsed(url))) as connection:
            return _examined(connection, shown_url(url), clock)
    except psycopg.Error as error:
        seen: StoreError = translate(error, shown_url(url))
    except StoreError as error:
        seen = error
    finding = critical(
        "server-unreachable",
        f"{seen} (the URL was taken from {source})",
        "Check that the server runs and lets this machine in (pg_isready -h HOST -p PORT; listen_addresses, "
        "pg_hba.conf, firewall), and host, port, user, password and database in the URL.",
    )
    return StoreHealth(None, [finding])


def _examined(connection: migrate.Connection, place: str, clock: Clock) -> StoreHealth:
    number = connection.info.server_version
    driver = psycopg.pq.__impl__
    if number < SERVER_VERSION_MIN:
        return StoreHealth(place, check_server(ServerFacts(number, driver), clock.now()))
    look = _Look(connection, clock)
    version = look.part("the version of the tables", lambda: Version(migrate.version_of(connection), migrate.newest()))
    facts = ServerFacts(
        number,
        driver,
        version=version,
        clock=look.part("the clock", look.clock_gap),
        server=look.part("the server's settings", lambda: Server(*look.rows("look_at_server")[0])),
        tables=look.part("the tables", lambda: [Table(*row) for row in look.rows("list_tables")]),
        transactions=look.part(
            "open transactions", lambda: [TransactionOpen(*row) for row in look.rows("list_transactions")]
        ),
        prepared=look.part(
            "prepared transactions",
            lambda: [PreparedTransaction(*row) for row in look.rows("list_prepared", ("",))[:PREPARED_SHOWN_MAX]],
        ),
        slots=look.part("replication slots", lambda: [Slot(*row) for row in look.rows("list_slots")]),
        replicas=look.part("replicas", lambda: [Replica(*row) for row in look.rows("list_replicas")]),
        relaxed=look.part(
            "the settings of roles", lambda: [RoleSetting(*row) for row in look.rows("list_relaxed_roles")]
        ),
    )
    findings = check_server(facts, clock.now())
    if version is None or not 0 < version.tables <= version.newest:
        return StoreHealth(place, findings, unseen=look.unseen)

    def hearts() -> list[Heart]:
        return [Heart(*row) for row in look.rows("list_hearts", {"class": LOCK_CLASS})]

    return health_of(place, findings, look.rows, look.part, look.unseen, clock.now(), hearts)


class _Look:
    def __init__(self, connection: migrate.Connection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self.unseen: list[Unseen] = []

    def part(self, what: str, look: Callable[[], T]) -> T | None:
        """Look at one part. A part that may not be seen, or takes too long, hides no other part."""
        try:
            with self._connection.transaction():
                self._connection.execute(PATIENCE, prepare=False)
                return look()
        except psycopg.Error as error:
            if self._connection.closed:
                raise
            self.unseen.append(Unseen(what, one_line(error)))
            return None

    def rows(self, name: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        statement = SQL[name]
        return Cursor(self._connection).execute(statement.text, in_order(statement.names, parameters)).fetchall()

    def clock_gap(self) -> ClockGap:
        took, ahead = min(self._ask_the_time() for _ in range(CLOCK_QUESTIONS))
        return ClockGap(ahead, took / 2)

    def _ask_the_time(self) -> tuple[float, float]:
        """Return how long the answer took, and how far it was ahead of the middle of that."""
        asked, here = self._clock.monotonic(), self._clock.now()
        row = self._connection.execute(WHAT_TIME).fetchone()
        took = self._clock.monotonic() - asked
        assert row is not None
        return took, (int(row[0]) - here) / SECOND - took / 2
