"""``app.request``: a dead letter that stands where the reply would have come from ends the wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import pytest

from stagepost import App, Context, FlowDied, ReplyFuture, ReplyTimeout, StagedEndpoint, Target
from stagepost.app.app import engine_of
from stagepost.flow.codec import encode_envelope
from stagepost.flow.envelope import Envelope, Message
from stagepost.liveness.incarnation import listening
from stagepost.ports.dead_letters import KeptLetter, Selection
from stagepost.testing import Harness, ManualClock
from stagepost.testing.contract.givens import a_letter, committed
from stagepost.transaction.queue_commit import QueueCommit
from tests.waiting import PATIENCE_SECONDS, wait_until

if TYPE_CHECKING:
    from tests.conftest import Inject

IN_EVERY_MODE = True

NewHarness = Callable[..., Harness]


@dataclass
class Number:
    value: int


@dataclass
class Shop:
    """``double`` refuses what is negative; ``twice`` asks it, and ``via`` asks that one."""

    app: App
    double: Target[Number, Number]
    twice: Target[Number, Number]
    via: Target[Number, Number]


@pytest.fixture
def shop(app: App) -> Iterator[Shop]:
    @app.endpoint("double")
    def double(ctx: Context, number: Number) -> Number:
        if number.value < 0:
            ctx.refuse("negative")
        return Number(number.value * 2)

    def asks(name: str, target: Target[Number, Number]) -> Target[Number, Number]:
        endpoint: StagedEndpoint[Number, Number] = app.staged(name)

        @endpoint.stage
        def ask(ctx: Context, number: Number) -> None:
            ctx.request(target, number)

        @endpoint.stage
        def answer(ctx: Context, number: Number) -> Number:
            return number

        return endpoint

    twice = asks("twice", double)
    yield Shop(app, double, twice, asks("via", twice))
    app.close()


@pytest.fixture
def die(app: App, clock: ManualClock) -> Callable[[ReplyFuture[Number]], FlowDied]:
    """Wait, while time goes on, until the wait is ended by a dead letter."""

    def end(asked: ReplyFuture[Number]) -> FlowDied:
        def is_over() -> bool:
            clock.advance(1)
            return "over" in repr(asked)

        wait_until(is_over, "the wait has ended")
        with pytest.raises(FlowDied) as caught:
            asked.result(PATIENCE_SECONDS)
        return caught.value

    return end


Die = Callable[[ReplyFuture[Number]], FlowDied]


def letter_of(worker: Harness, flow_id: str) -> KeptLetter:
    (kept,) = worker.access.session.dead_letters.select(Selection("flow", flow_id))
    return kept


def my_address() -> str:
    (owner,) = (each for each in listening if each.startswith("shop/"))
    return owner.replace("/", ".reply.")


@pytest.mark.parametrize("name", ["double", "twice", "via"])
def test_a_dead_letter_at_any_depth_ends_the_wait_and_says_what_and_where_and_what_to_do(
    shop: Shop, harness: NewHarness, die: Die, name: str
) -> None:
    asked = shop.app.request(getattr(shop, name), Number(-1), flow_id="flow")
    worker = harness()
    worker.drain()
    kept = letter_of(worker, "flow")
    error = die(asked)
    assert (error.flow_id, error.letter_id, error.summary) == ("flow", kept.id, "stagepost.Refuse: negative")
    assert str(error) == (
        f"{name} will not reply in flow 'flow': {kept.letter.message_id} at double is dead letter {kept.id} (refused): "
        f"stagepost.Refuse: negative. Mend the cause, then run: stagepost dead replay {kept.id}. The flow goes on "
        "then, and its reply will be journalled as expired: this wait is over."
    )
    with pytest.raises(FlowDied):
        asked.result(0)


def test_a_dead_letter_of_a_later_stage_ends_the_wait(app: App, harness: NewHarness, die: Die) -> None:
    endpoint: StagedEndpoint[Number, Number] = app.staged("steps")

    @endpoint.stage
    def first(ctx: Context, number: Number) -> None:
        ctx.next(number)

    @endpoint.stage
    def second(ctx: Context, number: Number) -> Number:
        raise ConnectionError("no answer")

    asked = app.request(endpoint, Number(1), flow_id="flow")
    harness().drain()
    assert die(asked).summary == "ConnectionError: no answer"
    app.close()


def test_one_of_several_branches_that_owe_the_reply_ends_the_wait(
    shop: Shop, app: App, harness: NewHarness, die: Die
) -> None:
    gather: StagedEndpoint[Number, Number] = app.staged("gather")

    @gather.stage
    def scatter(ctx: Context, number: Number) -> None:
        for value in (-1, 1):
            ctx.request(shop.double, Number(value))

    @gather.stage
    def collect(ctx: Context, number: Number) -> Number | None:
        return None

    asked = app.request(gather, Number(1), flow_id="flow")
    harness().drain()
    assert die(asked).summary == "stagepost.Refuse: negative"


def test_a_dead_letter_of_a_side_branch_does_not_end_the_wait(
    shop: Shop, app: App, harness: NewHarness, die: Die
) -> None:
    """It carries no frame of the one who asked: what it would have done is nothing that the reply waits for."""

    @app.endpoint("side")
    def side(ctx: Context, number: Number) -> None:
        ctx.refuse("never")

    place: StagedEndpoint[Number, Number] = app.staged("place")

    @place.stage
    def begin(ctx: Context, number: Number) -> None:
        ctx.send(side, number)
        ctx.next(number, delay=3600)

    @place.stage
    def end(ctx: Context, number: Number) -> Number:
        return number

    asked = app.request(place, Number(7), flow_id="flow")
    worker = harness()
    while not worker.dead_letters():
        worker.run_one()
    assert letter_of(worker, "flow").letter.stage == "side"
    # Another one in the same flow, which is told of its dead letter by the same look, or a later one.
    other = app.request(shop.double, Number(-1), flow_id="flow", message_id="other")
    while len(worker.dead_letters()) < 2:
        worker.run_one()
    assert die(other).summary == "stagepost.Refuse: negative"
    assert "waiting" in repr(asked)
    worker.drain()
    assert asked.result(PATIENCE_SECONDS) == Number(7)


def test_bytes_that_are_no_envelope_end_no_wait(shop: Shop, harness: NewHarness, inject: Inject, die: Die) -> None:
    asked = shop.app.request(shop.double, Number(1), flow_id="flow")
    inject("double", b"no envelope", message_id="foreign", flow_id="flow")
    worker = harness()
    while not worker.dead_letters():
        worker.run_one()
    other = shop.app.request(shop.double, Number(-1), flow_id="other")
    worker.drain()
    die(other)
    assert asked.result(PATIENCE_SECONDS) == Number(2)


def test_a_reply_that_its_queue_would_never_take_ends_the_wait(shop: Shop, harness: NewHarness, die: Die) -> None:
    """Its stack is empty: what it brings back is in the message."""
    asked = shop.app.request(shop.double, Number(1), flow_id="flow")
    message = Message("Number", msgspec.Raw(b"{}"), msgspec.Raw(msgspec.json.encode(asked._pending.token)))
    envelope = Envelope(
        message_id="m1",
        flow_id="flow",
        kind="reply",
        to=my_address(),
        sender="double",
        messages=(message,),
        origin_at=1,
        sent_at=1,
    )
    session = harness().access.session
    with committed(session):
        session.dead_letters.bury(a_letter("m1", flow_id="flow", envelope=encode_envelope(envelope)))
    assert die(asked).summary


def test_a_replay_brings_the_reply_too_late(shop: Shop, app: App, harness: NewHarness, die: Die) -> None:
    is_down = True

    @app.endpoint("frail")
    def frail(ctx: Context, number: Number) -> Number:
        if is_down:
            ctx.refuse("not now")
        return number

    asked = app.request(frail, Number(1), flow_id="flow")
    worker = harness()
    worker.drain()
    die(asked)
    is_down = False
    kept = letter_of(worker, "flow")
    with committed(worker.access.session):
        worker.access.session.dead_letters.remove(kept.id)
        QueueCommit(worker.access.session, engine_of(app).clock, "test").revive(kept.letter)
    worker.drain()
    wait_until(lambda: worker.history("flow")[-1].waypoint == "expired", "the late reply expired")
    with pytest.raises(FlowDied):
        asked.result(0)


def test_a_dead_letter_that_comes_after_the_reply_or_after_the_time_changes_nothing(
    shop: Shop, app: App, harness: NewHarness, die: Die
) -> None:
    scatter: StagedEndpoint[Number, Number] = app.staged("scatter")

    @scatter.stage
    def ask(ctx: Context, number: Number) -> None:
        ctx.request(shop.double, number)
        ctx.request(late, number)

    @scatter.stage
    def answer(ctx: Context, number: Number) -> Number:
        return number

    late: StagedEndpoint[Number, Number] = app.staged("late")

    @late.stage
    def wait(ctx: Context, number: Number) -> None:
        ctx.next(number, delay=3600)

    @late.stage
    def fall(ctx: Context, number: Number) -> Number:
        ctx.refuse("late")

    asked = app.request(scatter, Number(1), flow_id="flow")
    timed_out = app.request(late, Number(1), flow_id="timed out")
    with pytest.raises(ReplyTimeout):
        timed_out.result(0.01)
    worker = harness()
    while worker.run_one():
        pass
    assert asked.result(PATIENCE_SECONDS) == Number(2)
    worker.drain()
    assert len(worker.dead_letters()) == 2
    other = app.request(shop.double, Number(-1), flow_id="other")
    worker.drain()
    die(other)
    assert asked.result(0) == Number(2)
    with pytest.raises(ReplyTimeout):
        timed_out.result(0)


def test_many_who_wait_each_hear_of_their_own(shop: Shop, harness: NewHarness, die: Die) -> None:
    asked = [shop.app.request(shop.twice, Number(n), flow_id=f"flow {n}") for n in range(-10, 10)]
    harness().drain()
    assert [die(each).flow_id for each in asked[:10]] == [each.flow_id for each in asked[:10]]
    assert [each.result(PATIENCE_SECONDS) for each in asked[10:]] == [Number(2 * n) for n in range(10)]
