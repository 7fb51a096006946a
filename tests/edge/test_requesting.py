"""``app.request``: asked outside any stage, answered to the one who asked, in time or not at all."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from stagepost import (
    AlreadyStarted,
    App,
    Context,
    IdConflict,
    IllegalCall,
    NothingSent,
    ReplyFuture,
    ReplyTimeout,
    StagedEndpoint,
    StoreContention,
    StoreUnavailable,
    Target,
    Undecodable,
)
from stagepost.app.app import engine_of
from stagepost.edge.reply_future import PendingReply
from stagepost.flow.claim import Claim
from stagepost.flow.ids import node_name
from stagepost.liveness.incarnation import listening
from stagepost.observe.status import read_status
from stagepost.observe.trace import read_trace
from stagepost.store.sqlite.store import SqliteStore, lives_of
from stagepost.testing import Harness
from stagepost.transaction.outcome import Outcome
from stagepost.transaction.settling import Settlement
from stagepost.transaction.stage import Stage
from tests.edge.asking import Number, names, replies, working
from tests.toy_store.store import ToyStore
from tests.waiting import PATIENCE_SECONDS, wait_until

if TYPE_CHECKING:
    from tests.conftest import Inject

IN_EVERY_MODE = True

NewHarness = Callable[..., Harness]
UNAVAILABLE = 69


@dataclass
class Text:
    value: str


@pytest.fixture
def double(app: App) -> Iterator[Target[Number, Number]]:
    @app.endpoint("double")
    def double(ctx: Context, number: Number) -> Number:
        return Number(number.value * 2)

    yield double
    app.close()


# A reply


def test_the_reply_comes_to_the_one_who_asked(app: App, double: Target[Number, Number]) -> None:
    with working(app):
        assert app.request(double, Number(4), flow_id="flow").result(PATIENCE_SECONDS) == Number(8)


def test_it_may_be_asked_for_before_and_after_it_has_come_and_again(
    app: App, harness: NewHarness, double: Target[Number, Number]
) -> None:
    asked = app.request(double, Number(4), flow_id="flow")
    harness().drain()
    assert [asked.result(PATIENCE_SECONDS), asked.result(0)] == [Number(8), Number(8)]


def test_it_is_journalled_as_sent_received_and_committed_by_this_process(
    app: App, harness: NewHarness, double: Target[Number, Number]
) -> None:
    asked = app.request(double, Number(4), flow_id="flow")
    worker = harness()
    worker.drain()
    asked.result(PATIENCE_SECONDS)
    found = replies(worker)
    assert names(found) == ["sent", "received", "committed"]
    assert [each.node for each in found[1:]] == [node_name("edge")] * 2
    assert found[0].cause_id == asked.message_id
    assert {each.stage.partition(".reply.")[0] for each in found} == {"shop"}
    trace = read_trace(worker.access.session.journal, "flow")
    assert trace is not None
    assert trace.standing == "completed"


def test_the_last_of_several_stages_may_be_the_one_that_replies(app: App, double: Target[Number, Number]) -> None:
    four: StagedEndpoint[Number, Text] = app.staged("four")

    @four.stage
    def ask(ctx: Context, number: Number) -> None:
        ctx.request(double, number)

    @four.stage
    def tell(ctx: Context, number: Number) -> Text:
        return Text(str(number.value))

    with working(app):
        assert app.request(four, Number(2), flow_id="flow").result(PATIENCE_SECONDS) == Text("4")


def test_each_of_many_who_ask_at_the_same_time_gets_his_own(app: App, double: Target[Number, Number]) -> None:
    def ask(n: int) -> int:
        # Some of them in one flow.
        reply: Number = app.request(
            double, Number(n), flow_id=f"flow:{n // 2}", message_id=f"m{n}", properties={"n": n}
        ).result(PATIENCE_SECONDS)
        return reply.value

    with working(app), ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(64))) == [2 * n for n in range(64)]
    assert sum(thread.name == "reply-listener" for thread in threading.enumerate()) == 1


def test_of_several_replies_the_first_counts_and_the_others_expire(app: App, harness: NewHarness) -> None:
    echo: StagedEndpoint[Number, Number] = app.staged("echo")

    @echo.stage
    def scatter(ctx: Context, number: Number) -> None:
        for n in range(3):
            ctx.request(inner, Number(n))

    @echo.stage
    def answer(ctx: Context, number: Number) -> Number:
        return number

    @app.endpoint("inner")
    def inner(ctx: Context, number: Number) -> Number:
        return number

    asked = app.request(echo, Number(0), flow_id="flow")
    worker = harness()
    worker.drain()
    assert asked.result(PATIENCE_SECONDS).value in range(3)
    wait_until(lambda: names(replies(worker)).count("expired") == 2, "the others expired")
    assert names(replies(worker)).count("committed") == 1
    app.close()


# None in time


def test_when_the_time_is_over_it_says_so_and_the_reply_expires(
    app: App, harness: NewHarness, double: Target[Number, Number]
) -> None:
    asked = app.request(double, Number(4), flow_id="order:7")
    with pytest.raises(ReplyTimeout, match=r"double did not reply within 0\.01 s in flow 'order:7'") as caught:
        asked.result(0.01)
    assert caught.value.flow_id == "order:7"
    worker = harness()
    worker.drain()
    wait_until(lambda: names(replies(worker, "order:7")) == ["sent", "received", "expired"], "it expired")
    with pytest.raises(ReplyTimeout):
        asked.result(PATIENCE_SECONDS)
    assert [each.stage for each in worker.access.session.queue.depths()] == []
    trace = read_trace(worker.access.session.journal, "order:7")
    assert trace is not None
    assert [each.standing for each in trace.messages.values()] == ["committed", "expired"]
    assert trace.standing == "completed"


def test_what_nobody_kept_hold_of_expires_too(app: App, harness: NewHarness, double: Target[Number, Number]) -> None:
    app.request(double, Number(4), flow_id="flow")
    worker = harness()
    worker.drain()
    wait_until(lambda: names(replies(worker))[-1] == "expired", "it expired")


@pytest.mark.parametrize("is_committed", [True, False])
def test_one_whose_time_is_over_while_the_reply_is_being_taken_waits_for_what_is_journalled(
    double: Target[Number, Number], is_committed: bool
) -> None:
    pending = PendingReply("flow", double.address, "token")
    asked = ReplyFuture(double, "m1", pending)
    assert pending.take()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(asked.result, 0)
        with pytest.raises(TimeoutError):
            waiting.result(0.1)
        if is_committed:
            pending.complete(b'{"value":8}')
            assert waiting.result() == Number(8)
        else:
            pending.put_back()
            with pytest.raises(ReplyTimeout):
                waiting.result()
            assert not pending.take()


def test_a_reply_that_the_database_did_not_let_us_take_is_taken_when_it_does(
    app: App, double: Target[Number, Number], monkeypatch: pytest.MonkeyPatch
) -> None:
    settle, refused = Settlement.settle, list[Claim]()

    def settle_later(settlement: Settlement, stage: Stage | None, claim: Claim, *arguments: Any) -> Outcome:
        if stage is None and not refused:
            refused.append(claim)
            raise StoreContention("busy")
        return settle(settlement, stage, claim, *arguments)

    monkeypatch.setattr(Settlement, "settle", settle_later)
    monkeypatch.setattr("stagepost.transaction.database_wait.RETRY_SECONDS", 0.01)
    with working(app):
        assert app.request(double, Number(4), flow_id="flow").result(PATIENCE_SECONDS) == Number(8)
    assert len(refused) == 1


def test_a_reply_that_the_database_took_without_an_answer_comes_when_it_answers(
    app: App, double: Target[Number, Number], monkeypatch: pytest.MonkeyPatch
) -> None:
    settle, unanswered = Settlement.settle, list[Claim]()

    def settle_in_silence(settlement: Settlement, stage: Stage | None, claim: Claim, *arguments: Any) -> Outcome:
        outcome = settle(settlement, stage, claim, *arguments)
        if stage is None and not unanswered:
            unanswered.append(claim)
            raise StoreUnavailable("no answer")
        return outcome

    monkeypatch.setattr(Settlement, "settle", settle_in_silence)
    monkeypatch.setattr("stagepost.transaction.database_wait.RETRY_SECONDS", 0.01)
    with working(app):
        assert app.request(double, Number(4), flow_id="flow").result(PATIENCE_SECONDS) == Number(8)
    assert len(unanswered) == 1


def test_a_timeout_that_makes_no_sense_is_refused(app: App, double: Target[Number, Number]) -> None:
    asked = app.request(double, Number(4), flow_id="flow")
    for timeout in (-1, float("inf"), "5"):
        wrong: Any = timeout
        with pytest.raises(IllegalCall, match="timeout must be a number of seconds"):
            asked.result(wrong)


def test_bytes_at_the_address_that_are_no_reply_expire(
    app: App, harness: NewHarness, inject: Inject, double: Target[Number, Number]
) -> None:
    asked = app.request(double, Number(4), flow_id="flow")
    (owner,) = (each for each in listening if each.startswith("shop/"))
    address = owner.replace("/", ".reply.")
    worker = harness()
    for n, envelope in enumerate([b"\xff", b"{}", b'{"messages": []}']):
        inject(address, envelope, message_id=f"x{n}", flow_id="foreign")
    wait_until(lambda: names(worker.history("foreign")).count("expired") == 3, "they expired")
    worker.drain()
    assert asked.result(PATIENCE_SECONDS) == Number(8)


def test_a_reply_that_is_not_what_was_declared_is_told_to_the_one_who_asked_alone(
    app: App, double: Target[Number, Number]
) -> None:
    misread: Target[Number, Text] = app.remote("double", Number, Text)
    with working(app):
        asked = app.request(misread, Number(4), flow_id="misread")
        for _ in range(2):
            with pytest.raises(Undecodable, match="Text"):
                asked.result(PATIENCE_SECONDS)
        assert app.request(double, Number(4), flow_id="flow").result(PATIENCE_SECONDS) == Number(8)


# What is asked twice


def test_a_repeat_is_told_at_once_that_the_reply_goes_to_the_first(
    app: App, harness: NewHarness, double: Target[Number, Number]
) -> None:
    asked = app.request(double, Number(4), flow_id="flow")
    with pytest.raises(AlreadyStarted, match=r"in flow 'flow'.*goes to the first request.*another flow_id"):
        app.request(double, Number(4), flow_id="flow")
    with pytest.raises(IdConflict):
        app.request(double, Number(5), flow_id="flow")
    worker = harness()
    assert len(worker.drain()) == 1
    assert asked.result(PATIENCE_SECONDS) == Number(8)
    app.start(double, Number(4), flow_id="started")
    with pytest.raises(AlreadyStarted):
        app.request(double, Number(4), flow_id="started")


# Where it is refused


def test_inside_a_stage_it_would_wait_for_itself(app: App, harness: NewHarness, double: Target[Number, Number]) -> None:
    @app.endpoint("ask")
    def ask(ctx: Context, number: Number) -> None:
        app.request(double, number, flow_id="inner")

    app.start(ask, Number(1), flow_id="flow")
    worker = harness()
    worker.drain()
    (letter,) = worker.dead_letters()
    assert letter.reason == "hopeless"
    assert "Use ctx.request there" in letter.summary
    assert worker.history("inner") == []


def test_with_the_callers_connection_it_would_wait_for_its_commit(app: App, double: Target[Number, Number]) -> None:
    with pytest.raises(IllegalCall, match=r"was given a connection.*Give a session="):
        app.request(double, Number(1), flow_id="flow", connection=object())


def test_who_never_replies_is_not_asked(app: App) -> None:
    silent: Target[Number, None] = app.remote("silent", Number)
    with pytest.raises(IllegalCall, match=r"silent never replies.*Use app.start"):
        app.request(silent, Number(1), flow_id="flow")


def test_a_message_of_another_type_is_refused(app: App, double: Target[Number, Number]) -> None:
    wrong: Any = Text("4")
    with pytest.raises(IllegalCall, match="double takes a Number, not a Text"):
        app.request(double, wrong, flow_id="flow")


# Who only asks


def test_who_only_asks_is_no_worker(app: App, double: Target[Number, Number]) -> None:
    if isinstance(engine_of(app).store, ToyStore):
        pytest.skip("nobody else looks at a memory store")
    app.request(double, Number(4), flow_id="flow")
    access = engine_of(app).access()
    assert read_status(engine_of(app).store, access, engine_of(app).clock).workers == []
    access.close()


# Closing


def test_closing_the_app_ends_what_waits_and_its_proof_of_life_and_asking_begins_anew(
    app: App, double: Target[Number, Number]
) -> None:
    asked: ReplyFuture[Number] = app.request(double, Number(4), flow_id="f1")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(asked.result, PATIENCE_SECONDS)
        app.close()
        with pytest.raises(ReplyTimeout, match="had not replied when the app was closed"):
            waiting.result()
    assert not [thread for thread in threading.enumerate() if thread.name in ("reply-listener", "watchdog", "heart")]
    assert not [each for each in listening if each.startswith("shop/")]
    store = engine_of(app).store
    if isinstance(store, SqliteStore):
        assert list(lives_of(store.path).iterdir()) == []
    with working(app):
        assert app.request(double, Number(5), flow_id="f2").result(PATIENCE_SECONDS) == Number(10)


def test_a_forked_child_listens_for_itself_where_its_database_lets_it_in(new_app: Callable[..., App]) -> None:
    app = new_app()
    if isinstance(engine_of(app).store, ToyStore):
        pytest.skip("a memory store is its parent's")

    @app.endpoint("double")
    def double(ctx: Context, number: Number) -> Number:
        return Number(number.value * 2)

    with closing(app), working(app):
        asked = app.request(double, Number(1), flow_id="parent")
        proofs = proofs_of_life(app)
        child = os.fork()
        if child == 0:
            os._exit(asked_in_a_child(app, double))
        # SQLite cannot be used in a child of a process that has it open.
        expected = UNAVAILABLE if isinstance(engine_of(app).store, SqliteStore) else 0
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == expected
        assert proofs <= proofs_of_life(app)
        assert asked.result(PATIENCE_SECONDS) == Number(2)
        assert app.request(double, Number(3), flow_id="later").result(PATIENCE_SECONDS) == Number(6)


def proofs_of_life(app: App) -> set[str]:
    store = engine_of(app).store
    return {file.name for file in lives_of(store.path).iterdir()} if isinstance(store, SqliteStore) else set()


def asked_in_a_child(app: App, double: Target[Number, Number]) -> int:
    try:
        reply = app.request(double, Number(2), flow_id="child").result(PATIENCE_SECONDS)
        app.close()
    except NothingSent as error:
        return UNAVAILABLE if isinstance(error.__cause__, StoreUnavailable) else 1
    except BaseException:  # noqa: BLE001 - whatever it is, the child must not go on with the parent's tests
        return 1
    return 0 if reply == Number(4) else 2
