"""A Redis server for the tests, from the Debian package, which is installed where that is allowed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from redis import Redis, RedisError

from stagepost.testing.postgres import ServerUnavailableError
from tests.servers.ports import reserved_port
from tests.servers.postgres import ensure_installed
from tests.waiting import PATIENCE_SECONDS, wait_until

PACKAGE = "redis-server"
DURABLE = ("--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction")


class RedisServer:
    """A server in ``folder``, on a free port of the loopback interface. Its data stays there when it is killed."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.port = reserved_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, settings: tuple[str, ...] = DURABLE) -> None:
        place = ("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder), "--save", "")
        with (self._folder / "out").open("ab") as out:
            self._process = subprocess.Popen([PACKAGE, *place, *settings], stdout=out, stderr=out)
        wait_until(self._answers, "Redis answers PING")

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE_SECONDS)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def client(self) -> Redis:
        return Redis(port=self.port, socket_timeout=PATIENCE_SECONDS)

    def clear(self) -> None:
        with self.client() as client:
            client.flushall()

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise ServerUnavailableError(f"Redis ended: {(self._folder / 'out').read_text(errors='replace')[-500:]}")
        try:
            with Redis(port=self.port, socket_timeout=PATIENCE_SECONDS) as probe:
                return bool(probe.ping())
        except RedisError:
            return False


def found() -> str:
    """Raises ``ServerUnavailableError``."""
    path = shutil.which(PACKAGE)
    if path is None:
        raise ServerUnavailableError(f"Redis is not installed: install the package {PACKAGE}")
    return path


@contextmanager
def running_redis(folder: Path) -> Iterator[RedisServer]:
    """Raises ``ServerUnavailableError``."""
    ensure_installed(found, PACKAGE)
    server = RedisServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()
