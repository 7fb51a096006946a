"""A stage that fails pauses and is probed: an outage fills no dead letters, and a bunch of poison still ends there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from stagepost import App, Context, Endpoint, Redelivery
from stagepost.app.app import engine_of
from stagepost.flow.clock import SECOND
from stagepost.ports.dead_letters import Selection
from stagepost.testing import Harness, ManualClock
from stagepost.transaction.outcome import Completed, Outcome, Redelivered, Returned
from stagepost.transaction.queue_commit import QueueCommit

if TYPE_CHECKING:
    from tests.conftest import Inject, Ledger

NewHarness = Callable[..., Harness]

HOUR = 3600

IN_EVERY_MODE = True


@dataclass
class Order:
    id: str


@dataclass
class Shop:
    """``is_down``: whatever the stage needs is not there. ``poison``: what fails whatever is there."""

    app: App
    ledger: Ledger
    is_down: Callable[[], bool] = lambda: False

    def pay(self, **terms: Any) -> Endpoint[Order, None]:
        @self.app.endpoint("pay", **terms)
        def pay(ctx: Context, order: Order) -> None:
            if order.id.startswith("refused"):
                ctx.refuse("no")
            if self.is_down() or order.id.startswith("poison"):
                raise ConnectionError(f"no answer for {order.id}")
            self.ledger.write(ctx, order.id)

        return pay

    def order(self, target: Endpoint[Order, None], count: int, kind: str = "good") -> list[str]:
        names = [f"{kind} {n}" for n in range(count)]
        for name in names:
            self.app.start(target, Order(name), flow_id=name, message_id=name)
        return names


@pytest.fixture
def shop(app: App, ledger: Ledger) -> Shop:
    return Shop(app, ledger)


def run(worker: Harness, count: int) -> list[Outcome | None]:
    return [worker.run_one() for _ in range(count)]


def is_paused(worker: Harness) -> bool:
    return bool(worker.access.session.circuits.paused())


def attempts(worker: Harness, name: str) -> Counter[str]:
    return Counter(each.waypoint for each in worker.history(name))


def run_for(worker: Harness, clock: ManualClock, seconds: int) -> None:
    end = clock.now() + seconds * SECOND
    while clock.now() < end:
        if worker.run_one() is None:
            clock.advance(15)


def run_until_paused(worker: Harness, clock: ManualClock) -> None:
    while not is_paused(worker):
        if worker.run_one() is None:
            clock.advance(1)


# An outage


def test_an_outage_of_an_hour_fills_no_dead_letters_and_afterwards_all_is_done(
    shop: Shop, harness: NewHarness, clock: ManualClock
) -> None:
    end = clock.now() + HOUR * SECOND
    shop.is_down = lambda: clock.now() < end
    names = shop.order(shop.pay(), 200)
    worker = harness()
    outcomes = worker.drain()
    assert worker.dead_letters() == []
    assert sorted(shop.ledger.entries) == sorted(names)
    assert not is_paused(worker)
    counted = [each for each in outcomes if isinstance(each, Redelivered)]
    uncounted = [each for each in outcomes if isinstance(each, Returned)]
    assert len(counted) == 10
    # An hour's probes, and what had been claimed before.
    assert 50 < len(uncounted) < 100
    assert clock.now() - end < 2 * 60 * SECOND


def test_an_outage_with_a_policy_of_one_attempt_buries_nobody_either(
    shop: Shop, harness: NewHarness, clock: ManualClock
) -> None:
    end = clock.now() + HOUR * SECOND
    shop.is_down = lambda: clock.now() < end
    names = shop.order(shop.pay(redelivery=Redelivery.none()), 30)
    worker = harness()
    worker.drain()
    assert worker.dead_letters() == []
    assert sorted(shop.ledger.entries) == sorted(names)
    taken_back = [name for name in names if attempts(worker, name)["replayed"]]
    assert len(taken_back) == 9
    assert all(attempts(worker, name)["dead"] == 1 for name in taken_back)


def test_outages_that_come_back_bury_nobody_before_his_attempts_are_used_up(
    shop: Shop, harness: NewHarness, clock: ManualClock
) -> None:
    begin = clock.now()
    shop.is_down = lambda: (clock.now() - begin) // (60 * SECOND) % 2 == 0
    names = shop.order(shop.pay(), 100)
    worker = harness()
    worker.drain()
    assert worker.dead_letters() == []
    assert sorted(shop.ledger.entries) == sorted(names)


def test_what_was_claimed_before_the_pause_fails_uncounted(shop: Shop, harness: NewHarness) -> None:
    shop.is_down = lambda: True
    shop.order(shop.pay(redelivery=Redelivery.none()), 20)
    worker = harness()
    late = worker.claim_one()
    assert late is not None
    run(worker, 10)
    assert is_paused(worker)
    outcome = worker.transaction.run(late)
    assert isinstance(outcome, Returned)
    assert "it failed at a paused stage: ConnectionError: no answer" in outcome.why
    assert worker.dead_letters() == []
    (breaker,) = worker.access.session.circuits.paused()
    assert breaker.pause is not None
    assert breaker.pause.probes == 0


# What makes it pause


def test_it_pauses_after_so_many_messages_in_a_row(shop: Shop, harness: NewHarness) -> None:
    shop.is_down = lambda: True
    shop.order(shop.pay(pause_after=4), 9)
    worker = harness()
    run(worker, 3)
    assert not is_paused(worker)
    run(worker, 1)
    assert is_paused(worker)


def test_a_success_in_between_begins_anew(shop: Shop, harness: NewHarness) -> None:
    pay = shop.pay(pause_after=4)
    worker = harness()
    for n in range(6):
        shop.order(pay, 2, f"poison {n}")
        run(worker, 2)
        shop.order(pay, 1, f"good {n}")
        while not isinstance(worker.run_one(), Completed):
            pass
    assert not is_paused(worker)


def test_another_stages_success_changes_nothing(shop: Shop, harness: NewHarness) -> None:
    pay = shop.pay(pause_after=3)

    @shop.app.endpoint("other")
    def other(ctx: Context, order: Order) -> None: ...

    worker = harness()
    for n in range(3):
        shop.order(pay, 1, f"poison {n}")
        run(worker, 1)
        shop.order(other, 1, f"other {n}")
        run(worker, 1)
    assert is_paused(worker)


def test_one_message_that_fails_for_ever_pauses_nothing_and_is_buried_by_its_policy(
    shop: Shop, harness: NewHarness
) -> None:
    shop.order(shop.pay(pause_after=2), 1, "poison")
    worker = harness()
    assert len(worker.drain()) == 7
    assert len(worker.dead_letters()) == 1
    assert not is_paused(worker)


def test_what_is_refused_or_hopeless_is_the_messages_own(shop: Shop, harness: NewHarness) -> None:
    pay = shop.pay(pause_after=3, redelivery=Redelivery().with_hopeless(ConnectionError))
    shop.order(pay, 9, "refused")
    shop.order(pay, 9, "poison")
    worker = harness()
    worker.drain()
    assert len(worker.dead_letters()) == 18
    assert worker.access.session.circuits.paused() == []


def test_it_can_be_switched_off(shop: Shop, harness: NewHarness) -> None:
    shop.order(shop.pay(pause_after=0), 30, "poison")
    worker = harness()
    worker.drain()
    assert len(worker.dead_letters()) == 30


def test_it_can_be_switched_off_for_all_of_an_app_and_on_again_for_a_stage() -> None:
    app = App("shop", database="memory:", pause_after=None)
    shipping = app.staged("ship", pause_after=5)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None: ...

    @shipping.stage
    def pack(ctx: Context, order: Order) -> None:
        ctx.next(order)

    @shipping.stage(pause_after=7)
    def send(ctx: Context, order: Order) -> None: ...

    assert {name: stage.pause_after for name, stage in engine_of(app).stages().items()} == {
        "pay": 0,
        "ship": 5,
        "ship.send": 7,
    }


# Probing


def test_one_at_a_time_is_probed_after_growing_pauses_and_another_one_each_time(
    shop: Shop, harness: NewHarness, clock: ManualClock
) -> None:
    shop.is_down = lambda: True
    shop.order(shop.pay(pause_after=3), 12)
    worker, other = harness(owner="shop/1"), harness(owner="shop/2")
    run(worker, 3)
    while worker.run_one():
        pass
    began = clock.now()
    seen: list[str] = []
    waited: list[int] = []
    for _ in range(9):
        before = clock.now()
        while (claim := worker.claim_one()) is None:
            clock.advance(0.25)
        waited.append(clock.now() - before)
        assert other.claim_one() is None
        seen.append(claim.message_id)
        assert isinstance(worker.transaction.run(claim), Returned)
    assert len(set(seen)) == 9
    assert waited[0] < 2 * SECOND
    assert waited[0] < waited[1] < waited[2] < waited[3]
    assert clock.now() - began < 9 * 70 * SECOND
    assert worker.dead_letters() == []


def test_a_probe_that_succeeds_ends_the_pause_for_all(shop: Shop, harness: NewHarness, clock: ManualClock) -> None:
    is_down = True
    shop.is_down = lambda: is_down
    shop.order(shop.pay(pause_after=3), 12)
    worker = harness()
    run_until_paused(worker, clock)
    while worker.run_one():
        pass
    is_down = False
    clock.advance(2)
    assert isinstance(worker.run_one(), Completed)
    before = clock.now()
    while worker.run_one():
        pass
    assert clock.now() == before
    assert not is_paused(worker)
    assert len(shop.ledger.entries) == 12


def test_a_probe_whose_owner_gives_it_back_is_not_the_last_one(
    shop: Shop, harness: NewHarness, clock: ManualClock
) -> None:
    shop.is_down = lambda: True
    shop.order(shop.pay(pause_after=3), 6)
    worker, other = harness(owner="shop/1"), harness(owner="shop/2")
    run_until_paused(worker, clock)
    while worker.run_one():
        pass
    clock.advance(2)
    first = worker.claim_one()
    assert first is not None
    clock.advance(HOUR)
    assert other.claim_one() is None
    worker.access.claimer.release([first], "node")
    second = other.claim_one()
    assert second is not None
    assert second.message_id != first.message_id


# Poison


@pytest.mark.longer_on_postgres
def test_a_bunch_of_poison_ends_as_dead_letters_within_its_bound(
    shop: Shop, harness: NewHarness, clock: ManualClock
) -> None:
    names = shop.order(shop.pay(), 30, "poison")
    worker = harness()
    begin = clock.now()
    worker.drain()
    assert sorted(letter.flow_id for letter in worker.dead_letters()) == sorted(names)
    # A day, and then a minute or little more for each attempt that its policy allows.
    assert 24 * HOUR * SECOND <= clock.now() - begin <= (24 * HOUR + 30 * 7 * 70) * SECOND
    for name in names:
        assert attempts(worker, name)["failed"] == 7


@pytest.mark.longer_on_postgres
def test_poison_among_the_healthy_ends_by_its_policy_and_keeps_nobody_waiting(
    shop: Shop, harness: NewHarness, clock: ManualClock
) -> None:
    pay = shop.pay()
    bad = shop.order(pay, 40, "poison")
    good = shop.order(pay, 5)
    worker = harness()
    begin = clock.now()
    for n in range(400):
        good += shop.order(pay, 1, f"good, later {n}")
        while worker.run_one():
            pass
        clock.advance(5)
    assert sorted(shop.ledger.entries) == sorted(good)
    assert sorted(letter.flow_id for letter in worker.dead_letters()) == sorted(bad)
    assert clock.now() - begin < HOUR * SECOND
    for name in bad:
        # One more where its death counts among the failures that paused the stage.
        assert attempts(worker, name)["failed"] in (7, 8)


def test_what_a_pause_took_back_from_the_dead_gets_one_attempt_more_and_no_second_one(
    shop: Shop, harness: NewHarness, clock: ManualClock
) -> None:
    pay = shop.pay(redelivery=Redelivery.none(), pause_after=5)
    bad = shop.order(pay, 20, "poison")
    worker = harness()
    for n in range(200):
        shop.order(pay, 1, f"good {n}")
        while worker.run_one():
            pass
        clock.advance(5)
    assert sorted(letter.flow_id for letter in worker.dead_letters()) == sorted(bad)
    assert all(attempts(worker, name)["failed"] <= 2 for name in bad)
    assert any(attempts(worker, name)["failed"] == 2 for name in bad)


def test_what_is_taken_back_is_taken_in_the_order_of_its_letters_as_a_replay_takes_it(
    shop: Shop, harness: NewHarness, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the two might wait for each other."""
    shop.is_down = lambda: True
    pay = shop.pay(pause_after=3, redelivery=Redelivery(redeliveries=1, first_seconds=1))
    shop.order(pay, 2)
    worker = harness()
    claims = [claim for _ in range(2) if (claim := worker.claim_one()) is not None]
    for claim in claims:
        worker.transaction.run(claim)
    failed = [claim.message_id for claim in claims]
    clock.advance(60)
    claims = [claim for _ in range(2) if (claim := worker.claim_one()) is not None]
    # The first to fail is the last to die.
    for claim in sorted(claims, key=lambda claim: failed.index(claim.message_id), reverse=True):
        worker.transaction.run(claim)
    dead_letters = worker.access.session.dead_letters
    letters = [kept.id for kept in dead_letters.select(Selection("all"))]
    assert len(letters) == 2
    taken: list[int] = []
    remove = dead_letters.remove

    def exhumed(letter: int) -> bool:
        taken.append(letter)
        return remove(letter)

    monkeypatch.setattr(dead_letters, "remove", exhumed)
    shop.order(pay, 1, "another")
    run(worker, 1)
    assert is_paused(worker)
    assert taken == sorted(letters)


