"""The receiver around an application: in the process, and in real servers that are killed."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stagepost import App, Redelivery
from stagepost.flow.errors import IllegalCall
from stagepost.gateway.out import Delivery, Posted, deliver
from stagepost.gateway.receiver import CONNECTION, AsgiReceiver, WsgiReceiver, receive
from stagepost.testing import Harness
from tests.places import bare_environment
from tests.processes import ROOT, Process, ProcessGroup
from tests.receiver.application import asgi_application, wsgi_application
from tests.receiver.books import Connect, entries, write
from tests.servers.ports import reserved_port
from tests.waiting import wait_until

KINDS = ["asgi", "wsgi"]

Response = tuple[int, dict[str, str], bytes]
Call = Callable[..., Response]


def call_asgi(app: AsgiReceiver, body: bytes, message_id: str | None = "m1", method: str = "POST") -> Response:
    sent: list[dict[str, Any]] = []
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": body[:3], "more_body": True},
        {"type": "http.request", "body": body[3:]},
    ]

    async def receive_message() -> dict[str, Any]:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(dict(message))

    headers = [] if message_id is None else [(b"Message-Id", message_id.encode("latin-1"))]
    asyncio.run(app({"type": "http", "method": method, "headers": headers}, receive_message, send))
    found = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], found, b"".join(each.get("body", b"") for each in sent[1:])


def call_wsgi(app: WsgiReceiver, body: bytes, message_id: str | None = "m1", method: str = "POST") -> Response:
    started: list[tuple[str, list[tuple[str, str]]]] = []
    environ = {"REQUEST_METHOD": method, "CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body)}
    if message_id is not None:
        environ["HTTP_MESSAGE_ID"] = message_id
    answer = b"".join(app(environ, lambda status, headers: started.append((status, headers))))
    ((status, headers),) = started
    return int(status[:3]), {name.lower(): value for name, value in headers}, answer


@pytest.fixture(params=KINDS)
def call(request: pytest.FixtureRequest, url: str) -> Call:
    if request.param == "asgi":
        asgi = asgi_application(url)
        return lambda *arguments, **options: call_asgi(asgi, *arguments, **options)
    wsgi = wsgi_application(url)
    return lambda *arguments, **options: call_wsgi(wsgi, *arguments, **options)


def test_the_work_is_done_once_and_each_copy_gets_the_first_answer(call: Call, connect: Connect) -> None:
    first = call(b'{"id": "o1"}')
    again = call(b'{"id": "o1"}')
    assert (first[0], first[2]) == (again[0], again[2]) == (200, b'{"receipt": "o1"}')
    assert again[1]["content-type"] == "application/json"
    assert entries(connect) == ["o1"]


@pytest.mark.parametrize("status", [422, 409, 503, 302])
def test_any_other_answer_rolls_back_and_may_be_tried_again(call: Call, connect: Connect, status: int) -> None:
    body = json.dumps({"id": "o1", "status": status}).encode()
    assert call(body)[0] == status
    assert entries(connect) == []
    assert call(body)[0] == status
    assert entries(connect) == []


def test_an_error_of_the_application_rolls_back(call: Call, connect: Connect) -> None:
    with pytest.raises(ValueError, match="it fails"):
        call(b'{"id": "o1", "fails": true}')
    assert entries(connect) == []
    assert call(b'{"id": "o1"}')[0] == 200
    assert entries(connect) == ["o1"]


def test_a_copy_is_told_to_come_back_while_the_first_one_is_at_work(call: Call, connect: Connect) -> None:
    with closing(connect()) as first:
        receive(first, "m1", b'{"id": "o1"}')
        status, headers, _ = call(b'{"id": "o1"}')
        assert (status, headers["retry-after"]) == (425, "1")
        first.rollback()
    assert call(b'{"id": "o1"}')[0] == 200


@pytest.mark.parametrize(
    ("body", "message_id", "status"),
    [(b'{"id": "o1"}', None, 400), (b'{"id": "o1"}', "", 400), (b'{"id": "o1"}', "m" * 201, 400)],
)
def test_a_request_that_cannot_be_recognised_again_is_refused(
    call: Call, connect: Connect, body: bytes, message_id: str | None, status: int
) -> None:
    found = call(body, message_id)
    assert (found[0], found[1]["content-type"]) == (status, "application/problem+json")
    assert entries(connect) == []


def test_an_id_with_another_body_is_the_senders_fault(call: Call, connect: Connect) -> None:
    assert call(b'{"id": "o1"}')[0] == 200
    assert call(b'{"id": "o2"}')[0] == 422
    assert entries(connect) == ["o1"]


def test_a_request_that_is_no_post_passes_through(call: Call) -> None:
    assert call(b"", None, "GET")[2] == b"alive"


def test_a_body_that_is_too_long_or_cut_off_reaches_no_application(url: str, connect: Connect) -> None:
    asgi, wsgi = asgi_application(url), wsgi_application(url)
    asgi._body_max = wsgi._body_max = 5
    assert call_asgi(asgi, b'{"id": "o1"}')[0] == 413
    assert call_wsgi(wsgi, b'{"id": "o1"}')[0] == 413
    short = {"REQUEST_METHOD": "POST", "HTTP_MESSAGE_ID": "m1", "CONTENT_LENGTH": "5", "wsgi.input": io.BytesIO(b"{")}
    statuses: list[str] = []
    list(wsgi(short, lambda status, headers: statuses.append(status)))
    assert statuses == ["400 Bad Request"]

    async def leaves() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        raise AssertionError(message)

    scope = {"type": "http", "method": "POST", "headers": [(b"message-id", b"m1")]}
    asyncio.run(asgi(scope, leaves, send))
    assert entries(connect) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_handled_message_gets_its_answer_under_a_lower_limit(url: str, connect: Connect, kind: str) -> None:
    app: Any = {"asgi": asgi_application, "wsgi": wsgi_application}[kind](url)
    call: Any = {"asgi": call_asgi, "wsgi": call_wsgi}[kind]
    body = json.dumps({"id": "o1", "note": "n" * 200_000}).encode()
    first = call(app, body)
    app._body_max = 5
    again = call(app, body)
    assert (first[0], first[2]) == (again[0], again[2]) == (200, b'{"receipt": "o1"}')
    assert call(app, body + b" ")[0] == 422
    assert call(app, body, "m2")[0] == 413
    with closing(connect()) as other:
        receive(other, "m3", body)
        assert call(app, body, "m3")[0] == 425
        other.rollback()
    assert entries(connect) == ["o1"]


def test_an_application_that_commits_by_itself_is_caught(connect: Connect) -> None:
    def commits(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        write(environ[CONNECTION], "o1")
        environ[CONNECTION].commit()
        start_response("200 OK", [])
        return [b""]

    with pytest.raises(IllegalCall, match="Leave it to the receiver"):
        call_wsgi(WsgiReceiver(commits, connect), b"{}")


class Servers:
    """Servers of the application on one port, one after the other."""

    def __init__(self, kind: str, url: str, folder: Path) -> None:
        self._kind = kind
        self._url = url
        self._group = ProcessGroup()
        self._log = folder / "server.log"
        self._started: list[Process] = []
        self.port = reserved_port()

    def start(self, when: str = "never") -> Process:
        with self._log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.receiver.application", self._kind, self._url, str(self.port), when],
                cwd=ROOT,
                env=bare_environment() | self._group.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        started = Process(process, self._log)
        self._started.append(started)
        wait_until(lambda: self._is_alive() or not started.is_running(), "the consumer answers")
        return started

    def post(self, body: bytes, message_id: str = "m1") -> int:
        """Return the status, 0 without an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with closing(connection):
            try:
                connection.request("POST", "/", body, {"Message-Id": message_id})
                return connection.getresponse().status
            except (OSError, http.client.HTTPException):
                return 0

    def close(self) -> None:
        for each in self._started:
            each.kill()
        self._group.kill_all()
        print(self._log.read_text(errors="replace")[-4000:])  # noqa: T201

    def _is_alive(self) -> bool:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            try:
                connection.request("GET", "/")
                return connection.getresponse().status == 200
            except (OSError, http.client.HTTPException):
                return False


