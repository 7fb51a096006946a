"""Requests, replies, next, send: what arrives where, with which state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from stagepost import App, Context, StagedEndpoint, Target
from stagepost.flow.ids import node_name
from stagepost.testing import Harness, ManualClock
from stagepost.testing.contract.givens import MEGABYTE

if TYPE_CHECKING:
    from tests.conftest import Inject

NewHarness = Callable[..., Harness]
Numbers = StagedEndpoint["Number", "Number"]

IN_EVERY_MODE = True


@dataclass
class Number:
    value: int
    note: str = ""


@dataclass
class Text:
    value: str


@dataclass
class Sum:
    total: int = 0
    seen: list[int] = field(default_factory=list)


@dataclass
class Level:
    name: str = "fresh"


@pytest.fixture
def arrived() -> list[int]:
    """What came to the endpoint ``done``."""
    return []


@pytest.fixture
def done(app: App, arrived: list[int]) -> Target[Number, None]:
    @app.endpoint("done")
    def done(ctx: Context, number: Number) -> None:
        arrived.append(number.value)

    return done


@pytest.fixture
def double(app: App) -> Target[Number, Number]:
    @app.endpoint("double")
    def double(ctx: Context, number: Number) -> Number:
        return Number(number.value * 2)

    return double


def run(harness: NewHarness, *, seed: int = 0) -> Harness:
    """Runs everything, and nothing may have died of it."""
    worker = harness(seed=seed)
    worker.drain()
    assert worker.dead_letters() == []
    return worker


# What a handler is told


def test_a_handler_is_told_who_it_is_and_where_its_message_comes_from(
    app: App, harness: NewHarness, clock: ManualClock
) -> None:
    seen: list[Any] = []
    begin = app.staged("count")

    @begin.stage
    def first(ctx: Context, number: Number) -> None:
        seen.append((ctx.message_id, ctx.flow_id, ctx.endpoint, ctx.stage, ctx.sender, ctx.attempt, ctx.redelivered))
        clock.advance(5)
        ctx.next(Text("x"))

    @begin.stage
    def second(ctx: Context, text: Text) -> None:
        seen.append((ctx.flow_id, ctx.endpoint, ctx.stage, ctx.sender, ctx.started_at, ctx.state))

    started = app.start(begin, Number(1), flow_id="order:1")
    run(harness)
    assert seen == [
        (started.message_id, "order:1", "count", "count", node_name("app"), 1, False),
        ("order:1", "count", "count.second", "count", datetime.fromtimestamp(1_700_000_000, UTC), None),
    ]


def test_a_handler_is_told_which_attempt_it_is(app: App, harness: NewHarness) -> None:
    seen: list[tuple[int, bool]] = []

    @app.endpoint("count")
    def count(ctx: Context, number: Number) -> None:
        seen.append((ctx.attempt, ctx.redelivered))
        if ctx.attempt < 3:
            raise ValueError

    app.start(count, Number(1), flow_id="flow")
    run(harness)
    assert seen == [(1, False), (2, True), (3, True)]


def test_a_message_that_was_given_back_is_redelivered_though_it_is_the_first_attempt(
    app: App, harness: NewHarness
) -> None:
    seen: list[tuple[int, bool]] = []

    @app.endpoint("count")
    def count(ctx: Context, number: Number) -> None:
        seen.append((ctx.attempt, ctx.redelivered))

    app.start(count, Number(1), flow_id="flow")
    worker = harness()
    claim = worker.claim_one()
    assert claim is not None
    worker.access.claimer.release([claim], worker.node)
    worker.drain()
    assert seen == [(1, True)]


def test_a_message_has_the_same_id_for_its_sender_and_its_receiver(app: App, harness: NewHarness) -> None:
    sent: list[str | None] = []
    received: list[str] = []
    begin = app.staged("begin")

    @app.endpoint("other")
    def other(ctx: Context, number: Number) -> Number | None:
        received.append(ctx.message_id)
        sent.append(ctx.reply(number))
        return None

    @begin.stage
    def first(ctx: Context, number: Number) -> None:
        received.append(ctx.message_id)
        sent.append(ctx.request(other, number))

    @begin.stage
    def second(ctx: Context, number: Number) -> None:
        received.append(ctx.message_id)
        sent.append(ctx.next(number))

    @begin.stage
    def third(ctx: Context, number: Number) -> None:
        received.append(ctx.message_id)

    sent.append(app.start(begin, Number(1), flow_id="flow").message_id)
    run(harness)
    assert sorted(map(str, sent)) == sorted(received)
    assert len(set(received)) == len(["begin", "other", "second", "third"])


# Request and reply


def test_a_reply_runs_the_next_stage_with_the_state_as_it_was_when_the_request_was_made(
    app: App, harness: NewHarness, done: Target[Number, None], double: Target[Number, Number], arrived: list[int]
) -> None:
    total: Numbers = app.staged("total")

    @total.stage
    def first(ctx: Context, state: Sum, number: Number) -> None:
        state.total = number.value
        ctx.request(double, number)
        state.total = -1

    @total.stage
    def second(ctx: Context, state: Sum, number: Number) -> None:
        state.total += number.value
        ctx.request(double, number)

    @total.stage
    def third(ctx: Context, state: Sum, number: Number) -> Number:
        return Number(state.total + number.value)

    app.start(total, Number(5), flow_id="flow", reply_to=done)
    run(harness)
    assert arrived == [5 + 10 + 20]


def test_a_message_is_sent_as_it_was_when_the_call_was_made(
    app: App, harness: NewHarness, done: Target[Number, None], arrived: list[int]
) -> None:
    @app.endpoint("begin")
    def begin(ctx: Context, number: Number) -> None:
        ctx.send(done, number)
        number.value = -1

    app.start(begin, Number(5), flow_id="flow")
    run(harness)
    assert arrived == [5]


@pytest.mark.parametrize("seed", range(4))
def test_every_level_of_a_call_finds_its_own_state_whatever_the_order_messages_run_in(
    app: App, harness: NewHarness, done: Target[Number, None], arrived: list[int], seed: int
) -> None:
    """``top`` asks ``mid`` twice, which asks ``leaf``; three flows at once."""
    found: dict[str, list[str]] = {}
    mid: Numbers = app.staged("mid")
    top: Numbers = app.staged("top")

    @app.endpoint("leaf")
    def leaf(ctx: Context, state: Level, number: Number) -> Number:
        found.setdefault(ctx.flow_id, []).append(f"leaf:{state.name}")
        state.name = "lost with the reply"
        return Number(number.value + 1)

    @mid.stage
    def mid_begins(ctx: Context, state: Level, number: Number) -> None:
        found.setdefault(ctx.flow_id, []).append(f"mid:{state.name}")
        state.name = f"mid of {ctx.flow_id}"
        ctx.request(leaf, number)

    @mid.stage
    def mid_ends(ctx: Context, state: Level, number: Number) -> Number:
        found.setdefault(ctx.flow_id, []).append(state.name)
        return Number(number.value * 10)

    @top.stage
    def top_begins(ctx: Context, state: Level, number: Number) -> None:
        state.name = f"top of {ctx.flow_id}"
        ctx.request(mid, number)

    @top.stage
    def top_goes_on(ctx: Context, state: Level, number: Number) -> None:
        found.setdefault(ctx.flow_id, []).append(state.name)
        state.name += ", again"
        ctx.request(mid, number)

    @top.stage
    def top_ends(ctx: Context, state: Level, number: Number) -> Number:
        found.setdefault(ctx.flow_id, []).append(state.name)
        return number

    for n in range(3):
        app.start(top, Number(n), flow_id=f"f{n}", reply_to=done)
    run(harness, seed=seed)
    assert sorted(arrived) == [((n + 1) * 10 + 1) * 10 for n in range(3)]
    for n in range(3):
        call = ["mid:fresh", "leaf:fresh", f"mid of f{n}"]
        assert found[f"f{n}"] == [*call, f"top of f{n}", *call, f"top of f{n}, again"]


def test_a_calculation_over_four_endpoints_comes_to_its_result(
    app: App, harness: NewHarness, done: Target[Number, None], arrived: list[int], double: Target[Number, Number]
) -> None:
    """The example of the field: ``a * b - (c / d + e)``, with b = 2, c = 6, d = 3 and e = 4."""
    divide: Numbers = app.staged("divide")
    add: Numbers = app.staged("add")
    subtract: Numbers = app.staged("subtract")

    @divide.stage
    def by_three(ctx: Context, number: Number) -> Number:
        return Number(number.value // 3)

    @add.stage
    def ask_divide(ctx: Context, state: Sum, number: Number) -> None:
        state.total = 4
        ctx.request(divide, number)

    @add.stage
    def add_four(ctx: Context, state: Sum, quotient: Number) -> Number:
        return Number(quotient.value + state.total)

    @subtract.stage
    def ask_double(ctx: Context, state: Sum, number: Number) -> None:
        ctx.request(double, number)

    @subtract.stage
    def ask_add(ctx: Context, state: Sum, product: Number) -> None:
        state.total = product.value
        ctx.request(add, Number(6))

    @subtract.stage
    def result(ctx: Context, state: Sum, number: Number) -> Number:
        return Number(state.total - number.value)

    for a in (10, 20):
        app.start(subtract, Number(a), flow_id=f"a={a}", reply_to=done)
    run(harness)
    assert sorted(arrived) == [10 * 2 - (6 // 3 + 4), 20 * 2 - (6 // 3 + 4)]


def test_each_of_many_requests_runs_the_next_stage_with_the_state_of_its_own_moment(
    app: App, harness: NewHarness, double: Target[Number, Number]
) -> None:
    found: list[tuple[int, list[int]]] = []
    scatter: StagedEndpoint[Number, None] = app.staged("scatter")

    @scatter.stage
    def ask(ctx: Context, state: Sum, number: Number) -> None:
        for n in range(10):
            state.seen.append(n)
            ctx.request(double, Number(n))

    @scatter.stage
    def gather(ctx: Context, state: Sum, number: Number) -> None:
        found.append((number.value, state.seen))

    app.start(scatter, Number(0), flow_id="flow")
    run(harness, seed=3)
    assert sorted(found) == [(n * 2, list(range(n + 1))) for n in range(10)]


def test_any_stage_may_reply_and_that_ends_its_endpoint(
    app: App, harness: NewHarness, done: Target[Number, None], arrived: list[int], double: Target[Number, Number]
) -> None:
    early: Numbers = app.staged("early")

    @early.stage
    def first(ctx: Context, number: Number) -> Number | None:
        if number.value == 0:
            return Number(-1)
        ctx.request(double, number)
        return None

    @early.stage
    def second(ctx: Context, number: Number) -> Number:
        return number

    app.start(early, Number(0), flow_id="a", reply_to=done)
    app.start(early, Number(4), flow_id="b", reply_to=done)
    run(harness)
    assert sorted(arrived) == [-1, 8]


def test_replying_by_call_is_replying_by_return(
    app: App, harness: NewHarness, done: Target[Number, None], arrived: list[int]
) -> None:
    @app.endpoint("answer")
    def answer(ctx: Context, number: Number) -> Number | None:
        reply = Number(number.value + 1)
        assert ctx.reply(reply) is not None
        reply.value = -1
        return None

    app.start(answer, Number(1), flow_id="flow", reply_to=done)
    run(harness)
    assert arrived == [2]


def test_a_reply_that_nobody_asked_for_goes_nowhere(app: App, harness: NewHarness) -> None:
    replied: list[str | None] = []

    @app.endpoint("by-return")
    def by_return(ctx: Context, number: Number) -> Number:
        return number

    @app.endpoint("by-call")
    def by_call(ctx: Context, number: Number) -> Number | None:
        replied.append(ctx.reply(number))
        return None

    app.start(by_return, Number(1), flow_id="a")
    app.start(by_call, Number(1), flow_id="b")
    worker = run(harness)
    assert replied == [None]
    assert [each.waypoint for each in worker.history("a")] == ["accepted", "received", "committed"]


def test_a_stage_may_also_reply_nothing(
    app: App, harness: NewHarness, done: Target[Number, None], arrived: list[int]
) -> None:
    @app.endpoint("silent")
    def silent(ctx: Context, number: Number) -> Number | None:
        return None

    app.start(silent, Number(1), flow_id="flow", reply_to=done)
    run(harness)
    assert arrived == []


# next and send


def test_next_carries_the_state_and_the_caller_to_the_next_stage(
    app: App, harness: NewHarness, done: Target[Number, None], arrived: list[int]
) -> None:
    steps: Numbers = app.staged("steps")

    @steps.stage
    def first(ctx: Context, state: Sum, number: Number) -> None:
        state.total = number.value
        ctx.next(Text("on"))
        state.total = -1

    @steps.stage
    def second(ctx: Context, state: Sum, text: Text) -> Number:
        assert text == Text("on")
        return Number(state.total)

    app.start(steps, Number(7), flow_id="flow", reply_to=done)
    run(harness)
    assert arrived == [7]


def test_a_stage_that_does_not_look_at_the_state_passes_it_on(
    app: App, harness: NewHarness, done: Target[Number, None], arrived: list[int], double: Target[Number, Number]
) -> None:
    steps: Numbers = app.staged("steps")

    @steps.stage
    def first(ctx: Context, state: Sum, number: Number) -> None:
        state.total = number.value
        ctx.next(number)

    @steps.stage
    def second(ctx: Context, number: Number) -> None:
        ctx.request(double, number)

    @steps.stage
    def third(ctx: Context, state: Sum, number: Number) -> Number:
        return Number(state.total * 100 + number.value)

    app.start(steps, Number(7), flow_id="flow", reply_to=done)
    run(harness)
    assert arrived == [714]


def test_what_is_sent_is_not_part_of_the_call_so_its_reply_goes_nowhere(
    app: App, harness: NewHarness, done: Target[Number, None], arrived: list[int], double: Target[Number, Number]
) -> None:
    @app.endpoint("begin")
    def begin(ctx: Context, number: Number) -> Number:
        ctx.send(double, number)
        return Number(1)

    app.start(begin, Number(5), flow_id="flow", reply_to=done)
    run(harness)
    assert arrived == [1]


def test_a_stage_may_send_while_it_requests_or_replies(
    app: App, harness: NewHarness, done: Target[Number, None], arrived: list[int], double: Target[Number, Number]
) -> None:
    begin: Numbers = app.staged("begin")

    @begin.stage
    def first(ctx: Context, number: Number) -> None:
        ctx.send(done, Number(1))
        ctx.request(double, number)
        ctx.send(done, Number(2))

    @begin.stage
    def second(ctx: Context, number: Number) -> Number:
        ctx.send(done, Number(3))
        return Number(4)

    app.start(begin, Number(0), flow_id="flow", reply_to=done)
    run(harness)
    assert sorted(arrived) == [1, 2, 3, 4]


def test_a_delayed_message_is_handled_when_it_is_due(app: App, harness: NewHarness, clock: ManualClock) -> None:
    begun = clock.monotonic()
    ran: list[tuple[int, float]] = []
    steps = app.staged("steps")

    @app.endpoint("later")
    def later(ctx: Context, number: Number) -> None:
        ran.append((number.value, clock.monotonic() - begun))

    @steps.stage
    def first(ctx: Context, number: Number) -> None:
        ctx.send(later, Number(1), delay=90)
        ctx.send(later, Number(2), delay=0.5)
        ctx.send(later, Number(3))
        ctx.next(number, delay=30)

    @steps.stage
    def second(ctx: Context, number: Number) -> None:
        ran.append((number.value, clock.monotonic() - begun))

    app.start(steps, Number(4), flow_id="a")
    app.start(later, Number(5), flow_id="b", delay=60)
    run(harness)
    assert ran == [(3, 0), (2, 0.5), (4, 30), (5, 60), (1, 90)]


# State and messages as they travel


def test_a_flow_begins_with_an_empty_state(app: App, harness: NewHarness) -> None:
    found: list[Sum] = []

    @app.endpoint("begin")
    def begin(ctx: Context, state: Sum, number: Number) -> None:
        found.append(state)
        assert ctx.state is state
        state.seen.append(1)

    for n in range(2):
        app.start(begin, Number(n), flow_id=f"f{n}")
    run(harness)
    assert found == [Sum(0, [1]), Sum(0, [1])]


@pytest.mark.parametrize("state", [b"", b',"state":null', b',"state":{}'], ids=["none", "null", "empty"])
def test_a_foreign_sender_need_not_know_of_the_state(
    app: App, harness: NewHarness, inject: Inject, state: bytes
) -> None:
    found: list[Sum] = []

    @app.endpoint("begin")
    def begin(ctx: Context, state: Sum, number: Number) -> None:
        found.append(state)

    inject(
        "begin",
        b'{"message_id":"m1","flow_id":"flow","kind":"send","to":"begin","sender":"x","origin_at":1,"sent_at":1,'
        b'"messages":[{"type":"Number","body":{"value":7}%b}]}' % state,
    )
    run(harness)
    assert found == [Sum()]


def test_a_failed_attempts_changes_to_the_state_are_not_seen_by_the_next(app: App, harness: NewHarness) -> None:
    found: list[int] = []

    @app.endpoint("begin")
    def begin(ctx: Context, state: Sum, number: Number) -> None:
        state.total += 1
        found.append(state.total)
        if ctx.attempt == 1:
            raise ValueError

    app.start(begin, Number(1), flow_id="flow")
    run(harness)
    assert found == [1, 1]


def test_a_field_the_receiver_does_not_know_is_ignored_and_one_the_sender_left_out_has_its_default(
    app: App, harness: NewHarness, inject: Inject
) -> None:
    """Two versions of a service may run side by side."""
    found: list[Number] = []

    @app.endpoint("begin")
    def begin(ctx: Context, number: Number) -> None:
        found.append(number)

    inject(
        "begin",
        b'{"message_id":"m1","flow_id":"flow","kind":"send","to":"begin","sender":"x","origin_at":1,"sent_at":1,'
        b'"tomorrow":[1],"messages":[{"type":"Number","body":{"value":7,"colour":"red"}}]}',
    )
    run(harness)
    assert found == [Number(7, "")]


def test_big_messages_in_any_script_arrive_as_they_were_sent(app: App, harness: NewHarness) -> None:
    found: list[str] = []
    text = 'Grüße, 注文 🚚\n\t"\\' * (MEGABYTE // 16)

    @app.endpoint("last")
    def last(ctx: Context, message: Text) -> None:
        found.append(message.value)

    @app.endpoint("begin")
    def begin(ctx: Context, message: Text) -> None:
        ctx.send(last, message)

    app.start(begin, Text(text), flow_id="flow")
    run(harness)
    assert found == [text]


def test_a_scatter_in_random_order_leaves_the_same_behind_as_in_any_other(
    app: App, harness: NewHarness, done: Target[Number, None], arrived: list[int], double: Target[Number, Number]
) -> None:
    spread: Numbers = app.staged("spread")

    @spread.stage
    def ask(ctx: Context, number: Number) -> None:
        for n in range(number.value):
            ctx.request(double, Number(n))

    @spread.stage
    def answer(ctx: Context, number: Number) -> Number:
        return number

    for flow in range(4):
        app.start(spread, Number(flow), flow_id=f"f{flow}", reply_to=done)
    run(harness, seed=11)
    assert sorted(arrived) == sorted(2 * n for flow in range(4) for n in range(flow))
