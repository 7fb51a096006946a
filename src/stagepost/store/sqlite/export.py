"""Reading whole tables, for Spark. Only Python's own ``sqlite3`` may open the file: a second SQLite library in the same
process would drop the first one's locks when it closes, and committed rows would vanish without an error."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stagepost.ports.export import TABLES, Condition, DiskUsage, Sample, TableQuery
from stagepost.ports.journal import Bounds, Position, Span
from stagepost.store.sql.export import composed
from stagepost.store.sql.removal_marks import RemovalMarks
from stagepost.store.sqlite.connection import BUSY_TIMEOUT_SECONDS
from stagepost.store.sqlite.faults import translate
from stagepost.store.sqlite.second_file import SUFFIX as APART
from stagepost.store.sqlite.statements import SQL

# Larger batches do not fit into the caches of a processor.
ROWS_A_BATCH = 2_000


@dataclass(frozen=True, slots=True)
class SqliteExport(RemovalMarks):
    """Implements ``ports.export.Export``."""

    path: Path

    def journal_bounds(self, span: Span) -> Bounds:
        # A journal's positions are its ids.
        with _reading(self.path) as connection:
            (epoch,) = connection.execute(SQL["find_epoch"].text).fetchone()
            span.check_epoch(epoch.decode(), str(self.path))
            lowest, highest = connection.execute(SQL["bound_journal"].text).fetchone()
        low, high = lowest or 0, (highest or -1) + 1
        return Bounds(max(low, span.begin or low), high if span.end is None else min(high, span.end))

    def sample_journal(self, points: Sequence[int]) -> list[Sample]:
        with _reading(self.path) as connection:
            found = connection.execute(SQL["sample_journal"].text, (json.dumps(list(points)),)).fetchall()
        return [Sample(*row) for row in found]

    def cut_journal(self, span: Span, lines: int) -> Position:
        assert span.begin is not None
        assert span.end is not None
        return Position(min(span.begin + lines, span.end), span.end.epoch)

    def _meta(self, key: str) -> str | None:
        with _reading(self.path) as connection:
            row = connection.execute(SQL["find_meta"].text, (key,)).fetchone()
        return None if row is None else str(row[0].decode())

    def disk_usage(self) -> DiskUsage:
        with _reading(self.path) as connection:
            spare, pages, _ = connection.execute(SQL["look_at_free_pages"].text).fetchone()
        size = self.path.stat().st_size
        second = self.path.with_name(self.path.name + APART)
        spare_bytes = spare * size // max(pages, 1)
        used = size - spare_bytes + (second.stat().st_size if second.exists() else 0)
        return DiskUsage(used, shutil.disk_usage(self.path.parent).free + spare_bytes)

    def read(self, query: TableQuery, bounds: Bounds | None) -> Iterator[Sequence[Any]]:
        # The bounds are within the span already.
        values: list[Any] = [] if bounds is None else [bounds.low, bounds.high]

        def bind(condition: Condition, value: object) -> str:
            values.append(value)
            return f"?{len(values)}"

        usable = [each for each in query.conditions if _is_exact(query.table, each)]
        statement = SQL[f"export_{query.table}"].text
        text = composed(statement, replace(query, conditions=usable), bind, lambda _, column: column)
        with _reading(self.path) as connection:
            cursor = connection.execute(text, values)
            while rows := cursor.fetchmany(ROWS_A_BATCH):
                yield list(zip(*rows, strict=True))


def _is_exact(table: str, condition: Condition) -> bool:
    """Say whether SQLite's comparison keeps all rows that Spark's keeps.

    A text that is not UTF-8 reaches Spark with replacement characters, which compare differently from its bytes.
    """
    if TABLES[table][condition.column] != "text":
        return True
    values = condition.value if condition.operator == "in" else [condition.value or ""]
    return condition.operator in ("=", "in", "is null", "is not null") and not any("\ufffd" in each for each in values)


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that cannot write, and errors in Stagepost's words."""
    try:
        # Not mode=ro: readers of a file in WAL mode take part in its shared memory.
        with closing(sqlite3.connect(path, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None)) as connection:
            connection.execute("PRAGMA query_only = ON")
            # A text may hold bytes that are not UTF-8. Arrow checks a whole column faster than Python each text.
            connection.text_factory = bytes
            yield connection
    except sqlite3.Error as error:
        raise translate(error, path) from error
