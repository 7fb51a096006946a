"""The limit of open connections: who gets in, who goes, and who waits."""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
import struct
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stagepost.flow.errors import DeclarationError
from stagepost.gateway import connections, server
from stagepost.gateway.configuration import Configuration
from stagepost.gateway.http1 import Http1Protocol
from stagepost.gateway.limits import Limits
from stagepost.gateway.server import allow_files, run_server
from tests.gateway.http_calls import listening_socket
from tests.waiting import PATIENCE_SECONDS

HALF_A_HEAD = b"GET /x HTTP/1.1\r\nHost: x\r\n"
REQUEST = HALF_A_HEAD + b"\r\n"
# More than the buffers of a connection hold.
LARGE = b"x" * 32_000_000

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Held:
    """An ASGI app that holds its requests at work until it is told to answer them."""

    def __init__(self, body: bytes = b"") -> None:
        self.at_work = 0
        self.answer = asyncio.Event()
        self._body = body

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        self.at_work += 1
        await self.answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": self._body})


def limited(limits: Limits) -> Configuration:
    return Configuration(limits=limits, grace=0.1)


@asynccontextmanager
async def served(
    app: Any, configuration: Configuration, folder: Path = Path(), listening: socket.socket | None = None
) -> AsyncIterator[Callable[..., Awaitable[Stream]]]:
    """Serve the app, and return a function that opens a connection, over TLS if it gets a context."""
    listening, stop = listening or listening_socket(), asyncio.Event()
    port = listening.getsockname()[1]
    serving = asyncio.create_task(run_server(app, configuration, folder, listening.detach(), stop))
    opened: list[asyncio.StreamWriter] = []

    async def connect(tls: ssl.SSLContext | None = None) -> Stream:
        name = None if tls is None else "localhost"
        made = await asyncio.open_connection("127.0.0.1", port, limit=1024, ssl=tls, server_hostname=name)
        opened.append(made[1])
        return made

    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield connect
    finally:
        for each in opened:
            each.close()
        stop.set()
        await serving


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def status_of(answer: bytes) -> bytes:
    return answer[:12]


