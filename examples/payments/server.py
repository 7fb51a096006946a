"""Run the demo's own PostgreSQL server, for ``make demo STORE=postgres``.

The server is the one that the machine has installed. It has a private port, and its data is in the demo's folder. The
demo stops it at its end. ``python -m examples.payments.server`` runs it again, to examine the data.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
from psycopg import sql

from stagepost.testing.postgres import PostgresServer, ServerUnavailableError

FOLDER = Path(".demo")
EXISTS = "SELECT 1 FROM pg_database WHERE datname = %s"
OURS = "SELECT datname FROM pg_database WHERE NOT datistemplate AND datname <> 'postgres' ORDER BY datname"


@contextmanager
def own_databases(folder: Path, *names: str) -> Iterator[list[str]]:
    """Yield the URLs of the databases of these names, which are created if needed. The server stops after the block."""
    server = server_in(folder)
    if not server.is_made:
        server.make()
    with running(server):
        with psycopg.connect(server.url, autocommit=True) as connection:
            for name in names:
                if connection.execute(EXISTS, (name,)).fetchone() is None:
                    connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        yield [url_of(server, name) for name in names]


def server_in(folder: Path) -> PostgresServer:
    return PostgresServer(folder.absolute() / "postgres")


def url_of(server: PostgresServer, name: str) -> str:
    return f"{server.url.rpartition('/')[0]}/{name}"


@contextmanager
def running(server: PostgresServer) -> Iterator[None]:
    server.start()
    try:
        yield
    finally:
        server.stop()


def main() -> int:
    try:
        server = server_in(FOLDER)
        if not server.is_made:
            print(f"there is no server in {FOLDER}: `make demo STORE=postgres` makes one", file=sys.stderr)
            return 2
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with suppress(KeyboardInterrupt), running(server):
            with psycopg.connect(server.url) as connection:
                names = [name for (name,) in connection.execute(OURS)]
            for name in names:
                print(f"export STAGEPOST_DATABASE={url_of(server, name)}")
            print("It runs until Ctrl-C.", flush=True)
            signal.pause()
    except ServerUnavailableError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
