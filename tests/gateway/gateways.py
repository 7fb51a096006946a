"""Gateway processes that share one socket, and one database."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from stagepost import App
from stagepost.app.app import engine_of
from tests.gateway.http_calls import listening_socket
from tests.processes import ROOT, Process, ProcessGroup
from tests.servers.ports import reserved_port

SHOP = """
from stagepost import App
from tests.gateway.shop import with_endpoint

app = with_endpoint(App("shop", database={url!r}))
"""
CONFIGURATION = """
app = "killed_shop:app"
bind = "127.0.0.1:{port}"
processes = {processes}
anonymous = "erp"

[[route]]
name = "orders"
to = "orders.place"
"""


class Gateways:
    """Starts gateway processes that share one socket."""

    def __init__(self, url: str, folder: Path, group: ProcessGroup) -> None:
        self.url = url
        self.folder = folder
        self._group = group
        # A command binds to the port after this socket was closed.
        self.listening: socket.socket = listening_socket(reserved_port())
        self.port: int = self.listening.getsockname()[1]
        self.started: list[Process] = []

    def start(self, step: str = "none", times: int = 1) -> Process:
        descriptor = self.listening.fileno()
        arguments = ["-m", "tests.gateway.killed_gateway", self.url, str(descriptor), step, str(times)]
        return self._run(arguments, [descriptor])

    def command(self, processes: int, *options: str) -> Process:
        """Start ``stagepost gateway`` on the port."""
        (self.folder / "killed_shop.py").write_text(SHOP.format(url=self.url))
        return self.command_of(CONFIGURATION.format(port=self.port, processes=processes), *options)

    def command_of(self, configuration: str, *options: str) -> Process:
        """Start ``stagepost gateway`` with that configuration, which binds to the port."""
        self.listening.close()
        (self.folder / "gateway.toml").write_text(configuration)
        return self._run(["-m", "stagepost", "gateway", "gateway.toml", *options], [])

    def _run(self, arguments: list[str], descriptors: list[int]) -> Process:
        log = self.folder / "gateway.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=self.folder,
                env={
                    **os.environ,
                    **self._group.environment,
                    "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
                },
                pass_fds=descriptors,
                stdout=output,
                stderr=output,
            )
        self.started.append(Process(process, log))
        return self.started[-1]

    def close(self) -> None:
        self.listening.close()
        for each in self.started:
            each.kill()

    @property
    def log(self) -> str:
        return (self.folder / "gateway.log").read_text()


def stored(url: str) -> int:
    with closing(engine_of(App("shop", database=url)).access()) as access:
        return sum(each.ready for each in access.session.queue.depths())
