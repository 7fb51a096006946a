"""A PostgreSQL server of the tests' own, on a private port of the loopback interface, with its data in a folder.

``STAGEPOST_TEST_POSTGRES`` names one that runs already, as a URL of somebody who may create databases; tests that kill
or reconfigure the server are then skipped. Else the Debian packages are used, and installed where that is allowed.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg
from psycopg import sql

VARIABLE = "STAGEPOST_TEST_POSTGRES"
PACKAGES = ["postgresql", "postgresql-contrib"]
START_SECONDS = 60

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "max_prepared_transactions": "50",
    "shared_buffers": "64MB",
    # The tests kill processes, not machines: what the kernel has is not lost.
    "fsync": "off",
    "log_line_prefix": "%m [%p] %a ",
}


class CannotBeHadError(Exception):
    """Why there is no server here."""


class Server:
    """``url`` is of its first database, which is for administration."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._numbers = count(1)

    def new_database(self, template: str = "template1") -> str:
        """The URL of a new database, empty or a copy."""
        name = f"stagepost_{os.getpid()}_{next(self._numbers)}"
        self.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template)))
        return self.url_of(name)

    def drop_database(self, url: str) -> None:
        name = url.rpartition("/")[2]
        self.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def url_of(self, name: str) -> str:
        return f"{self.url.rpartition('/')[0]}/{name}"

    def execute(self, statement: sql.Composed | bytes) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement)


class OwnServer(Server):
    """One that may be stopped, killed and started again."""

    def __init__(self, folder: Path, settings: dict[str, str] | None = None) -> None:
        self._folder = folder
        self._data = folder / "data"
        self._port = free_port()
        self._settings = SETTINGS | (settings or {})
        self._bin = binaries()
        super().__init__(f"postgresql://postgres@127.0.0.1:{self._port}/postgres")

    def make(self) -> None:
        account = account_for_the_server()
        self._folder.mkdir(parents=True, exist_ok=True)
        if account is not None:
            # It must be able to pass through what is above.
            shutil.chown(self._folder, account)
        self._run("initdb", "-D", str(self._data), "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8",
                  "--locale=C.UTF-8")  # fmt: skip
        lines = [f"{name} = '{value}'" for name, value in self._settings.items()]
        with (self._data / "postgresql.conf").open("a") as file:
            file.write("\n".join([*lines, f"port = {self._port}", f"unix_socket_directories = '{self._folder}'", ""]))

    def start(self) -> None:
        self._run("pg_ctl", "-D", str(self._data), "-w", "-t", str(START_SECONDS), "-l", str(self._folder / "log"),
                  "start")  # fmt: skip

    def stop(self, how: str = "fast") -> None:
        """``immediate``: as if it had been killed."""
        self._run("pg_ctl", "-D", str(self._data), "-w", "-m", how, "stop")

    def kill(self) -> None:
        """The server's first process, with SIGKILL; the others notice, and end."""
        pid = int((self._data / "postmaster.pid").read_text().splitlines()[0])
        os.kill(pid, signal.SIGKILL)

    def _run(self, program: str, *arguments: str) -> None:
        command: Sequence[str] = [str(self._bin / program), *arguments]
        account = account_for_the_server()
        if account is not None:
            command = ["runuser", "-u", account, "--", *command]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, cwd=self._folder
        )
        if done.returncode:
            raise CannotBeHadError(f"{program} failed: {done.stdout.strip()}")


def account_for_the_server() -> str | None:
    """It refuses to run as root."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        raise CannotBeHadError("the server does not run as root, and there is no user postgres") from None


def binaries() -> Path:
    """The folder of initdb and pg_ctl, of the newest version there is."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    if not found and (initdb := shutil.which("initdb")):
        return Path(initdb).parent
    if not found:
        install()
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    if not found:
        raise CannotBeHadError("there is no initdb: install the package postgresql")
    return found[-1].parent


def install() -> None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise CannotBeHadError(
            f"PostgreSQL is not installed, and only root may do it: install the package postgresql, or set {VARIABLE}"
        )
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-q"], ["install", "-q", "-y", "--no-install-recommends", *PACKAGES]):
        done = subprocess.run(["apt-get", *command], capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            raise CannotBeHadError(f"apt-get {command[0]} failed: {done.stderr.strip()[-500:]}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(folder: Path) -> Iterator[Server]:
    """Raises ``CannotBeHadError``."""
    url = os.environ.get(VARIABLE)
    if url:
        yield Server(url)
        return
    server = OwnServer(folder)
    server.make()
    server.start()
    try:
        yield server
    finally:
        server.stop("immediate")
