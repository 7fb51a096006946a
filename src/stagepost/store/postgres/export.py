"""Reading whole tables, for Spark: positions by psycopg, and rows by ADBC, which gives them as Arrow."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg

from stagepost.flow.urls import shown_url
from stagepost.ports.export import DiskUsage, Sample, TableQuery
from stagepost.ports.journal import Bounds, Position, Span
from stagepost.store.postgres.address import parsed
from stagepost.store.postgres.arrow_reader import arrow_batches
from stagepost.store.postgres.faults import translate
from stagepost.store.postgres.migrate import epoch_of, settle_lineage
from stagepost.store.postgres.statements import SQL
from stagepost.store.postgres.wire import Cursor, opened
from stagepost.store.sql.database import in_order, only
from stagepost.store.sql.removal_marks import RemovalMarks

ENDLESS = 2**63 - 1
LOCAL_HOSTS = {"localhost", "127.0.0.1", "::1"}


@dataclass(frozen=True, slots=True)
class PostgresExport(RemovalMarks):
    """Implements ``ports.export.Export``."""

    url: str = field(repr=False)

    def journal_bounds(self, span: Span) -> Bounds:
        with _reading(self.url) as connection:
            settle_lineage(connection)
            span.check_epoch(epoch_of(connection), shown_url(self.url))
            found = _run(connection, "bound_journal", _numbers(span))
            low, high, snapshot, restored = only(found)
        return Bounds(low or 0, (high or -1) + 1, snapshot, restored)

    def sample_journal(self, points: Sequence[int]) -> list[Sample]:
        with _reading(self.url) as connection:
            return [Sample(*row) for row in _run(connection, "sample_journal", {"points": list(points)}).fetchall()]

    def cut_journal(self, span: Span, lines: int) -> Position:
        assert span.begin is not None
        assert span.end is not None
        end, width = int(span.begin), lines
        with _reading(self.url) as connection:
            # The index has no order, so a stretch is sorted. It grows until it has enough lines.
            while end < span.end:
                end, width = min(end + width, span.end), 2 * width
                wanted = {"begin": int(span.begin), "end": int(end), "lines": lines}
                first, following = only(_run(connection, "cut_journal", wanted))
                if following is not None:
                    return Position(following if first < following else first + 1, span.end.epoch)
        return span.end

    def _meta(self, key: str) -> str | None:
        with _reading(self.url) as connection:
            row = _run(connection, "find_meta", {"key": key}).fetchone()
        return None if row is None else str(row[0])

    def disk_usage(self) -> DiskUsage:
        with _reading(self.url) as connection:
            used, folder = only(_run(connection, "measure_database", {}))
            return DiskUsage(used, *free_bytes(connection.info.host, folder))

    def read(self, query: TableQuery, bounds: Bounds | None) -> Iterator[Sequence[Any]]:
        wanted = _numbers(query.span)
        if bounds is not None:
            wanted |= {"low": bounds.low, "high": bounds.high, "seen": bounds.snapshot, "restored": bounds.restored}
        return arrow_batches(parsed(self.url), shown_url(self.url), query, wanted)


def free_bytes(host: str, folder: str | None) -> tuple[int | None, str]:
    """Return the free bytes of the server's disk, or None and the reason. PostgreSQL itself does not tell them."""
    if not host.startswith("/") and host not in LOCAL_HOSTS:
        return None, f"the server is on another machine, {host}, and PostgreSQL does not tell the space of its disk"
    if folder is None:
        return None, "this role may not see the server's folder: GRANT pg_read_all_settings TO it"
    try:
        return shutil.disk_usage(folder).free, ""
    except OSError as error:
        return None, f"the server's folder {folder} cannot be seen from here: {error.strerror}"


def _numbers(span: Span) -> dict[str, Any]:
    return {"begin": int(span.begin or 0), "end": int(ENDLESS if span.end is None else span.end)}


def _run(connection: psycopg.Connection[Any], name: str, parameters: dict[str, Any]) -> Cursor:
    statement = SQL[name]
    cursor = Cursor(connection)
    cursor.execute(statement.text, in_order(statement.names, parameters))
    return cursor


@contextmanager
def _reading(url: str) -> Iterator[psycopg.Connection[Any]]:
    try:
        with closing(opened(parsed(url))) as connection:
            yield connection
    except psycopg.Error as error:
        raise translate(error, shown_url(url)) from error
