"""The example's database, SQLite or PostgreSQL, as its books read it; the handlers use ``ctx.sql`` and know neither."""

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
    """``url`` is Stagepost's. It is opened for each question, and holds nothing in between."""

    def __init__(self, url: str) -> None:
        self.url = url

    def prepare(self) -> None:
        """Make the example's tables."""
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
            import psycopg  # noqa: PLC0415 - only those who run the example on PostgreSQL need its driver

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
