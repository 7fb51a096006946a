"""The table "What each failure leads to" of docs and design, row by row, for the mode ``single``."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import msgspec
import pytest

from stagepost import App, Context, Redelivery, Refuse, Target
from stagepost.app.app import engine_of
from stagepost.flow.codec import encode_envelope
from stagepost.flow.envelope import Envelope, Message
from stagepost.ports.dead_letters import Selection
from stagepost.ports.queue import Pending
from stagepost.testing import Harness, ManualClock
from stagepost.transaction.outcome import AnsweredWithFailure, Buried, Completed, Lost, Redelivered

if TYPE_CHECKING:
    from tests.conftest import Inject, Ledger, NewApp

NewHarness = Callable[..., Harness]

IN_EVERY_MODE = True


@dataclass
class Order:
    id: str


@dataclass
class Receipt:
    id: str
    error: str = ""


@dataclass
class Basket:
    orders: int = 0


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


ERRORS: dict[str, Callable[[], BaseException]] = {
    "ValueError": ValueError,
    "an unprintable error": UnprintableError,
    "AssertionError": AssertionError,
    "StopIteration": StopIteration,
    "RecursionError": RecursionError,
    "MemoryError": MemoryError,
    "SystemExit": SystemExit,
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
    "an exception group": lambda: BaseExceptionGroup("several", [ValueError("a"), SystemExit(2)]),
}


class ExitsWhenPrinted(Exception):
    def __str__(self) -> str:
        raise SystemExit


class CauselessError(Exception):
    @property
    def __cause__(self) -> NoReturn:  # type: ignore[override]
        raise SystemExit


class WrongCauseError(Exception):
    __cause__ = "no exception"  # type: ignore[assignment]


class OddText(str):
    __slots__ = ()

    def encode(self, *arguments: object, **options: object) -> NoReturn:
        raise SystemExit

    def __getitem__(self, key: object) -> NoReturn:
        raise SystemExit

    def isprintable(self) -> NoReturn:
        raise SystemExit


class OddTextError(Exception):
    def __str__(self) -> str:
        return OddText("odd")


def from_odd_code() -> BaseException:
    """Raised by code whose module has no name, in a file whose name is no text."""
    code = compile("raise ValueError('made at run time')", "/tmp/\udcff.py", "exec")
    try:
        exec(code, {"__name__": None})
    except ValueError as error:
        return error
    raise AssertionError


# What is asked of an error when its failure is written, and what it does then.
HOSTILE: dict[str, Callable[[], BaseException]] = {
    "exits when it is printed": ExitsWhenPrinted,
    "has a cause that exits": CauselessError,
    "has a cause that is none": WrongCauseError,
    "has a text of a class of its own": OddTextError,
    "has a name that cannot be encoded": type("Odd", (Exception,), {"__module__": "\udcff", "__qualname__": "\udcff"}),
    "is of a module that is none": type("Homeless", (Exception,), {"__module__": 7}),
    "is of code that was made at run time": from_odd_code,
    "has a text that cannot be encoded": lambda: ValueError("\udcff"),
    "has a text with NUL and escape sequences": lambda: ValueError("a\0b\x1b[31m\r\nc"),
    "has a text of 50 MB": lambda: ValueError("x" * 50_000_000),
}


def states(harness: Harness, flow_id: str = "flow") -> list[str]:
    return [each.waypoint for each in harness.history(flow_id)]


def pending(harness: Harness, app: App) -> Pending:
    return harness.access.claimer.pending([*engine_of(app).stages(), "other"])


# The handler raises


@pytest.mark.parametrize("name", ERRORS)
def test_whatever_a_handler_raises_undoes_its_attempt_and_the_message_comes_again(
    app: App, harness: NewHarness, ledger: Ledger, name: str
) -> None:
    other: Target[Receipt, None] = app.remote("other", Receipt)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, f"{order.id} {ctx.attempt}")
        ctx.send(other, Receipt(order.id))
        if ctx.attempt == 1:
            error = ERRORS[name]()
            raise error

    app.start(pay, Order("o1"), flow_id="flow")
    worker = harness()
    outcome = worker.run_one()
    assert isinstance(outcome, Redelivered)
    assert type(outcome.error) is type(ERRORS[name]())
    assert ledger.entries == []
    assert not pending(worker, app).ready
    assert not pending(worker, app).claimed
    (outcome,) = worker.drain()
    assert isinstance(outcome, Completed)
    assert ledger.entries == ["o1 2"]
    assert states(worker) == ["accepted", "received", "failed", "delayed", "received", "committed", "sent"]


@pytest.mark.parametrize("name", HOSTILE)
def test_an_error_that_can_hardly_be_described_is_counted_and_its_message_ends_as_a_dead_letter(
    app: App, harness: NewHarness, ledger: Ledger, name: str
) -> None:
    @app.endpoint("pay", redelivery=Redelivery(redeliveries=1))
    def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, order.id)
        if order.id == "hostile":
            error = HOSTILE[name]()
            raise error

    worker = harness()
    for each in ("hostile", "healthy"):
        app.start(pay, Order(each), flow_id=each)
    outcomes = worker.drain()
    assert sorted(type(each).__name__ for each in outcomes) == ["Buried", "Completed", "Redelivered"]
    assert ledger.entries == ["healthy"]
    (kept,) = worker.access.session.dead_letters.select(Selection("flow", "hostile"))
    letter = kept.letter
    assert (letter.reason, letter.failures) == ("exhausted", 2)
    assert letter.summary.isprintable()
    assert len(letter.summary) < 3_000
    assert len(letter.stack) <= 21_000
    assert set(letter.stack) - {"\n"} == {each for each in letter.stack if each.isprintable()}


def test_a_message_that_fails_for_ever_becomes_a_dead_letter_with_everything_about_it(
    app: App, harness: NewHarness, ledger: Ledger, clock: ManualClock
) -> None:
    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, order.id)
        try:
            int(order.id)
        except ValueError as error:
            raise KeyError(order.id) from error

    begun = clock.now()
    started = app.start(pay, Order("o1"), flow_id="flow")
    worker = harness()
    outcomes = worker.drain()
    assert [type(each) for each in outcomes] == [Redelivered] * 6 + [Buried]
    assert ledger.entries == []
    assert pending(worker, app).is_drained
    (letter,) = worker.dead_letters()
    assert (letter.message_id, letter.flow_id, letter.stage) == (started.message_id, "flow", "pay")
    assert (letter.reason, letter.failures, letter.deaths, letter.deliveries) == ("exhausted", 7, 0, 7)
    assert [(each.type, each.message) for each in letter.causes] == [
        ("KeyError", "'o1'"),
        ("ValueError", "invalid literal for int() with base 10: 'o1'"),
    ]
    assert letter.summary == "KeyError: 'o1'"
    assert "raise KeyError(order.id) from error" in letter.stack
    assert "stagepost/transaction" not in letter.stack
    assert (letter.origin_at, letter.dead_at) == (begun, clock.now())
    assert letter.dead_at > begun
    assert letter.node == worker.node
    assert re.fullmatch(r".*test_failures\.py:\d+", letter.declared_at)
    assert json.loads(letter.envelope)["messages"] == [{"type": "Order", "body": {"id": "o1"}}]
    assert states(worker)[-2:] == ["failed", "dead"]


def test_one_that_fails_for_ever_takes_no_other_along(app: App, harness: NewHarness, ledger: Ledger) -> None:
    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, order.id)
        if order.id.startswith("bad"):
            raise ValueError(order.id)

    # One more of the bad, and in the end it would be the stage that fails.
    names = [f"{kind} {n}" for n in range(9) for kind in ("good", "bad")]
    for name in names:
        app.start(pay, Order(name), flow_id=name)
    worker = harness(seed=7)
    outcomes = worker.drain()
    assert sorted(ledger.entries) == sorted(name for name in names if name.startswith("good"))
    assert len(outcomes) == 9 + 9 * 7
    assert sorted(letter.flow_id for letter in worker.dead_letters()) == sorted(
        name for name in names if name.startswith("bad")
    )


@pytest.mark.parametrize("listed", ["by the app", "by the endpoint", "by the stage"])
def test_a_type_named_hopeless_is_a_dead_letter_at_once(new_app: NewApp, harness_of: NewHarness, listed: str) -> None:
    hopeless = Redelivery().with_hopeless(LookupError)
    app = new_app(redelivery=hopeless if listed == "by the app" else None)
    pay = app.staged("pay", redelivery=hopeless if listed == "by the endpoint" else None)

    @pay.stage(redelivery=hopeless if listed == "by the stage" else None)
    def first(ctx: Context, order: Order) -> None:
        raise {"a": KeyError, "b": ValueError}[order.id](order.id)

    app.start(pay, Order("a"), flow_id="a")
    app.start(pay, Order("b"), flow_id="b")
    worker = harness_of(app)
    worker.drain()
    assert {(each.flow_id, each.reason, each.failures) for each in worker.dead_letters()} == {
        ("a", "hopeless", 1),
        ("b", "exhausted", 7),
    }


# The handler refuses


def refuse_by_call(ctx: Context) -> None:
    ctx.refuse("no such account")


def refuse_by_raising(ctx: Context) -> None:
    raise Refuse("no such account")


def refuse_and_swallow(ctx: Context) -> None:
    with suppress(Exception):
        ctx.refuse("no such account")


def refuse_and_raise_another(ctx: Context) -> None:
    try:
        ctx.refuse("no such account")
    except Refuse as error:
        raise ValueError("something else") from error


@pytest.mark.parametrize("refuse", [refuse_by_call, refuse_by_raising, refuse_and_swallow, refuse_and_raise_another])
def test_what_a_handler_refuses_is_undone_and_a_dead_letter_at_once(
    app: App, harness: NewHarness, ledger: Ledger, refuse: Callable[[Context], None]
) -> None:
    other: Target[Receipt, None] = app.remote("other", Receipt)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, order.id)
        ctx.send(other, Receipt(order.id))
        refuse(ctx)

    app.start(pay, Order("o1"), flow_id="flow")
    worker = harness()
    (outcome,) = worker.drain()
    assert isinstance(outcome, Buried)
    assert ledger.entries == []
    assert pending(worker, app).is_drained
    (letter,) = worker.dead_letters()
    assert (letter.reason, letter.failures, letter.deliveries) == ("refused", 1, 1)
    assert letter.causes[0].message == "no such account"
    assert states(worker) == ["accepted", "received", "failed", "dead"]


def test_a_refusal_that_a_handler_raised_and_caught_itself_is_its_own_business(
    app: App, harness: NewHarness, ledger: Ledger
) -> None:
    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        try:
            refuse_by_raising(ctx)
        except Refuse:
            ledger.write(ctx, order.id)

    app.start(pay, Order("o1"), flow_id="flow")
    harness().drain()
    assert ledger.entries == ["o1"]


# The handler answers with an error


def asked(app: App, ledger: Ledger) -> None:
    """An endpoint that asks ``bank`` and writes down the answer and the state it kept meanwhile."""
    ask = app.staged("ask")
    bank = app.remote("bank", Order, Receipt)

    @ask.stage
    def begin(ctx: Context, state: Basket, order: Order) -> None:
        state.orders = 7
        ctx.request(bank, order)

    @ask.stage
    def end(ctx: Context, state: Basket, receipt: Receipt) -> None:
        ledger.write(ctx, f"answer {receipt.error} with {state.orders} orders")

    app.start(ask, Order("o1"), flow_id="flow")


def test_a_reply_that_tells_of_an_error_is_an_outcome_and_commits(
    app: App, harness: NewHarness, ledger: Ledger
) -> None:
    @app.endpoint("bank")
    def bank(ctx: Context, order: Order) -> Receipt:
        ledger.write(ctx, "bank")
        return Receipt(order.id, error="no funds")

    asked(app, ledger)
    worker = harness()
    worker.drain()
    assert ledger.entries == ["bank", "answer no funds with 7 orders"]
    assert worker.dead_letters() == []


def test_failing_with_a_reply_undoes_the_work_and_sends_the_reply(
    app: App, harness: NewHarness, ledger: Ledger
) -> None:
    other: Target[Receipt, None] = app.remote("other", Receipt)
    called: list[str] = []

    @app.endpoint("bank")
    def bank(ctx: Context, order: Order) -> Receipt:
        ledger.write(ctx, "bank")
        ctx.send(other, Receipt("never"))
        ctx.after_commit(called.append, "never")
        ctx.fail_with(Receipt(order.id, error="no funds"))

    asked(app, ledger)
    worker = harness()
    outcomes = worker.drain()
    assert [type(each) for each in outcomes] == [Completed, AnsweredWithFailure, Completed]
    assert ledger.entries == ["answer no funds with 7 orders"]
    assert called == []
    assert pending(worker, app).is_drained
    assert worker.dead_letters() == []
    assert [each.detail for each in worker.history("flow") if each.waypoint == "committed"] == [
        None,
        "fail_with",
        None,
    ]


def test_failing_with_a_reply_holds_when_the_handler_swallows_the_exception(
    app: App, harness: NewHarness, ledger: Ledger
) -> None:
    @app.endpoint("bank")
    def bank(ctx: Context, order: Order) -> Receipt:
        ledger.write(ctx, "bank")
        try:
            ctx.fail_with(Receipt(order.id, error="no funds"))
        except Exception:  # noqa: BLE001 - as handlers do
            ledger.write(ctx, "swallowed")
        return Receipt(order.id, error="all is well")

    asked(app, ledger)
    harness().drain()
    assert ledger.entries == ["answer no funds with 7 orders"]


def test_failing_with_a_reply_where_nobody_asked_is_an_illegal_call(
    app: App, harness: NewHarness, ledger: Ledger
) -> None:
    @app.endpoint("bank")
    def bank(ctx: Context, order: Order) -> Receipt:
        ledger.write(ctx, "bank")
        ctx.fail_with(Receipt(order.id))

    app.start(bank, Order("o1"), flow_id="flow")
    worker = harness()
    worker.drain()
    (letter,) = worker.dead_letters()
    assert letter.reason == "hopeless"
    assert "bank has no caller in this flow" in letter.summary
    assert "ctx.refuse(reason)" in letter.summary
    assert ledger.entries == []


# What cannot be read


def envelope_to(stage: str, body: bytes, *, state: bytes = b"null") -> bytes:
    """By hand: what is in it need not be valid."""
    return (
        b'{"message_id":"m1","flow_id":"flow","kind":"send","to":"%b","sender":"x","origin_at":1,"sent_at":1,'
        b'"messages":[{"type":"Order","body":%b,"state":%b}]}' % (stage.encode(), body, state)
    )


UNREADABLE = {
    "nothing": b"",
    "no JSON": b"<order/>",
    "no text": b"\xff\xfe\x00\x80",
    "no object": b"[]",
    "an empty object": b"{}",
    "cut off": envelope_to("pay", b'{"id":"o1"}')[:-9],
    "nested without end": b"[" * 100_000,
    "of an unknown kind": envelope_to("pay", b'{"id":"o1"}').replace(b'"send"', b'"gossip"'),
    "without a message": re.sub(rb'"messages":.*', b'"messages":[]}', envelope_to("pay", b"{}")),
    "a body of another shape": envelope_to("pay", b"[1]"),
    "a body without its field": envelope_to("pay", b"{}"),
    "a body with a wrong value": envelope_to("pay", b'{"id":17}'),
    "a body that is no text": envelope_to("pay", b'{"id":"\xff"}'),
    "a body nested without end": envelope_to("pay", b'{"id":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "a state of another shape": envelope_to("pay", b'{"id":"o1"}', state=b'"full"'),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_what_cannot_be_read_is_a_dead_letter_at_once_with_its_bytes_as_they_came(
    app: App, harness: NewHarness, inject: Inject, ledger: Ledger, what: str
) -> None:
    @app.endpoint("pay")
    def pay(ctx: Context, state: Basket, order: Order) -> None:
        ledger.write(ctx, "never")

    inject("pay", UNREADABLE[what], message_id="m1")
    worker = harness()
    (outcome,) = worker.drain()
    assert isinstance(outcome, Buried)
    (letter,) = worker.dead_letters()
    assert (letter.message_id, letter.reason, letter.deliveries) == ("m1", "undecodable", 1)
    assert letter.causes[0].type == "stagepost.Undecodable"
    assert letter.envelope == UNREADABLE[what]
    assert ledger.entries == []
    assert pending(worker, app).is_drained


def test_of_several_messages_in_an_envelope_all_are_handled_or_none(
    app: App, harness: NewHarness, inject: Inject, ledger: Ledger
) -> None:
    other: Target[Receipt, None] = app.remote("other", Receipt)
    sent: list[str] = []

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, order.id)
        sent.append(ctx.send(other, Receipt(order.id)))
        if order.id == "second" and ctx.attempt == 1:
            raise ValueError("not yet")

    messages = tuple(Message("Order", msgspec.Raw(b'{"id":"%b"}' % name)) for name in (b"first", b"second"))
    inject(
        "pay",
        encode_envelope(
            Envelope(
                message_id="m1",
                flow_id="flow",
                kind="send",
                to="pay",
                sender="x",
                messages=messages,
                origin_at=1,
                sent_at=1,
            )
        ),
    )
    worker = harness()
    assert isinstance(worker.run_one(), Redelivered)
    assert ledger.entries == []
    worker.drain()
    assert ledger.entries == ["first", "second"]
    assert sent[:2] == sent[2:]
    assert len(set(sent)) == 2


# Somebody else has it


def lose(app: App, worker: Harness) -> None:
    """The worker is taken for dead: what it holds is given back, and claimed by another."""
    access = engine_of(app).access()
    access.claimer.release(access.session.queue.owned("harness/1"), "takeover")
    assert len(access.claimer.claim(list(engine_of(app).stages()), 1, "harness/2", "takeover")) == 1
    access.session.close()


@pytest.mark.in_one_database
@pytest.mark.parametrize("touches", [True, False])
def test_an_owner_that_lost_its_message_changes_nothing(
    app: App, harness: NewHarness, ledger: Ledger, touches: bool
) -> None:
    other: Target[Receipt, None] = app.remote("other", Receipt)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        if touches:
            ledger.write(ctx, order.id)
        ctx.send(other, Receipt(order.id))

    app.start(pay, Order("o1"), flow_id="flow")
    worker = harness()
    claim = worker.claim_one()
    assert claim is not None
    lose(app, worker)
    assert isinstance(worker.transaction.run(claim), Lost)
    assert ledger.entries == []
    assert worker.access.claimer.pending(["other"]).is_drained
    assert len(worker.access.session.queue.owned("harness/2")) == 1
    assert "committed" not in states(worker)


@pytest.mark.parametrize("error", [ValueError("failed"), Refuse("refused")], ids=["would redeliver", "would bury"])
def test_an_owner_that_lost_its_message_counts_no_failure_either(
    app: App, harness: NewHarness, error: Exception
) -> None:
    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        raise error

    app.start(pay, Order("o1"), flow_id="flow")
    worker = harness()
    claim = worker.claim_one()
    assert claim is not None
    lose(app, worker)
    assert isinstance(worker.transaction.run(claim), Lost)
    assert worker.dead_letters() == []
    assert not {"failed", "delayed", "dead"} & set(states(worker))


@pytest.mark.in_one_database
def test_a_lost_message_stays_lost_when_the_handler_swallows_it(app: App, harness: NewHarness, ledger: Ledger) -> None:
    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        for _ in range(2):
            with suppress(Exception):
                ledger.write(ctx, order.id)

    app.start(pay, Order("o1"), flow_id="flow")
    worker = harness()
    claim = worker.claim_one()
    assert claim is not None
    lose(app, worker)
    assert isinstance(worker.transaction.run(claim), Lost)
    assert ledger.entries == []


def test_a_message_that_comes_again_after_its_commit_is_recognised(
    app: App, harness: NewHarness, ledger: Ledger
) -> None:
    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ledger.write(ctx, order.id)

    app.start(pay, Order("o1"), flow_id="flow")
    worker = harness()
    claim = worker.claim_one()
    assert claim is not None
    assert isinstance(worker.transaction.run(claim), Completed)
    assert isinstance(worker.transaction.run(claim), Lost)
    assert ledger.entries == ["o1"]