@pytest.fixture(autouse=True)
def patient_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection ends for its slow head, so only the limit ends one."""
    monkeypatch.setattr(connections, "UNDISTURBED_SECONDS", 0.2)
    monkeypatch.setattr(server, "HEADERS_SECONDS", 2 * PATIENCE_SECONDS)


def test_a_burst_beyond_the_limit_ends_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine a request may take long to be read.
    monkeypatch.setattr(connections, "UNDISTURBED_SECONDS", 2 * PATIENCE_SECONDS)

    async def main() -> None:
        app = Held()
        app.answer.set()

        async def exchange() -> bytes:
            reader, writer = await connect()
            writer.write(HALF_A_HEAD + b"Connection: close\r\n\r\n")
            return status_of(await reader.readuntil(b"\r\n\r\n"))

        async with served(app, limited(Limits(connections=2))) as connect:
            assert set(await asyncio.gather(*(exchange() for _ in range(20)))) == {b"HTTP/1.1 200"}

    asyncio.run(main())


def test_a_connection_beyond_the_limit_takes_the_place_of_the_one_that_waits_longest_for_a_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        app = Held()
        app.answer.set()
        async with served(app, limited(Limits(connections=3))) as connect:
            streams = [await connect() for _ in range(3)]
            for _, writer in streams:
                writer.write(HALF_A_HEAD)
            streams.append(await connect())
            streams[3][1].write(REQUEST)
            assert status_of(await streams[3][0].readuntil(b"\r\n\r\n")) == b"HTTP/1.1 200"
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await streams[0][0].readexactly(1)
            streams[1][1].write(b"\r\n")
            assert status_of(await streams[1][0].readuntil(b"\r\n\r\n")) == b"HTTP/1.1 200"

    asyncio.run(main())
    assert [each.event for each in caplog.records if hasattr(each, "event")] == ["gateway-connections-full"]


def test_a_connection_beyond_the_limit_waits_while_all_have_requests_at_work(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        app = Held()
        async with served(app, limited(Limits(connections=2))) as connect:
            streams = [await connect() for _ in range(2)]
            for _, writer in streams:
                writer.write(REQUEST)
            await until(lambda: app.at_work == 2)
            streams.append(await connect())
            streams[2][1].write(REQUEST)
            await until(lambda: "connections are at their limit" in caplog.text)
            assert app.at_work == 2
            app.answer.set()
            for reader, _ in streams:
                assert status_of(await reader.readuntil(b"\r\n\r\n")) == b"HTTP/1.1 200"

    asyncio.run(main())


def test_a_process_at_its_limit_leaves_a_new_connection_to_another_process(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        app = Held()
        with listening_socket() as listening:
            async with served(app, limited(Limits(connections=1)), listening=listening.dup()) as connect:
                _, writer = await connect()
                writer.write(REQUEST)
                await until(lambda: app.at_work == 1)
                await connect()
                await until(lambda: "connections are at their limit" in caplog.text)
                # The other process.
                accepted, _ = listening.accept()
                accepted.close()

    asyncio.run(main())


def test_a_client_that_does_not_take_its_answer_loses_its_connection() -> None:
    async def main() -> None:
        app = Held(LARGE)
        app.answer.set()
        async with served(app, limited(Limits(connections=1, body_seconds=0.2))) as connect:
            _, writer = await connect()
            writer.write(REQUEST)
            await until(lambda: app.at_work == 1)
            reader, writer = await connect()
            writer.write(REQUEST)
            assert status_of(await reader.readuntil(b"\r\n\r\n")) == b"HTTP/1.1 200"

    asyncio.run(main())


@pytest.mark.parametrize("is_at_work", [False, True], ids=["between requests", "during its request"])
def test_a_client_that_leaves_gives_its_place_back_at_once(*, is_at_work: bool) -> None:
    held = Held()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and is_at_work and not held.at_work:
            held.at_work += 1
            while (await receive())["type"] != "http.disconnect":
                pass
        held.answer.set()
        await held(scope, receive, send)

    async def main() -> None:
        async with served(app, limited(Limits(connections=1))) as connect:
            reader, writer = await connect()
            writer.write(REQUEST)
            await until(lambda: held.at_work == 1)
            if not is_at_work:
                await reader.readuntil(b"\r\n\r\n")
            # The end of the client's bytes would be the end of the connection for h11, a reset is not.
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            reader, writer = await connect()
            writer.write(REQUEST)
            assert status_of(await reader.readuntil(b"\r\n\r\n")) == b"HTTP/1.1 200"

    asyncio.run(main())


def test_an_answer_before_the_end_of_a_body_ends_its_connection() -> None:
    async def main() -> None:
        app = Held()
        app.answer.set()
        async with served(app, limited(Limits(connections=1))) as connect:
            reader, writer = await connect()
            # More chunks than the server keeps for an app that does not read them.
            writer.write(HALF_A_HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + 100 * b"1\r\nx\r\n")
            assert status_of(await reader.read()) == b"HTTP/1.1 200"
            reader, writer = await connect()
            writer.write(REQUEST)
            assert status_of(await reader.readuntil(b"\r\n\r\n")) == b"HTTP/1.1 200"

    asyncio.run(main())


def test_a_connection_that_fails_in_the_server_is_one_line_of_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> None:
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr(Http1Protocol, "handle", fail)

    async def main() -> None:
        async with served(Held(), limited(Limits())) as connect:
            reader, writer = await connect()
            writer.write(REQUEST)
            assert await reader.read() == b""

    asyncio.run(main())
    (line,) = caplog.records
    assert (line.__dict__["event"], line.exc_info) == ("gateway-connection-failed", None)
    assert "first line" in line.message
    assert "\n" not in line.message


def test_a_client_that_begins_no_tls_handshake_makes_room(tmp_path: Path) -> None:
    options = "-x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    files = ["-keyout", "key.pem", "-out", "certificate.pem"]
    subprocess.run(["openssl", "req", *options.split(), *files], cwd=tmp_path, check=True, capture_output=True)
    configuration = Configuration(
        limits=Limits(connections=2), certificate="certificate.pem", certificate_key="key.pem", grace=0.1
    )
    trusted = ssl.create_default_context(cafile=tmp_path / "certificate.pem")

    async def main() -> None:
        app = Held()
        app.answer.set()
        async with served(app, configuration, tmp_path) as connect:
            silent = [await connect() for _ in range(2)]
            reader, writer = await connect(trusted)
            writer.write(REQUEST)
            assert status_of(await reader.readuntil(b"\r\n\r\n")) == b"HTTP/1.1 200"
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await silent[0][0].readexactly(1)

    asyncio.run(main())


def test_a_limit_of_connections_beyond_the_open_files_of_the_system_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1_000))
    with pytest.raises(DeclarationError, match=r"connections needs 1128 open files, and a process may open 1000 here"):
        allow_files(1_128)


def test_a_process_raises_its_own_limit_of_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4_000))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: raised.append(limits))
    allow_files(1_128)
    allow_files(100)
    assert raised == [(1_128, 4_000)]
