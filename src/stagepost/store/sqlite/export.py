"""Reading whole tables, for Spark. Only Python's own ``sqlite3`` may open the file: a second SQLite library in the same
process would drop the first one's locks when it closes, and committed rows would vanish without an error."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from stagepost.flow.journal import Bounds, Span
from stagepost.store.sqlite.connection import BUSY_TIMEOUT_SECONDS
from stagepost.store.sqlite.faults import translate
from stagepost.store.sqlite.statements import SQL

ROWS_A_BATCH = 10_000


def journal_bounds(path: Path, span: Span) -> Bounds:
    """Within the span: a journal's positions are its ids."""
    with _reading(path) as connection:
        (epoch,) = connection.execute(SQL["find_epoch"]).fetchone()
        span.check_epoch(epoch, str(path))
        lowest, highest = connection.execute(SQL["bound_journal"]).fetchone()
    low, high = lowest or 0, (highest or -1) + 1
    return Bounds(max(low, span.begin or low), high if span.end is None else min(high, span.end))


def read_rows(
    path: Path, table: str, bounds: Bounds | None = None, span: Span | None = None
) -> Iterator[list[Sequence[Any]]]:
    """The rows of ``export_<table>.sql`` within ``bounds``, in batches, all of one moment. The bounds are within the
    span already."""
    with _reading(path) as connection:
        parameters = {} if bounds is None else {"low": bounds.low, "high": bounds.high}
        cursor = connection.execute(SQL[f"export_{table}"], parameters)
        while batch := cursor.fetchmany(ROWS_A_BATCH):
            yield batch


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
