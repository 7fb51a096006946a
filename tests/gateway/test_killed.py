"""Gateway processes are killed at every step: a retry with the same id loses and doubles nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from stagepost.gateway.steps import GatewayStep
from tests.gateway.gateways import Gateways, stored
from tests.gateway.http_calls import get, post, wait_until_alive
from tests.gateway.shop import ONE, WITH_ID
from tests.processes import ProcessGroup
from tests.quiet_logs import unquiet_lines
from tests.waiting import PATIENCE_SECONDS, wait_until


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
    command.signal(signal.SIGTERM)
    assert command.wait() == 0
    assert group.pids() == []
    assert "Traceback" not in command.log.read_text()


@pytest.mark.more
def test_processes_of_one_gateway_accept_an_id_once_and_with_one_body(gateways: Gateways) -> None:
    gateways.command(processes=3)
    wait_until_alive(gateways.port)

    def post_at_last(number: int) -> str:
        """Return the outcome. A process may answer 503 while another one stores the same id."""
        body = ONE | {"amount": number % 2}
        found = wait_until(lambda: _unless_busy(post(gateways.port, "/orders", body, WITH_ID)), "the store is free")
        return str(found.get("code") or found["status"])

    with ThreadPoolExecutor(12) as threads:
        outcomes = Counter(threads.map(post_at_last, range(12)))
    assert outcomes == {"accepted": 1, "duplicate": 5, "id-conflict": 6}
    assert stored(gateways.url) == 1


def _unless_busy(answer: tuple[int, Any]) -> Any:
    return None if answer[0] == 503 else answer[1]


def test_the_log_of_faults_has_one_line_an_event_with_a_code_and_no_stack(
    gateways: Gateways, group: ProcessGroup
) -> None:
    gateways.command(2, "--json")
    wait_until_alive(gateways.port)
    head = b"POST /orders HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nMessage-Id: x\r\n"
    for data in (
        head + b"Content-Length: 50\r\n\r\n{",
        head + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
        head + b"Content-Length: 2\r\n\r\n{}",
        b"\x16\x03\x01\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nnonsense",
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n",
    ):
        for is_reset in (True, False):
            with closing(socket.create_connection(("127.0.0.1", gateways.port))) as connection:
                if is_reset:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.sendall(data)
    wait_until(lambda: '"gateway-client-left"' in gateways.log, "a process tells of a client that left")
    os.kill(group.pids("gateway_process")[0], 9)
    wait_until(lambda: '"process-ended"' in gateways.log, "the command tells of the killed process")
    wait_until_alive(gateways.port)
    assert post(gateways.port, "/orders", ONE, WITH_ID)[0] == 200
    gateways.started[0].signal(signal.SIGTERM)
    assert gateways.started[0].wait() == 0
    assert unquiet_lines(gateways.log) == []


def test_a_request_at_work_is_finished_when_the_command_is_stopped(gateways: Gateways) -> None:
    command = gateways.command(1)
    wait_until_alive(gateways.port)
    body = json.dumps(ONE).encode()
    head = (
        b"POST /orders HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nMessage-Id: order-1\r\n"
        b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body)
    )
    with closing(socket.create_connection(("127.0.0.1", gateways.port), timeout=PATIENCE_SECONDS)) as connection:
        connection.sendall(head)
        assert connection.recv(1_000).startswith(b"HTTP/1.1 100")
        command.signal(signal.SIGTERM)
        wait_until(lambda: is_refused(gateways.port), "no new connection is accepted")
        connection.sendall(body)
        received = b""
        while part := connection.recv(1_000):
            received += part
    assert received.startswith(b"HTTP/1.1 200")
    assert command.wait() == 0
    assert stored(gateways.url) == 1


def is_refused(port: int) -> bool:
    return get(port, "/healthz")[0] == 0


def test_processes_end_with_their_command(gateways: Gateways, group: ProcessGroup) -> None:
    command = gateways.command(2)
    wait_until_alive(gateways.port)
    command.kill()
    wait_until(lambda: group.pids() == [], "the processes of the killed command have ended")
