"""Run a private PostgreSQL server for tests and trials, on a free port of the loopback interface.

The caller chooses the folder of its data. The machine must have the server's programs.

    server = PostgresServer(folder)
    server.make()
    server.start()
    App("payments", database=server.url)
    server.stop()
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

# A busy machine takes long to start a server. `pg_ctl` reports a server that cannot start at once.
WAIT_SECONDS = 300

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "max_prepared_transactions": "50",
    "shared_buffers": "64MB",
    "log_line_prefix": "%m [%p] %a ",
}


class ServerUnavailableError(Exception):
    """This machine cannot make or start a PostgreSQL server. The text has the reason."""


class PostgresServer:
    """A server in ``folder``, on ``port`` or a free one. ``url`` names its first database.

    Raises ``ServerUnavailableError`` if the server cannot be made or started.
    """

    def __init__(self, folder: Path, settings: dict[str, str] | None = None, port: int | None = None) -> None:
        self._folder = folder
        self._data = folder / "data"
        self._port = free_port() if port is None else port
        self._settings = SETTINGS | (settings or {})
        self._bin = binaries()
        self.url = f"postgresql://postgres@127.0.0.1:{self._port}/postgres"

    def make(self) -> None:
        account = account_for_the_server()
        self._folder.mkdir(parents=True, exist_ok=True)
        if account is not None:
            # The server's account must be able to enter the folder above its data.
            shutil.chown(self._folder, account)
        self._run("initdb", "-D", str(self._data), "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8",
                  "--locale=C.UTF-8")  # fmt: skip
        settings = self._settings | {"unix_socket_directories": str(self._folder)}
        with (self._data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    @property
    def is_made(self) -> bool:
        return (self._data / "PG_VERSION").exists()

    def start(self) -> None:
        self._run("pg_ctl", "-D", str(self._data), "-w", "-t", str(WAIT_SECONDS), "-l", str(self._folder / "log"),
                  "-o", f"-p {self._port}", "start")  # fmt: skip

    def stop(self, how: str = "fast") -> None:
        """Stop the server. With ``immediate``, it stops without a checkpoint, as if it had been killed."""
        self._run("pg_ctl", "-D", str(self._data), "-w", "-t", str(WAIT_SECONDS), "-m", how, "stop")

    @property
    def pid(self) -> int:
        """The id of the server's first process, while it runs."""
        return int((self._data / "postmaster.pid").read_text(encoding="utf-8").splitlines()[0])

    def _run(self, program: str, *arguments: str) -> None:
        command: Sequence[str] = [str(self._bin / program), *arguments]
        account = account_for_the_server()
        if account is not None:
            command = ["runuser", "-u", account, "--", *command]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, cwd=self._folder
        )
        if done.returncode:
            raise ServerUnavailableError(f"{program} failed: {done.stdout.strip()}")


@contextmanager
def new_database(server: str) -> Iterator[str]:
    """Make a database on the server of a URL, for the length of the block, and return its URL."""
    import psycopg  # noqa: PLC0415 - the extra postgres brings it, and a server runs without it
    from psycopg import sql  # noqa: PLC0415

    name = f"stagepost_test_{uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield urlsplit(server)._replace(path=f"/{name}").geturl()
        finally:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def account_for_the_server() -> str | None:
    """Return the account to run the server as, or None for that of this process. The server refuses to run as root.

    Raises ``ServerUnavailableError`` if this process is root, and there is no user ``postgres``.
    """
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        raise ServerUnavailableError(
            "the server does not run as root, and there is no user postgres: install the package postgresql"
        ) from None


def binaries() -> Path:
    """Return the folder of the newest initdb and pg_ctl. Raises ``ServerUnavailableError`` if there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    if not found and (initdb := shutil.which("initdb")):
        return Path(initdb).parent
    if not found:
        raise ServerUnavailableError("there is no initdb: install the package postgresql")
    return found[-1].parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