@pytest.fixture
def servers(url: str, tmp_path: Path) -> Iterator[Callable[[str], Servers]]:
    with ExitStack() as stack:
        yield lambda kind: stack.enter_context(closing(Servers(kind, url, tmp_path)))


@pytest.mark.skipif(sys.platform != "linux", reason="it finds processes by Linux's /proc")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("when", "done"),
    [
        pytest.param("work", 0, marks=pytest.mark.more),
        pytest.param("before", 0, marks=pytest.mark.more),
        ("after", 1),
    ],
)
def test_a_consumer_that_is_killed_does_its_work_once(
    servers: Callable[[str], Servers], connect: Connect, kind: str, when: str, done: int
) -> None:
    made = servers(kind)
    killed = made.start(when)
    assert made.post(b'{"id": "o1"}') == 0
    assert killed.wait() == -9
    assert len(entries(connect)) == done
    made.start()
    assert made.post(b'{"id": "o1"}') == 200
    assert made.post(b'{"id": "o1"}') == 200
    assert entries(connect) == ["o1"]


@pytest.mark.more
@pytest.mark.skipif(sys.platform != "linux", reason="it finds processes by Linux's /proc")
@pytest.mark.parametrize("kind", KINDS)
def test_copies_at_the_same_time_do_the_work_once(
    servers: Callable[[str], Servers], connect: Connect, kind: str
) -> None:
    made = servers(kind)
    made.start()
    statuses: list[int] = []
    threads = [threading.Thread(target=lambda: statuses.append(made.post(b'{"id": "o1"}'))) for _ in range(12)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert set(statuses) <= {200, 425}
    assert 200 in statuses
    assert entries(connect) == ["o1"]


@pytest.mark.more
@pytest.mark.skipif(sys.platform != "linux", reason="it finds processes by Linux's /proc")
@pytest.mark.parametrize("kind", KINDS)
def test_a_delivery_to_a_consumer_that_is_killed_after_its_commit_is_done_once(
    servers: Callable[[str], Servers],
    connect: Connect,
    new_sqlite: Callable[[], str],
    kind: str,
) -> None:
    made = servers(kind)
    made.start("after")
    app = App("shop", database=new_sqlite())
    url = f"http://localhost:{made.port}/"
    quick = Redelivery.fixed(every_seconds=0.05, times=50)
    route = deliver(app, "out", Delivery(url=url, allow_private=["localhost"], redelivery=quick, pause_after=0))
    app.start(route, Posted(msgspec.Raw(b'{"id": "o1"}')), flow_id="f1")
    with closing(Harness(app)) as worker:
        assert type(worker.run_one()).__name__ == "Redelivered"
        assert entries(connect) == ["o1"]
        made.start()
        outcomes: list[str] = []

        def is_delivered() -> bool:
            outcomes.append(type(worker.run_one()).__name__)
            return outcomes[-1] == "Completed"

        wait_until(is_delivered, "the copy is answered")
    assert entries(connect) == ["o1"]
    app.close()
