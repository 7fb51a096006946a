"""The example's database, SQLite or PostgreSQL, for its books. The handlers use ``ctx.sql``, the same on both."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

Row = tuple[Any, ...]

SQLITE = "sqlite:///"


class Database:
    """The database at ``url``, which is also Stagepost's. Each read opens a connection of its own."""

    def __init__(self, url: str) -> None:
        self.url = url

    def prepare(self) -> None:
        """Create the example's tables."""
        store = "sqlite" if self._is_sqlite else "postgres"
        schema = resources.files("examples.payments").joinpath(f"schema_{store}.sql").read_text(encoding="utf-8")
        with self._opened() as connection:
            if isinstance(connection, sqlite3.Connection):
                connection.executescript(schema)
            else:
                connection.execute(schema)

    @contextmanager
    def reading(self) -> Iterator[Reading]:
        with self._opened() as connection:
            yield Reading(connection)

    @property
    def _is_sqlite(self) -> bool:
        return self.url.startswith(SQLITE)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        if self._is_sqlite:
            with closing(sqlite3.connect(Path(self.url.removeprefix(SQLITE)), timeout=30)) as file:
                yield file
        else:
            import psycopg  # noqa: PLC0415 - the driver is an extra, which SQLite does not need

            with psycopg.connect(self.url) as server:
                yield server


class Reading:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def rows(self, query: str) -> list[Row]:
        return list(self._connection.execute(query).fetchall())

    def number(self, query: str) -> int:
        ((found,),) = self.rows(query)
        return int(found)
