"""Looking at a server for ``stagepost doctor``: at one that cannot be worked with as well, and without changing it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any, TypeVar

import psycopg

from stagepost.flow.clock import SECOND, Clock, microseconds
from stagepost.flow.declaration import Undeclared
from stagepost.flow.inbox import Backlog
from stagepost.flow.urls import shown_url
from stagepost.flow.vitals import (
    LATELY_SECONDS,
    Backlogs,
    ClockGap,
    Heart,
    Holding,
    Lately,
    Paused,
    PreparedTransaction,
    QueueVitals,
    Replica,
    RoleSetting,
    Server,
    ServerVitals,
    Slot,
    Table,
    TransactionOpen,
    Unseen,
    Version,
    Waiting,
)
from stagepost.store.postgres import migrate
from stagepost.store.postgres.address import parsed
from stagepost.store.postgres.faults import one_line, translate
from stagepost.store.postgres.lives import LOCK_CLASS
from stagepost.store.postgres.statements import SQL
from stagepost.store.postgres.store import SERVER_VERSION_MIN
from stagepost.store.postgres.wire import Cursor, in_order, opened

T = TypeVar("T")

# A look neither waits behind a migration nor counts for ever. Nothing of it stays with a connection that a pool lends.
PATIENCE = b"SET LOCAL statement_timeout TO '30s'; SET LOCAL lock_timeout TO '5s'"
# The quickest of several answers says the most exactly what the time was.
CLOCK_QUESTIONS = 5
WHAT_TIME = b"SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"


def examine(url: str, clock: Clock) -> ServerVitals:
    """Raises ``StoreError`` where the server cannot be asked, or is lost meanwhile."""
    place = shown_url(url)
    driver = psycopg.pq.__impl__
    try:
        with closing(opened(parsed(url))) as connection:
            number = connection.info.server_version
            if number < SERVER_VERSION_MIN:
                return ServerVitals(place, number, driver)
            look = _Look(connection, clock)
            version = look.part("the version of the tables", look.version)
            has_queue = version is not None and 0 < version.tables <= version.newest
            return ServerVitals(
                place,
                number,
                driver,
                version=version,
                clock=look.part("the clock", look.clock_gap),
                server=look.part("the server's settings", look.server),
                tables=look.part("the tables", lambda: [Table(*row) for row in look.rows("list_tables")]),
                transactions=look.part(
                    "open transactions", lambda: [TransactionOpen(*row) for row in look.rows("list_transactions")]
                ),
                prepared=look.part(
                    "prepared transactions", lambda: [PreparedTransaction(*row) for row in look.rows("list_prepared")]
                ),
                slots=look.part("replication slots", lambda: [Slot(*row) for row in look.rows("list_slots")]),
                replicas=look.part("replicas", lambda: [Replica(*row) for row in look.rows("list_replicas")]),
                relaxed=look.part(
                    "the settings of roles", lambda: [RoleSetting(*row) for row in look.rows("list_relaxed_roles")]
                ),
                queue=look.part("the queue", look.queue) if has_queue else None,
                paused=look.part("paused stages", look.paused) if has_queue else None,
                undeclared=look.part("declared stages", look.undeclared) if has_queue else None,
                backlogs=look.part("what is to be sent", look.backlogs) if has_queue else None,
                unseen=look.unseen,
            )
    except psycopg.Error as error:
        raise translate(error, place) from error


class _Look:
    def __init__(self, connection: migrate.Connection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self.unseen: list[Unseen] = []

    def part(self, what: str, look: Callable[[], T]) -> T | None:
        """What may not be seen, or takes too long, keeps nobody from seeing the rest."""
        try:
            with self._connection.transaction():
                self._connection.execute(PATIENCE, prepare=False)
                return look()
        except psycopg.Error as error:
            if self._connection.closed:
                raise
            self.unseen.append(Unseen(what, one_line(error)))
            return None

    def rows(self, name: str, parameters: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
        statement = SQL[name]
        return Cursor(self._connection).execute(statement.text, in_order(statement, parameters or {})).fetchall()

    def version(self) -> Version:
        return Version(migrate.version_of(self._connection), migrate.newest())

    def server(self) -> Server:
        (row,) = self.rows("look_at_server")
        return Server(*row)

    def clock_gap(self) -> ClockGap:
        took, ahead = min(self._ask_the_time() for _ in range(CLOCK_QUESTIONS))
        return ClockGap(ahead, took / 2)

    def _ask_the_time(self) -> tuple[float, float]:
        """How long the answer took, and how far it was ahead of the middle of that."""
        asked, here = self._clock.monotonic(), self._clock.now()
        row = self._connection.execute(WHAT_TIME).fetchone()
        took = self._clock.monotonic() - asked
        assert row is not None
        return took, (int(row[0]) - here) / SECOND - took / 2

    def queue(self) -> QueueVitals:
        now = self._clock.now()
        since = now - microseconds(LATELY_SECONDS)
        return QueueVitals(
            waiting=[Waiting(*row) for row in self.rows("list_waiting", {"now": now})],
            lately=[Lately(*row) for row in self.rows("count_letters_since", {"since": since})],
            holdings=[Holding(*row) for row in self.rows("list_holdings")],
            hearts=[Heart(*row) for row in self.rows("list_hearts", {"class": LOCK_CLASS})],
        )

    def paused(self) -> list[Paused]:
        return [Paused(*row) for row in self.rows("look_at_paused")]

    def undeclared(self) -> list[Undeclared]:
        return [Undeclared(*row) for row in self.rows("list_undeclared")]

    def backlogs(self) -> Backlogs:
        (held,), (unsent,) = self.rows("count_held"), self.rows("count_unsent")
        return Backlogs(Backlog(*held), Backlog(*unsent))