def test_what_runs_alone_is_no_exception(shop: Shop, harness: NewHarness, clock: ManualClock) -> None:
    shop.is_down = lambda: True
    shop.order(shop.pay(pause_after=3, redelivery=Redelivery.none()), 8)
    worker = harness()
    died = worker.claim_one()
    assert died is not None
    session = worker.access.session
    session.begin()
    QueueCommit(session, clock, "test").defer(died, 0, failures=0, deaths=1)
    session.commit()
    run_until_paused(worker, clock)
    while worker.run_one():
        pass
    for _ in range(50):
        while worker.run_one():
            pass
        clock.advance(60)
    assert worker.dead_letters() == []
    assert attempts(worker, died.flow_id)["received"] > 5


def test_a_probe_that_is_due_elsewhere_gives_no_stage_a_second_one(
    shop: Shop, harness: NewHarness, clock: ManualClock
) -> None:
    shop.is_down = lambda: True
    pay = shop.pay(pause_after=2)

    @shop.app.endpoint("ship", pause_after=2)
    def ship(ctx: Context, order: Order) -> None:
        raise ConnectionError("no answer either")

    shop.order(pay, 5)
    worker = harness()
    run_until_paused(worker, clock)
    while worker.run_one():
        pass
    clock.advance(2)
    probe = worker.claim_one()
    assert probe is not None
    shop.order(ship, 5, "parcel")
    while len(worker.access.session.circuits.paused()) < 2:
        worker.run_one()
    while worker.run_one():
        pass
    clock.advance(2)
    other = worker.claim_one()
    assert other is not None
    assert other.stage == "ship"
    assert worker.claim_one() is None


