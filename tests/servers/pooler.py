"""PgBouncer before a server of the tests, from the Debian package, which is installed where that is allowed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Literal

import psycopg
from psycopg.conninfo import conninfo_to_dict

from stagepost.testing.postgres import ServerUnavailableError, account_for_the_server
from tests.servers.ports import reserved_port
from tests.servers.postgres import ensure_installed
from tests.waiting import PATIENCE_SECONDS, wait_until

PoolMode = Literal["session", "transaction", "statement"]

SETTINGS = {
    "auth_type": "trust",
    "max_client_conn": "400",
    "default_pool_size": "60",
    # Seconds: a server that is back is found soon.
    "server_login_retry": "1",
}


class Pooler:
    """``url_of`` leads through it."""

    def __init__(self, url: str, mode: PoolMode, folder: Path, **settings: str) -> None:
        server = conninfo_to_dict(url)
        self._user = str(server["user"])
        self._port = reserved_port()
        folder.mkdir()
        (folder / "users").write_text(f'"{self._user}" ""\n')
        said = SETTINGS | {
            "pool_mode": mode,
            "listen_addr": "127.0.0.1",
            "listen_port": str(self._port),
            "auth_file": str(folder / "users"),
            "unix_socket_dir": "",
            **settings,
        }
        lines = ["[databases]", f"* = host={server['host']} port={server['port']}", "[pgbouncer]"]
        (folder / "ini").write_text("\n".join([*lines, *(f"{name} = {value}" for name, value in said.items()), ""]))
        account = account_for_the_server()
        self.log = folder / "log"
        with self.log.open("wb") as log:
            # It refuses to run as root.
            self._process = subprocess.Popen(
                [found(), str(folder / "ini")], stdout=log, stderr=log, stdin=subprocess.DEVNULL, user=account
            )
        wait_until(lambda: self._listens(str(server["dbname"])), "the pooler listens")

    def url_of(self, url: str) -> str:
        return f"postgresql://{self._user}@127.0.0.1:{self._port}/{url.rpartition('/')[2]}"

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()

    def _listens(self, name: str) -> bool:
        if self._process.poll() is not None:
            raise ServerUnavailableError(f"PgBouncer ended: {self.log.read_text()[-500:]}")
        try:
            with closing(psycopg.connect(self.url_of(f"/{name}"), connect_timeout=int(PATIENCE_SECONDS))):
                return True
        except psycopg.OperationalError:
            return False


def found() -> str:
    """Raises ``ServerUnavailableError``."""
    path = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if path is None:
        raise ServerUnavailableError("PgBouncer is not installed: install the package pgbouncer")
    return path


@contextmanager
def pooled(url: str, mode: PoolMode, folder: Path, **settings: str) -> Iterator[Pooler]:
    ensure_installed(found, "pgbouncer")
    pooler = Pooler(url, mode, folder, **settings)
    try:
        yield pooler
    finally:
        pooler.stop()
