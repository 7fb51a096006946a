"""The database: looked at, its tables made or checked, and opened once a thread."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, closing, contextmanager

import psycopg

from stagepost.flow.clock import Clock
from stagepost.flow.errors import StoreUnavailable
from stagepost.flow.urls import shown_url
from stagepost.store.postgres import migrate
from stagepost.store.postgres.address import parsed
from stagepost.store.postgres.apart import SameDatabase
from stagepost.store.postgres.caller import CallersWriter, joined
from stagepost.store.postgres.faults import translate
from stagepost.store.postgres.notifier import Notifier
from stagepost.store.postgres.pooler import check_pooler
from stagepost.store.postgres.session import PostgresSession
from stagepost.store.postgres.statements import SQL
from stagepost.store.postgres.wire import SETTINGS, Cursor, opened
from stagepost.store.postgres.worker_registry import PostgresWorkerRegistry
from stagepost.store.sql.migrations import check_there, check_version

# pg_snapshot and xid8 came with 13; older ones are out of support.
SERVER_VERSION_MIN = 130_000
# Risks that no session can set aside, each with its remedy.
RISKS = {
    "fsync_off": "fsync is off: set it on in the server's configuration, and restart the server",
    "full_page_writes_off": "full_page_writes is off: set it on in the server's configuration",
    "unlogged_tables": "tables of Stagepost's are UNLOGGED: ALTER TABLE … SET LOGGED",
}
# The encodings that keep every character. SQL_ASCII keeps the bytes unchanged.
ENCODINGS = {"UTF8", "SQL_ASCII"}

logger = logging.getLogger(__name__)


class PostgresStore:
    """Implements ``ports.store.Store``.

    Opening refuses a database whose tables are older or newer. In a database without tables it makes them if it
    ``may_make`` them, and refuses the database if not. It refuses a server on which a power failure may lose commits,
    unless that risk is in ``allow``.
    """

    def __init__(self, url: str, *, may_make: bool = True, allow: Collection[str] = RISKS) -> None:
        self._parameters = parsed(url)
        self.url = shown_url(url)
        self.address = url
        self._notifier = Notifier(self._parameters)
        self.apart = SameDatabase(self.session)
        with _connected(url) as connection:
            version = migrate.version_of(connection)
            if not may_make:
                check_there(version, self.url)
            if version == 0:
                migrate.migrate(connection, self.url)
                logger.info("%s: made the tables", self.url, extra={"event": "tables-made"})
            check_version(migrate.version_of(connection), migrate.newest(), self.url)
            self._check_risks(connection, allow)
            migrate.settle_lineage(connection)
            self.uuid = migrate.uuid_of(connection)
            self._epoch = migrate.epoch_of(connection)
            self.identity = f"{self.uuid} {migrate.number_of(connection)}"

    def session(self, *, is_pinned: bool = True) -> PostgresSession:
        """Open a session. Pinned or not, any thread may use it, one at a time."""
        return PostgresSession(self._parameters, self.url, self._notifier)

    def join(self, connection: object) -> AbstractContextManager[CallersWriter]:
        """Lend the caller's connection to Stagepost: see ``caller.joined``."""
        return joined(self._is_same_database, self.url, connection, self._notifier)

    def _is_same_database(self, epoch: str) -> bool:
        if epoch != self._epoch:
            # The server at this URL may be a standby that has been promoted since.
            with _connected(self.address) as connection:
                self._epoch = migrate.epoch_of(connection)
        return epoch == self._epoch

    def liveness(self, clock: Clock) -> PostgresWorkerRegistry:
        """Return the incarnations' registry, on control connections of its own."""
        return PostgresWorkerRegistry(self._parameters, self.url)

    def is_replaced(self) -> bool:
        """Return False: the connections to a dropped database end with it, so no write is lost unnoticed."""
        return False

    def _check_risks(self, connection: migrate.Connection, allow: Collection[str]) -> None:
        found = [risk for (risk,) in Cursor(connection).execute(SQL["list_risks"].text) if risk not in allow]
        if found:
            what = "; ".join(RISKS[risk] for risk in found)
            raise StoreUnavailable(
                f"{self.url}: {what}. Else a power failure loses or damages what was committed. Where it may, as on a "
                f"server for tests, say App(allow={tuple(found)!r}) or STAGEPOST_ALLOW={','.join(found)}."
            )


def migrate_database(url: str) -> list[int]:
    """Bring an existing or new set of tables to the newest version; returns the migrations applied."""
    with _connected(url) as connection:
        return migrate.migrate(connection, shown_url(url))


@contextmanager
def _connected(url: str) -> Iterator[migrate.Connection]:
    place = shown_url(url)
    try:
        with closing(opened(parsed(url))) as connection:
            if connection.info.server_version < SERVER_VERSION_MIN:
                raise StoreUnavailable(
                    f"{place} is PostgreSQL {connection.info.server_version // 10_000}; Stagepost needs 13 or newer."
                )
            encoding = connection.info.parameter_status("server_encoding")
            if encoding not in ENCODINGS:
                raise StoreUnavailable(
                    f"{place} is kept in {encoding}, which has not every character that an id, a message or an error "
                    "may hold. Create a database with: CREATE DATABASE … TEMPLATE template0 ENCODING 'UTF8'"
                )
            check_pooler(connection, parsed(url), place)
            Cursor(connection).execute(SETTINGS.text)
            yield connection
    except psycopg.Error as error:
        raise translate(error, place) from error
