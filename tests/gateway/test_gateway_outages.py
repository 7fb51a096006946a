"""A store that is away, busy or full: 503 with Retry-After, nothing half accepted, and one log line an event."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from stagepost import App
from stagepost.app.app import engine_of
from stagepost.flow.errors import (
    CommitUnknown,
    StoreContention,
    StoreError,
    StoreExhausted,
    StoreRefused,
    StoreUnavailable,
)
from stagepost.flow.initiation import Acceptance, Verdict
from stagepost.gateway import Limits, Route, asgi, group_commit
from stagepost.gateway.steps import GatewayStep
from tests.faults.disks import full, mounted
from tests.gateway.conftest import NewGateway
from tests.gateway.shop import ONE, ORDERS, WITH_ID, stored, with_endpoint
from tests.waiting import PATIENCE_SECONDS, wait_until

ERRORS = {
    StoreUnavailable: ("store-unavailable", 503),
    StoreExhausted: ("store-full", 503),
    StoreContention: ("store-busy", 503),
    CommitUnknown: ("outcome-unknown", 503),
    StoreRefused: ("store-refused", 422),
}

Write = Callable[[Sequence[Acceptance]], list[Verdict]]


@contextmanager
def writing(app: App, write: Callable[[Write, Sequence[Acceptance]], list[Verdict]]) -> Iterator[None]:
    """Replace the way in which groups are written."""
    starter = engine_of(app).flow_starter
    real = starter.write_each
    starter.write_each = lambda acceptances: write(real, acceptances)  # type: ignore[method-assign]  # a fault of the store
    try:
        yield
    finally:
        starter.write_each = real  # type: ignore[method-assign]  # as it was


class Valid:
    """A listener that waits until so many messages have passed all checks. All but the last wait for their commit."""

    def __init__(self, messages: int) -> None:
        self._missing = messages
        self._all = threading.Event()

    def __call__(self, step: GatewayStep, message_ids: Sequence[str]) -> None:
        if step == GatewayStep.VALID:
            self._missing -= len(message_ids)
            if self._missing == 0:
                self._all.set()

    def wait(self) -> None:
        assert self._all.wait(PATIENCE_SECONDS), f"{self._missing} messages have not passed all checks"


@pytest.mark.parametrize("error", ERRORS, ids=lambda each: each.__name__)
def test_each_error_of_the_store_has_its_code_and_only_the_log_has_its_text(
    error: type[StoreError], sqlite_shop: App, gateway_of: NewGateway, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(real: Write, acceptances: Sequence[Acceptance]) -> list[Verdict]:
        raise error("postgresql://secret.host: no\nanswer")

    with writing(sqlite_shop, fail):
        client = gateway_of(sqlite_shop)
        answer = client.post("/orders", ONE, WITH_ID)
    code, status = ERRORS[error]
    assert (answer.status, answer.code) == (status, code)
    assert ("retry-after" in answer.headers) is (status == 503)
    assert "secret.host" not in answer.body.decode()
    (line,) = [each for each in caplog.records if each.name.startswith("stagepost.gateway")]
    assert "secret.host" in line.getMessage()
    assert "\n" not in line.getMessage()
    assert line.exc_info is None


def test_an_unknown_commit_answers_503_to_the_whole_group_and_the_retry_finds_out(
    sqlite_shop: App, gateway_of: NewGateway
) -> None:
    def lose_the_answer(real: Write, acceptances: Sequence[Acceptance]) -> list[Verdict]:
        real(acceptances)
        raise CommitUnknown("the answer was lost")

    with writing(sqlite_shop, lose_the_answer):
        client = gateway_of(sqlite_shop)
        calls = [client.posting("/orders", ONE, {"Message-Id": str(n)}) for n in range(3)]
        assert [each.code for each in client.call(*calls)] == 3 * ["outcome-unknown"]
    again = gateway_of(sqlite_shop)
    assert [each.json["status"] for each in again.call(*calls)] == 3 * ["duplicate"]
    assert stored(sqlite_shop) == 3


@pytest.mark.parametrize("error", [StoreRefused, StoreContention])
def test_one_bad_message_of_a_group_fails_alone(
    error: type[StoreError], sqlite_shop: App, gateway_of: NewGateway
) -> None:
    groups: list[int] = []
    valid = Valid(5)

    def refuse_one(real: Write, acceptances: Sequence[Acceptance]) -> list[Verdict]:
        valid.wait()
        groups.append(len(acceptances))
        if any(each.outgoing.envelope.flow_id.endswith(":bad") for each in acceptances):
            raise error("this one")
        return real(acceptances)

    with writing(sqlite_shop, refuse_one):
        client = gateway_of(sqlite_shop, listener=valid)
        ids = ["1", "2", "bad", "4", "5"]
        answers = client.call(*(client.posting("/orders", ONE, {"Message-Id": each}) for each in ids))
    assert [each.status for each in answers] == [200, 200, ERRORS[error][1], 200, 200]
    assert max(groups) > 1, "the requests shared no commit"
    assert stored(sqlite_shop) == 4


def test_concurrent_requests_share_a_commit_of_a_limited_size(sqlite_shop: App, gateway_of: NewGateway) -> None:
    groups: list[int] = []
    valid = Valid(100)

    def count(real: Write, acceptances: Sequence[Acceptance]) -> list[Verdict]:
        valid.wait()
        groups.append(len(acceptances))
        return real(acceptances)

    with writing(sqlite_shop, count):
        client = gateway_of(sqlite_shop, limits=Limits(group_max=20), listener=valid)
        answers = client.call(*(client.posting("/orders", ONE, {"Message-Id": str(n)}) for n in range(100)))
    assert [each.status for each in answers] == 100 * [200]
    assert (sum(groups), max(groups)) == (100, 20)


def test_the_thread_of_the_commits_ends_when_none_is_wanted_and_starts_again(
    sqlite_shop: App, gateway_of: NewGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "IDLE_SECONDS", 0.0)
    client = gateway_of(sqlite_shop)
    for number in range(3):
        assert client.post("/orders", ONE, {"Message-Id": str(number)}).status == 200
        wait_until(lambda: "gateway-commits" not in {each.name for each in threading.enumerate()}, "it has ended")
    assert stored(sqlite_shop) == 3


def test_a_request_whose_time_is_over_before_its_commit_begins_is_dropped(
    sqlite_shop: App, gateway_of: NewGateway
) -> None:
    is_released = threading.Event()

    def stall(real: Write, acceptances: Sequence[Acceptance]) -> list[Verdict]:
        is_released.wait(PATIENCE_SECONDS)
        return real(acceptances)

    with writing(sqlite_shop, stall):
        # On a busy machine it takes a while until the first commit begins, which must be in time.
        client = gateway_of(sqlite_shop, limits=Limits(request_seconds=3, group_max=1))
        answers = client.call(*(client.posting("/orders", ONE, {"Message-Id": str(n)}) for n in range(3)))
        assert [each.code for each in answers] == ["outcome-unknown", "deadline-passed", "deadline-passed"]
        is_released.set()
        # On a busy machine a commit may take longer than a request may, as a client would see it: it sends again.
        wait_until(lambda: client.post("/orders", ONE, {"Message-Id": "later"}).status == 200, "it is accepted")
    assert stored(sqlite_shop) == 2


def test_a_check_is_not_run_and_nothing_is_refused_while_the_store_is_away(
    sqlite_shop: App, gateway_of: NewGateway
) -> None:
    """Without the store the gateway cannot know whether the message was accepted, so it must not say "invalid"."""
    calls: list[object] = []
    assert gateway_of(sqlite_shop).post("/orders", ONE, WITH_ID).status == 200
    client = gateway_of(
        sqlite_shop,
        Route("orders", to="orders.place"),
        Route("checked", to="orders.place", check=calls.append),
        limits=Limits(request_seconds=0.3),
    )
    store = engine_of(sqlite_shop).databases.database.removeprefix("sqlite:///")
    with closing(sqlite3.connect(store, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        bad = client.post("/orders", {"account": 7}, WITH_ID)
        assert (bad.status, bad.headers["retry-after"]) == (503, "1")
        assert client.post("/checked", ONE, WITH_ID).status == 503
        other.execute("ROLLBACK")
    assert calls == []


def test_a_replaced_file_is_an_outage(sqlite_shop: App, gateway_of: NewGateway) -> None:
    client = gateway_of(sqlite_shop)
    assert client.post("/orders", ONE, WITH_ID).status == 200
    path = Path(engine_of(sqlite_shop).databases.database.removeprefix("sqlite:///"))
    shutil.copy(path, path.with_suffix(".copy"))
    path.with_suffix(".copy").replace(path)
    answer = client.post("/orders", ONE, {"Message-Id": "2"})
    assert (answer.status, answer.code) == (503, "store-unavailable")


def test_a_full_disk_is_503_and_never_a_lost_200(tmp_path: Path, gateway_of: NewGateway) -> None:
    with mounted(tmp_path / "disk", "8m", 1000) as disk:
        app = with_endpoint(App("shop", database=f"sqlite:///{disk}/shop.db"))
        client = gateway_of(app)
        assert client.post("/orders", ONE, WITH_ID).status == 200
        body = ONE | {"account": "x" * 100_000}
        with full(disk):
            answers = client.call(*(client.posting("/orders", body, {"Message-Id": f"f-{n}"}) for n in range(10)))
            refused = [each for each in answers if each.status != 200]
            assert {each.status for each in refused} == {503}
            assert {each.code for each in refused} <= {"store-full", "store-unavailable"}
            assert client.get("/healthz").status == 200
        assert stored(app) == 1 + len(answers) - len(refused)
        again = client.call(*(client.posting("/orders", body, {"Message-Id": f"f-{n}"}) for n in range(10)))
        assert {each.status for each in again} == {200}
        assert stored(app) == 11
        app.close()


def test_readiness_tells_the_depth_and_the_age_of_each_route(shop: App, gateway_of: NewGateway) -> None:
    client = gateway_of(shop)
    answer = client.get("/readyz")
    assert (answer.status, answer.json["status"]) == (200, "ready")
    nothing = {"waiting": 0, "oldest_seconds": None}
    assert answer.json["routes"] == {"orders": nothing, "invoices": nothing}
    assert client.request("HEAD", "/healthz").status == 200
    assert client.post("/orders", ONE, WITH_ID).status == 200
    # A gateway counts every two seconds at most, so another one counts again.
    waits_in_queue = 0 if engine_of(shop).databases.queue else 1
    routes = gateway_of(shop).get("/readyz").json["routes"]
    assert [each["waiting"] for each in routes.values()] == 2 * [waits_in_queue]
    assert [each["oldest_seconds"] for each in routes.values()] == 2 * [0 if waits_in_queue else None]


def test_a_gateway_whose_store_is_away_is_alive_and_not_ready(
    sqlite_shop: App, gateway_of: NewGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = gateway_of(sqlite_shop)

    def fail(**options: object) -> object:
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(engine_of(sqlite_shop).store, "session", fail)
    answer = client.get("/readyz")
    assert (answer.status, answer.json["code"], answer.headers["retry-after"]) == (503, "store-unavailable", "5")
    assert client.get("/healthz").status == 200


@pytest.mark.parametrize("is_away", [False, True])
def test_the_store_is_opened_before_the_first_request_and_its_absence_keeps_no_gateway_from_starting(
    is_away: bool, shop: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = asgi(shop, routes=[ORDERS], anonymous="erp")
    starter = engine_of(shop).flow_starter
    if is_away:
        monkeypatch.setattr(starter, "look_up", lambda acceptances: unavailable())
    events = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    sent: list[str] = []

    async def receive() -> dict[str, str]:
        return events.pop(0)

    async def send(message: Any) -> None:
        sent.append(message["type"])

    asyncio.run(gateway({"type": "lifespan"}, receive, send))
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert starter.pool.figures().size == (0 if is_away else 1)


def unavailable() -> list[str | None]:
    raise StoreUnavailable("no answer")
