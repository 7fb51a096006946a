"""Gateway processes are killed at every step: a retry with the same id loses and doubles nothing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stagepost import App
from stagepost.app.app import engine_of
from stagepost.gateway.steps import GatewayStep
from tests.gateway.http_calls import get, listening_socket, post, wait_until_alive
from tests.gateway.shop import ONE, WITH_ID
from tests.processes import ROOT, Process, ProcessGroup
from tests.waiting import wait_until

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


@pytest.fixture
def group() -> Iterator[ProcessGroup]:
    made = ProcessGroup()
    yield made
    made.kill_all()


class Gateways:
    """Starts gateway processes that share one socket."""

    def __init__(self, url: str, folder: Path, group: ProcessGroup) -> None:
        self.url = url
        self.folder = folder
        self._group = group
        self.listening: socket.socket = listening_socket()
        self.port: int = self.listening.getsockname()[1]
        self.started: list[Process] = []

    def start(self, step: str = "none", times: int = 1) -> Process:
        descriptor = self.listening.fileno()
        arguments = ["-m", "tests.gateway.killed_gateway", self.url, str(descriptor), step, str(times)]
        return self._run(arguments, [descriptor])

    def command(self, processes: int) -> Process:
        """Start ``stagepost gateway`` on the port."""
        self.listening.close()
        (self.folder / "killed_shop.py").write_text(SHOP.format(url=self.url))
        text = CONFIGURATION.format(port=self.port, processes=processes)
        (self.folder / "gateway.toml").write_text(text)
        return self._run(["-m", "stagepost", "gateway", "gateway.toml"], [])

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


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.more)])
def gateways(request: pytest.FixtureRequest, tmp_path: Path, group: ProcessGroup) -> Iterator[Gateways]:
    make: Callable[[], str] = request.getfixturevalue(f"new_{request.param}")
    made = Gateways(make(), tmp_path, group)
    yield made
    made.listening.close()
    for each in made.started:
        each.kill()


def stored(url: str) -> int:
    with closing(engine_of(App("shop", database=url)).access()) as access:
        return sum(each.ready for each in access.session.queue.depths())


@pytest.mark.parametrize("step", GatewayStep)
def test_a_message_whose_gateway_is_killed_at_a_step_is_stored_once_after_the_retry(
    step: GatewayStep, gateways: Gateways
) -> None:
    killed = gateways.start(step)
    assert post(gateways.port, "/orders", ONE, WITH_ID)[0] == 0
    assert killed.wait() == -9
    was_stored = step in (GatewayStep.COMMITTED, GatewayStep.ANSWERED)
    assert stored(gateways.url) == (1 if was_stored else 0)
    gateways.start()
    status, document = post(gateways.port, "/orders", ONE, WITH_ID)
    assert (status, document["status"]) == (200, "duplicate" if was_stored else "accepted")
    assert stored(gateways.url) == 1


def test_the_command_replaces_a_killed_process_and_stops_in_good_order(gateways: Gateways, group: ProcessGroup) -> None:
    command = gateways.command(processes=1)
    wait_until_alive(gateways.port)
    assert post(gateways.port, "/orders", ONE, WITH_ID)[1]["status"] == "accepted"
    (child,) = group.pids("gateway_process")
    os.kill(child, 9)
    wait_until(lambda: [pid for pid in group.pids("gateway_process") if pid != child], "another process is there")
    wait_until_alive(gateways.port)
    assert post(gateways.port, "/orders", ONE, WITH_ID)[1]["status"] == "duplicate"
    assert get(gateways.port, "/orders/messages/order-1")[1]["status"] == "waiting"
    command.signal(15)  # type: ignore[arg-type]  # a number is as good as its name
    assert command.wait() == 0
    assert group.pids() == []
    assert "Traceback" not in command.log.read_text()


@pytest.mark.more
def test_processes_of_one_gateway_accept_an_id_once(gateways: Gateways) -> None:
    gateways.command(processes=3)
    wait_until_alive(gateways.port)
    outcomes = [post(gateways.port, "/orders", ONE, WITH_ID)[1]["status"] for _ in range(12)]
    assert outcomes == ["accepted"] + 11 * ["duplicate"]
    assert stored(gateways.url) == 1