# What cannot be decoded


@dataclass
class Deployed:
    """A message type that the deployed code reads, or not: ``is_readable`` stands for what was deployed."""

    id: str

    def __post_init__(self) -> None:
        if not is_readable():
            raise ValueError("this version of the code does not know the field")


def is_readable() -> bool:
    return True


def foreign(stage: str, n: int) -> bytes:
    """An envelope whose body no version of the code can read."""
    return (
        b'{"message_id":"foreign %d","flow_id":"foreign %d","kind":"send","to":"%b","sender":"x","origin_at":%d,'
        b'"sent_at":1,"messages":[{"type":"Order","body":{"number":7}}]}' % (n, n, stage.encode(), n)
    )


def test_a_deploy_that_cannot_decode_what_waits_pauses_the_stage_and_buries_nothing(
    app: App, ledger: Ledger, harness: NewHarness, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.endpoint("pay")
    def pay(ctx: Context, message: Deployed) -> None:
        ledger.write(ctx, message.id)

    names = [f"order {n}" for n in range(30)]
    for name in names:
        app.start(pay, Deployed(name), flow_id=name, message_id=name)
    monkeypatch.setitem(globals(), "is_readable", lambda: False)
    worker = harness()
    outcomes = run(worker, 9)
    assert not is_paused(worker)
    assert [letter.reason for letter in worker.dead_letters()] == ["undecodable"] * 9
    outcomes += run(worker, 1)
    assert is_paused(worker)
    assert worker.dead_letters() == []
    run_for(worker, clock, HOUR)
    assert worker.dead_letters() == []
    monkeypatch.setitem(globals(), "is_readable", lambda: True)
    worker.drain()
    assert sorted(ledger.entries) == sorted(names)
    assert not is_paused(worker)
    taken_back = [name for name in names if attempts(worker, name)["replayed"]]
    assert len(taken_back) == 9


def test_foreign_messages_that_nobody_can_decode_end_as_dead_letters_while_the_healthy_go_on(
    shop: Shop, harness: NewHarness, inject: Inject, clock: ManualClock
) -> None:
    pay = shop.pay()
    for n in range(20):
        inject("pay", foreign("pay", n), message_id=f"foreign {n}", flow_id=f"foreign {n}")
    good = shop.order(pay, 5)
    worker = harness()
    begin = clock.now()
    while len(worker.dead_letters()) < 20:
        good += shop.order(pay, 1, f"good, later {len(good)}")
        while worker.run_one():
            pass
        clock.advance(1)
        assert clock.now() - begin < HOUR * SECOND
    worker.drain()
    assert sorted(shop.ledger.entries) == sorted(good)
    assert {letter.reason for letter in worker.dead_letters()} == {"undecodable"}
    assert {letter.envelope for letter in worker.dead_letters()} == {foreign("pay", n) for n in range(20)}
    # As often as the policy allows attempts, and once more.
    assert max(attempts(worker, f"foreign {n}")["failed"] for n in range(20)) <= 8


@pytest.mark.more
@pytest.mark.longer_on_postgres
def test_foreign_messages_alone_end_as_dead_letters_within_the_bound_of_any_poison(
    shop: Shop, harness: NewHarness, inject: Inject, clock: ManualClock
) -> None:
    shop.pay()
    for n in range(30):
        inject("pay", foreign("pay", n), message_id=f"foreign {n}", flow_id=f"foreign {n}")
    worker = harness()
    begin = clock.now()
    worker.drain()
    assert len(worker.dead_letters()) == 30
    assert 24 * HOUR * SECOND <= clock.now() - begin <= (24 * HOUR + 30 * 70) * SECOND


def test_a_message_that_was_taken_back_and_then_fails_otherwise_has_its_attempts_left(
    app: App, ledger: Ledger, harness: NewHarness, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.endpoint("pay", pause_after=3)
    def pay(ctx: Context, message: Deployed) -> None:
        if message.id == "frail" and ctx.attempt < 6:
            raise ConnectionError("no answer")
        ledger.write(ctx, message.id)

    for name in ("frail", "a", "b"):
        app.start(pay, Deployed(name), flow_id=name, message_id=name)
    monkeypatch.setitem(globals(), "is_readable", lambda: False)
    worker = harness()
    run(worker, 3)
    assert is_paused(worker)
    monkeypatch.setitem(globals(), "is_readable", lambda: True)
    worker.drain()
    assert sorted(ledger.entries) == ["a", "b", "frail"]
    assert attempts(worker, "frail")["failed"] == 5


def test_a_wrong_address_is_the_messages_own(shop: Shop, harness: NewHarness, inject: Inject) -> None:
    shop.pay()
    for n in range(20):
        inject("pay", foreign("ship", n), message_id=f"foreign {n}", flow_id=f"foreign {n}")
    worker = harness()
    worker.drain()
    assert [letter.reason for letter in worker.dead_letters()] == ["hopeless"] * 20
    assert {letter.causes[0].type for letter in worker.dead_letters()} == {"stagepost.WrongAddress"}
    assert {letter.envelope for letter in worker.dead_letters()} == {foreign("ship", n) for n in range(20)}
    assert worker.access.session.circuits.lock("pay").messages == ()
    worker.access.rollback()
