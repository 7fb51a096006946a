"""Raw bytes on a real connection: no request is read as two, none is half read, and the log stays clean."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import closing

import h11
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stagepost.gateway.http1 import StrictConnection
from stagepost.gateway.problems import KINDS
from stagepost.gateway.server import HEADERS_SECONDS
from tests.gateway.gateways import Gateways, stored
from tests.gateway.http_calls import get, post, wait_until_alive
from tests.gateway.shop import ONE, WITH_ID
from tests.processes import ProcessGroup
from tests.waiting import PATIENCE_SECONDS

HEAD = b"POST /orders HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nMessage-Id: raw\r\n"
BODY = b'{"account":"a","invoice":1}'
LENGTH = b"Content-Length: 27\r\n"
IN_CHUNKS = b"\r\n1b\r\n" + BODY + b"\r\n0\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"

# Each is one request, with a body of which a careless parser makes something else.
REFUSED = {
    "both-framings": HEAD + LENGTH + CHUNKED + IN_CHUNKS,
    "two-lengths": HEAD + LENGTH + b"Content-Length: 29\r\n\r\n" + BODY + b"  ",
    "signed-length": HEAD + b"Content-Length: +27\r\n\r\n" + BODY,
    "length-with-underscore": HEAD + b"Content-Length: 2_7\r\n\r\n" + BODY,
    "negative-length": HEAD + b"Content-Length: -27\r\n\r\n" + BODY,
    "identity-chunked": HEAD + b"Transfer-Encoding: identity, chunked\r\n" + IN_CHUNKS,
    "unknown-encoding": HEAD + b"Transfer-Encoding: xchunked\r\n" + IN_CHUNKS,
    "chunk-with-underscore": HEAD + CHUNKED + IN_CHUNKS.replace(b"1b", b"1_b", 1),
    "chunk-negative": HEAD + CHUNKED + IN_CHUNKS.replace(b"1b", b"-1b", 1),
    "no-host": HEAD.replace(b"Host: x\r\n", b"") + LENGTH + b"\r\n" + BODY,
    "two-hosts": HEAD + b"Host: y\r\n" + LENGTH + b"\r\n" + BODY,
    "blank-before-colon": HEAD + b"Content-Length : 27\r\n\r\n" + BODY,
    "header-of-64-kib": HEAD + b"X: " + b"y" * 65_536 + b"\r\n" + LENGTH + b"\r\n" + BODY,
    "1000-headers": HEAD + b"".join(b"X-%d: 1\r\n" % n for n in range(1000)) + LENGTH + b"\r\n" + BODY,
    "bad-version": HEAD.replace(b"HTTP/1.1", b"HTTP/9.9") + LENGTH + b"\r\n" + BODY,
    "chunks-in-http-1.0": HEAD.replace(b"HTTP/1.1", b"HTTP/1.0") + CHUNKED + IN_CHUNKS,
    "null-in-header": HEAD + b"X: a\0b\r\n" + LENGTH + b"\r\n" + BODY,
    "coding-folded": HEAD + b"Transfer-Encoding:\r\n chunked\r\n" + IN_CHUNKS,
    "folded-header": HEAD + b"X: a\r\n\tb\r\n" + LENGTH + b"\r\n" + BODY,
    "first-header-folded": HEAD.replace(b"Host: x", b" Host: x", 1) + LENGTH + b"\r\n" + BODY,
    "header-behind-bare-lf": HEAD + b"X: a\nX-Client-Subject: CN=erp\r\n" + LENGTH + b"\r\n" + BODY,
    "bare-lf-at-each-line": (HEAD + LENGTH + b"\r\n").replace(b"\r\n", b"\n") + BODY,
    "bare-lf-at-the-end-of-the-head": HEAD + LENGTH + b"\n" + BODY,
    "bare-cr-in-header": HEAD + b"X: a\rb\r\n" + LENGTH + b"\r\n" + BODY,
    "bare-lf-in-chunk-extension": HEAD + CHUNKED + IN_CHUNKS.replace(b"1b", b"1b;a\nb", 1),
    "bare-lf-behind-chunk-size": HEAD + CHUNKED + IN_CHUNKS.replace(b"1b\r\n", b"1b\n", 1),
    "chunk-longer-than-its-size": HEAD + CHUNKED + IN_CHUNKS.replace(b"1b", b"1a", 1),
    "two-codings": HEAD + CHUNKED + b"Transfer-Encoding: identity\r\n" + IN_CHUNKS,
    "lengths-in-one-header": HEAD + b"Content-Length: 27, 29\r\n\r\n" + BODY + b"  ",
    "http-2-without-a-switch": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "bare-lf-before-the-request": b"\n" + HEAD + LENGTH + b"\r\n" + BODY,
    "two-crs-before-the-request": b"\r\r\n" + HEAD + LENGTH + b"\r\n" + BODY,
    "line-of-blanks-before-the-request": b" \r\n" + HEAD + LENGTH + b"\r\n" + BODY,
    "no-request": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
}
# Each is one valid request, and stays one.
READ_ONCE = {
    "chunk-extension": HEAD + CHUNKED + IN_CHUNKS.replace(b"1b", b'1b;name="a b"', 1),
    "trailer": HEAD + CHUNKED + IN_CHUNKS.replace(b"0\r\n\r\n", b"0\r\nContent-Length: 5\r\n\r\n"),
    "one-length-twice": HEAD + LENGTH + LENGTH + b"\r\n" + BODY,
    "switch-with-a-body": HEAD + b"Connection: Upgrade\r\nUpgrade: h2c\r\n" + LENGTH + b"\r\n" + BODY,
}
SETTINGS = b"HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"
WEBSOCKET_KEY = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
SWITCHES = {
    "h2c": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n" + SETTINGS,
    "h2c-without-connection": b"Upgrade: h2c\r\n",
    "websocket": b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" + WEBSOCKET_KEY,
    "half-a-websocket": b"Connection: Upgrade\r\nUpgrade: websocket\r\n",
}
# A transfer coding or a version that the server does not know.
NOT_SUPPORTED = (501, 505)
BEHIND = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateways]:
    """One process for all tests of this module: each leaves it as it was."""
    folder, group = tmp_path_factory.mktemp("raw"), ProcessGroup()
    made = Gateways(f"sqlite:///{folder}/shop.db", folder, group)
    made.start()
    wait_until_alive(made.port)
    yield made
    made.close()
    group.kill_all()


def answers_to(
    port: int, data: bytes, *, leaves: bool = False, ends: bool = False, seconds: float = PATIENCE_SECONDS
) -> bytes:
    """Send the bytes, and return all that comes until the server closes the connection."""
    with closing(socket.create_connection(("127.0.0.1", port), timeout=seconds)) as connection:
        received = b""
        try:
            connection.sendall(data)
            if leaves:
                return b""
            if ends:
                connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65_536):
                received += part
        except (ConnectionError, TimeoutError):
            pass
        return received


def statuses(received: bytes) -> list[int]:
    return [int(each) for each in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]


@pytest.mark.parametrize("sent", REFUSED.values(), ids=REFUSED)
def test_an_ambiguous_request_is_refused_and_ends_its_connection(sent: bytes, gateway: Gateways) -> None:
    before = stored(gateway.url)
    # A second request behind it must not be answered: it may be the first one's body.
    received = answers_to(gateway.port, sent + BEHIND)
    (status,) = statuses(received)
    assert 400 <= status < 500 or status in NOT_SUPPORTED
    problem = json.loads(received.partition(b"\r\n\r\n")[2])
    assert problem["code"] in KINDS
    assert problem["status"] == status
    assert get(gateway.port, "/healthz")[0] == 200
    assert stored(gateway.url) == before
    assert "Traceback" not in gateway.log


@pytest.mark.parametrize("sent", READ_ONCE.values(), ids=READ_ONCE)
def test_an_unusual_request_is_one_request(sent: bytes, gateway: Gateways, request: pytest.FixtureRequest) -> None:
    before = stored(gateway.url)
    sent = sent.replace(b"raw", request.node.callspec.id.encode())
    assert statuses(answers_to(gateway.port, sent + BEHIND)) == [200, 200]
    assert stored(gateway.url) == before + 1


@pytest.mark.parametrize("headers", SWITCHES.values(), ids=SWITCHES)
def test_no_request_switches_to_another_protocol(headers: bytes, gateway: Gateways) -> None:
    # A proxy passes all bytes on behind a 101. A client could send a header there that the proxy removes elsewhere.
    sent = b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n"
    assert statuses(answers_to(gateway.port, sent + BEHIND)) == [200, 200]


def test_two_requests_on_one_connection_are_answered_in_order(gateway: Gateways) -> None:
    before = stored(gateway.url)
    one = HEAD.replace(b"raw", b"in-order") + LENGTH + b"\r\n" + BODY
    assert statuses(answers_to(gateway.port, one + BEHIND)) == [200, 200]
    assert stored(gateway.url) == before + 1


@pytest.mark.parametrize("lines", [1, 3])
def test_empty_lines_before_a_request_are_ignored(lines: int, gateway: Gateways) -> None:
    # RFC 9112, 2.2. Some clients send an empty line behind a body, which Content-Length does not count.
    before, empty = stored(gateway.url), lines * b"\r\n"
    one = HEAD.replace(b"raw", b"behind-%d-lines" % lines) + LENGTH + b"\r\n" + BODY
    assert statuses(answers_to(gateway.port, empty + one + empty + BEHIND)) == [200, 200]
    assert stored(gateway.url) == before + 1


def test_an_empty_line_may_arrive_byte_by_byte() -> None:
    connection = StrictConnection(h11.SERVER)
    for each in (b"\r", b"\n", b"\r"):
        connection.receive_data(each)
        assert connection.next_event() is h11.NEED_DATA
    connection.receive_data(b"\n" + BEHIND)
    assert isinstance(connection.next_event(), h11.Request)


@pytest.mark.parametrize("behind", [b"\r\n", BEHIND], ids=["blank line", "request"])
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_bytes_behind_the_last_request_of_a_connection_do_not_change_its_answer(
    version: bytes, behind: bytes, gateway: Gateways, request: pytest.FixtureRequest
) -> None:
    before = stored(gateway.url)
    head = HEAD.replace(b"HTTP/1.1", b"HTTP/" + version).replace(b"raw", request.node.callspec.id.encode())
    sent = head + b"Connection: close\r\n" + LENGTH + b"\r\n" + BODY + behind
    # A 400 would tell the producer that its message is not accepted.
    assert statuses(answers_to(gateway.port, sent)) == [200]
    assert stored(gateway.url) == before + 1


@pytest.mark.parametrize("framing", [b"Content-Length: 60\r\n", CHUNKED])
def test_a_connection_that_ends_in_mid_body_stores_nothing_even_where_the_body_looks_whole(
    framing: bytes, gateway: Gateways
) -> None:
    before = stored(gateway.url)
    part = BODY if framing != CHUNKED else IN_CHUNKS[2 : -len(b"0\r\n\r\n")]
    request = HEAD + framing + b"\r\n" + part
    assert 200 not in statuses(answers_to(gateway.port, request, ends=True))
    answers_to(gateway.port, request, leaves=True)
    assert post(gateway.port, "/orders", ONE, {"Message-Id": framing.decode().strip()})[0] == 200
    assert stored(gateway.url) == before + 1
    assert "Traceback" not in gateway.log


@pytest.mark.more
def test_slow_headers_are_given_up_however_steadily_they_come(gateway: Gateways) -> None:
    with closing(socket.create_connection(("127.0.0.1", gateway.port), timeout=PATIENCE_SECONDS)) as connection:
        connection.settimeout(HEADERS_SECONDS / 20)
        connection.sendall(b"POST /orders HTTP/1.1\r\nX: ")
        for _ in range(int(PATIENCE_SECONDS / HEADERS_SECONDS) * 20):
            try:
                connection.sendall(b"y")
                if connection.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            raise AssertionError("the server still waits for the header")


@pytest.mark.more
def test_many_half_open_connections_keep_nobody_out(gateway: Gateways) -> None:
    connections = [socket.create_connection(("127.0.0.1", gateway.port)) for _ in range(400)]
    try:
        for each in connections:
            each.sendall(HEAD)
        assert get(gateway.port, "/healthz")[0] == 200
        assert post(gateway.port, "/orders", ONE, WITH_ID)[0] == 200
    finally:
        for each in connections:
            each.close()


TOKENS = st.sampled_from(
    [b"POST", b"GET", b" ", b"/orders", b"/any/messages/%ff", b"HTTP/1.1", b"\r\n", b"\n", b":", b"Host", b"x",
     b"Content-Length", b"3", b"Transfer-Encoding", b"chunked", b"Upgrade", b"h2c", b"websocket", b"Connection",
     b"HTTP2-Settings", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"Expect", b"100-continue", b"[1]", b"0", b"\0", b"\xff"]
)  # fmt: skip


@pytest.mark.more
def test_no_bytes_at_all_are_an_internal_error(gateway: Gateways) -> None:
    @settings(max_examples=400, suppress_health_check=list(HealthCheck))
    @given(st.lists(TOKENS | st.binary(max_size=20), max_size=25), st.booleans())
    def send(parts: list[bytes], leaves: bool) -> None:
        found = statuses(answers_to(gateway.port, b"".join(parts), leaves=leaves, seconds=0.05))
        assert not any(each >= 500 and each not in NOT_SUPPORTED for each in found)

    before = stored(gateway.url)
    send()
    assert get(gateway.port, "/healthz")[0] == 200
    assert stored(gateway.url) == before
    assert "Traceback" not in gateway.log
    assert "gateway-defect" not in gateway.log
