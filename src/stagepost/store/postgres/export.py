"""Reading whole tables, for Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql

from stagepost.flow.urls import shown_url
from stagepost.ports.journal import Bounds, Span
from stagepost.store.postgres.address import parsed
from stagepost.store.postgres.faults import translate
from stagepost.store.postgres.migrate import epoch_of, settle_lineage
from stagepost.store.postgres.statements import SQL
from stagepost.store.postgres.wire import Cursor, opened
from stagepost.store.sql.database import in_order, only
from stagepost.store.sql.export import WITH_ENVELOPES, readable

ROWS_A_BATCH = 10_000


@dataclass(frozen=True, slots=True)
class PostgresExport:
    """Implements ``ports.export.Export``."""

    url: str = field(repr=False)

    def journal_bounds(self, span: Span) -> Bounds:
        with _reading(self.url) as connection:
            settle_lineage(connection)
            span.check_epoch(epoch_of(connection), shown_url(self.url))
            begin = {"begin": int(span.begin or 0)}
            low, high, snapshot, restored = only(Cursor(connection).execute(*_ordered("bound_journal", begin)))
        return Bounds(low or 0, (high or -1) + 1, snapshot, restored)

    def read_rows(self, table: str, bounds: Bounds | None, span: Span) -> Iterator[list[Sequence[Any]]]:
        end = 2**63 - 1 if span.end is None else span.end
        wanted: dict[str, Any] = {"begin": int(span.begin or 0), "end": int(end)}
        if bounds is not None:
            wanted |= {"low": bounds.low, "high": bounds.high, "seen": bounds.snapshot, "restored": bounds.restored}
        with _reading(self.url) as connection, connection.transaction():
            cursor = Cursor(connection)
            cursor.execute(b"SET TRANSACTION READ ONLY")
            # A cursor on the server, so that neither side holds more than a batch.
            text, parameters = _ordered(f"export_{table}", wanted)
            declare = sql.SQL("DECLARE export NO SCROLL CURSOR FOR ").as_bytes(connection) + text
            cursor.execute(declare, parameters)
            fetch = b"FETCH FORWARD %d FROM export" % ROWS_A_BATCH
            while batch := cursor.execute(fetch, binary=True).fetchall():
                yield list(batch) if table not in WITH_ENVELOPES else [readable(row) for row in batch]


def _ordered(name: str, parameters: dict[str, Any]) -> tuple[bytes, Sequence[Any]]:
    statement = SQL[name]
    return statement.text, in_order(statement.names, parameters)


@contextmanager
def _reading(url: str) -> Iterator[psycopg.Connection[Any]]:
    try:
        with closing(opened(parsed(url))) as connection:
            yield connection
    except psycopg.Error as error:
        raise translate(error, shown_url(url)) from error
