"""A PostgreSQL server for the tests.

``STAGEPOST_TEST_POSTGRES`` names one that runs already, as a URL of somebody who may create databases; tests that kill
or reconfigure the server are then skipped. Else the Debian packages are used, and installed where that is allowed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg
from psycopg import sql

from stagepost.testing.postgres import PostgresServer, ServerUnavailableError, binaries
from tests.processes import kill
from tests.servers.ports import reserved_port
from tests.servers.stalling import children, is_suspended
from tests.waiting import wait_until

VARIABLE = "STAGEPOST_TEST_POSTGRES"
PACKAGES = ("postgresql", "postgresql-contrib")
# The tests kill processes, not machines: what the kernel has is not lost.
SETTINGS = {"fsync": "off"}
# Which an app refuses otherwise. Processes that are started here inherit it.
os.environ.setdefault("STAGEPOST_ALLOW", "fsync_off,full_page_writes_off")


class Server:
    """``url`` is of its first database, which is for administration."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._numbers = count(1)

    def new_database(self, template: str = "template1") -> str:
        """The URL of a new database, empty or a copy."""
        name = f"stagepost_{os.getpid()}_{next(self._numbers)}"
        with psycopg.connect(self.url, autocommit=True) as connection:
            # By files, as before version 15: to log each of its blocks takes five times as long.
            by_files = sql.SQL("STRATEGY FILE_COPY" if connection.info.server_version >= 150_000 else "")
            create = sql.SQL("CREATE DATABASE {} TEMPLATE {} {}")
            connection.execute(create.format(sql.Identifier(name), sql.Identifier(template), by_files))
        return self.url_of(name)

    def new_database_in(self, encoding: str) -> str:
        """The URL of a new, empty database whose texts are kept in that encoding."""
        name = f"stagepost_{os.getpid()}_{next(self._numbers)}"
        create = sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING {} LC_COLLATE 'C' LC_CTYPE 'C'")
        self.execute(create.format(sql.Identifier(name), sql.Literal(encoding)))
        return self.url_of(name)

    def drop_database(self, url: str) -> None:
        name = url.rpartition("/")[2]
        for gid in self._in_doubt(name):
            # What a test left in doubt keeps the database, and belongs to nobody any more.
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))
        self.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def _in_doubt(self, name: str) -> list[str]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            found = connection.execute("SELECT gid FROM pg_prepared_xacts WHERE database = %s", (name,))
            return [gid for (gid,) in found]

    def url_of(self, name: str) -> str:
        return f"{self.url.rpartition('/')[0]}/{name}"

    def execute(self, statement: sql.Composed | bytes) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement)


class OwnServer(PostgresServer, Server):
    """One that may be stopped, killed and started again."""

    def __init__(self, folder: Path, settings: dict[str, str] | None = None) -> None:
        ensure_installed()
        PostgresServer.__init__(self, folder, SETTINGS | (settings or {}), reserved_port())
        Server.__init__(self, self.url)

    def kill(self) -> None:
        """Its other processes notice, and end, and suspended ones are killed.

        Until they have, no server can be started on the same data.
        """
        processes = [self.pid, *children(self.pid)]
        os.kill(self.pid, signal.SIGKILL)
        for each in filter(is_suspended, processes):
            kill(each)
        wait_until(
            lambda: not any(Path(f"/proc/{each}").exists() for each in processes), "the killed server's processes end"
        )

    def promote(self) -> None:
        """As if a standby of it had taken its place."""
        self.stop()
        self.start_as_promoted()

    def start_as_promoted(self) -> None:
        (self._data / "standby.signal").touch()
        self.start()
        self.execute(b"SELECT pg_promote()")

    def copy_to(self, folder: Path) -> OwnServer:
        """Another server on a copy of its files, which is not started."""
        self.stop()
        copy = OwnServer(folder)
        # With their owner.
        subprocess.run(["cp", "-a", str(self._folder), str(folder)], check=True)
        self.start()
        return copy

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def is_running(self) -> bool:
        return (self._data / "postmaster.pid").exists()


def ensure_installed(look: Callable[[], object] = binaries, *packages: str) -> None:
    """By one of those who need it; the others wait. ``look``, and this, raise ``ServerUnavailableError``."""
    with (Path(tempfile.gettempdir()) / "stagepost-tests-install.lock").open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        try:
            look()
        except ServerUnavailableError as missing:
            install(packages or PACKAGES, missing)


def install(packages: Sequence[str], missing: ServerUnavailableError) -> None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        otherwise = f"; or set {VARIABLE}" if packages == PACKAGES else ""
        raise ServerUnavailableError(f"{missing}, which only root may do{otherwise}")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-q"], ["install", "-q", "-y", "--no-install-recommends", *packages]):
        done = subprocess.run(["apt-get", *command], capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            raise ServerUnavailableError(f"apt-get {command[0]} failed: {done.stderr.strip()[-500:]}")


@contextmanager
def running(folder: Path) -> Iterator[Server]:
    """Raises ``ServerUnavailableError``."""
    url = os.environ.get(VARIABLE)
    if url:
        yield Server(url)
        return
    with running_alone(folder) as server:
        yield server


@contextmanager
def copied(server: OwnServer) -> Iterator[OwnServer]:
    """A copy of its files, on a server that has been promoted, as a standby is."""
    with tempfile.TemporaryDirectory(prefix="stagepost-postgres-") as folder:
        Path(folder).chmod(0o755)
        copy = server.copy_to(Path(folder) / "copy")
        copy.start_as_promoted()
        try:
            yield copy
        finally:
            copy.stop("immediate")


@contextmanager
def running_alone(folder: Path, settings: dict[str, str] | None = None) -> Iterator[OwnServer]:
    """One that may be killed. Raises ``ServerUnavailableError``."""
    server = OwnServer(folder, settings)
    server.make()
    server.start()
    try:
        yield server
    finally:
        if server.is_running:
            server.stop("immediate")
