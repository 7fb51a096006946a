"""The demo's own PostgreSQL server, for ``make demo STORE=postgres``: what the machine has installed, on a private
port, with its data beside the rest of the demo."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import sql

from stagepost.testing.postgres import PostgresServer

EXISTS = "SELECT 1 FROM pg_database WHERE datname = %s"


@contextmanager
def own_database(folder: Path, name: str) -> Iterator[str]:
    """The URL of a database of that name, made where there is none. The server runs while the block lasts."""
    server = PostgresServer(folder.absolute() / "postgres")
    if not server.is_made:
        server.make()
    server.start()
    try:
        with psycopg.connect(server.url, autocommit=True) as connection:
            if connection.execute(EXISTS, (name,)).fetchone() is None:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        yield f"{server.url.rpartition('/')[0]}/{name}"
    finally:
        server.stop()
