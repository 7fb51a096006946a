"""Reading whole tables, for Spark. Only Python's own ``sqlite3`` may open the file: a second SQLite library in the same
process would drop the first one's locks when it closes, and committed rows would vanish without an error."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stagepost.ports.journal import Bounds, Span
from stagepost.store.sql.export import WITH_ENVELOPES, readable
from stagepost.store.sqlite.connection import BUSY_TIMEOUT_SECONDS
from stagepost.store.sqlite.faults import translate
from stagepost.store.sqlite.statements import SQL

ROWS_A_BATCH = 10_000


@dataclass(frozen=True, slots=True)
class SqliteExport:
    """Implements ``ports.export.Export``."""

    path: Path

    def journal_bounds(self, span: Span) -> Bounds:
        # A journal's positions are its ids.
        with _reading(self.path) as connection:
            (epoch,) = connection.execute(SQL["find_epoch"].text).fetchone()
            span.check_epoch(epoch, str(self.path))
            lowest, highest = connection.execute(SQL["bound_journal"].text).fetchone()
        low, high = lowest or 0, (highest or -1) + 1
        return Bounds(max(low, span.begin or low), high if span.end is None else min(high, span.end))

    def read_rows(self, table: str, bounds: Bounds | None, span: Span) -> Iterator[list[Sequence[Any]]]:
        # The bounds are within the span already.
        with _reading(self.path) as connection:
            parameters = () if bounds is None else (bounds.low, bounds.high)
            cursor = connection.execute(SQL[f"export_{table}"].text, parameters)
            while batch := cursor.fetchmany(ROWS_A_BATCH):
                yield batch if table not in WITH_ENVELOPES else [readable(row) for row in batch]


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that cannot write, and errors in Stagepost's words."""
    try:
        # Not mode=ro: readers of a file in WAL mode take part in its shared memory.
        with closing(sqlite3.connect(path, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None)) as connection:
            connection.execute("PRAGMA query_only = ON")
            # A dead letter keeps its bytes as they came, and these need not be text.
            connection.text_factory = _readable
            yield connection
    except sqlite3.Error as error:
        raise translate(error, path) from error


def _readable(data: bytes) -> str:
    return data.decode(errors="replace")
