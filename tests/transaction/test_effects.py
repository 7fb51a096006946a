"""Effects: the log has an intent before each call and its result after it, and a later attempt follows from both."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from stagepost import App, Context, EffectConflict, IllegalCall, NotDone, Redelivery, StoreUnavailable
from stagepost.app.app import engine_of
from stagepost.flow.claim import Claim
from stagepost.flow.clock import SECOND
from stagepost.ports.effects import EffectFigures
from stagepost.testing import ManualClock
from stagepost.transaction.outcome import Buried, Completed, Redelivered, Returned
from stagepost.transaction.steps import EFFECT_STEPS, Step
from tests.integrations.attempts import completes, refusing_two_commits
from tests.places import place
from tests.transaction.outside import Capture, CaptureRequest, Cards, card_of
from tests.transaction.shops import NewHarness, Order, Shop, raise_next, raising_once, raising_once_with_context

if TYPE_CHECKING:
    from tests.conftest import Ledger

IN_EVERY_MODE = True
pytestmark = pytest.mark.longer_on_postgres

SETTLE_AFTER = 60 * SECOND


@pytest.fixture(params=["sqlite", "postgres", "postgres-two_phase"])
def new_database(request: pytest.FixtureRequest) -> Callable[[], str]:
    return place(request)


@pytest.fixture
def cards() -> Cards:
    return Cards()


@pytest.fixture
def shop(app: App, ledger: Ledger, cards: Cards, harness: NewHarness) -> Shop:
    return Shop(app, ledger, cards, harness)


@pytest.fixture
def mail(app: App, ledger: Ledger, cards: Cards, harness: NewHarness) -> Shop:
    """A shop whose outside cannot be asked."""
    return Shop(app, ledger, cards, harness, has_query=False)


def test_an_effect_is_called_once_and_its_result_is_returned(shop: Shop, ledger: Ledger) -> None:
    shop.start()
    assert shop.drain() == [Completed]
    assert ledger.entries == ["o1 c1"]
    assert shop.cards.calls == {"call": 1}
    assert [each for each in shop.steps if each in EFFECT_STEPS] == list(EFFECT_STEPS)
    (logged,) = shop.log()
    assert (logged.result, logged.generation, len(logged.intents)) == (b'{"id":"c1"}', 0, 1)
    assert shop.figures() == EffectFigures(0, None, 0, 0)


def test_a_later_attempt_gets_the_known_result(shop: Shop, ledger: Ledger) -> None:
    failures = iter([True, True, False])

    def fail(ctx: Context) -> None:
        if next(failures):
            raise ConnectionError("down")

    shop.after = fail
    shop.start()
    assert shop.drain() == [Redelivered, Redelivered, Completed]
    assert ledger.entries == ["o1 c1"]
    assert shop.cards.calls == {"call": 1}


def test_a_run_that_called_an_effect_alone_is_handled_again_after_a_refused_commit(
    app: App, cards: Cards, harness: NewHarness
) -> None:
    """The next run decides anew what it calls, by what the log has by then."""
    refuse, refusals = refusing_two_commits()
    engine_of(app).listener = refuse
    card = card_of(app, cards)
    given: list[str] = []

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        given.append(ctx.effect(card, CaptureRequest(order.id, order.amount)).id)

    app.start(pay, Order("o1", 5), flow_id="o1")
    assert completes(harness())
    assert refusals == []
    assert given == ["c1", "c1", "c1"]
    assert cards.calls == {"call": 1}


def test_a_call_that_raised_is_asked_about_after_the_silence(shop: Shop, ledger: Ledger, clock: ManualClock) -> None:
    """The answer was lost on its way. The message waits, uncounted, and the outside is asked once."""
    shop.cards.after = raising_once(ConnectionError("no answer"))
    shop.start()
    begin = clock.now()
    assert shop.drain() == [Redelivered, Returned, Completed]
    assert clock.now() - begin >= SETTLE_AFTER
    assert shop.cards.calls == {"call": 1, "query": 1}
    assert ledger.entries == ["o1 c1"]


def test_a_call_that_never_arrived_is_made_again_under_a_new_intent(shop: Shop, ledger: Ledger) -> None:
    shop.cards.before = raising_once(ConnectionError("no route"))
    shop.start()
    assert shop.drain() == [Redelivered, Returned, Completed]
    assert shop.cards.calls == {"call": 2, "query": 1}
    assert ledger.entries == ["o1 c1"]
    (logged,) = shop.log()
    assert [each.is_withdrawn for each in logged.intents] == [True, False]
    assert shop.figures().repeated == 0


def test_without_a_query_a_call_is_repeated_and_counted(
    mail: Shop, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    mail.cards.after = raising_once(ConnectionError("no answer"))
    mail.start()
    with caplog.at_level(logging.WARNING):
        assert mail.drain() == [Redelivered, Completed]
    assert mail.cards.calls == {"call": 2}
    assert ledger.entries == ["o1 c2"]
    assert mail.figures() == EffectFigures(0, None, 1, 0)
    assert "effect-possibly-repeated" in [getattr(each, "event", None) for each in caplog.records]


def test_a_call_that_did_nothing_withdraws_its_intent(shop: Shop, clock: ManualClock) -> None:
    shop.cards.before = raising_once(NotDone("the card is locked"))
    shop.start()
    begin = clock.now()
    assert shop.drain() == [Redelivered, Completed]
    assert clock.now() - begin < SETTLE_AFTER
    assert shop.cards.calls == {"call": 2}
    assert [each.is_withdrawn for each in shop.log()[0].intents] == [True, False]


def test_a_withdrawn_call_leaves_an_earlier_one_unknown(shop: Shop) -> None:
    """The first call may have arrived, and the second one says of itself alone that it did nothing."""
    errors = iter([ConnectionError("no answer"), NotDone("refused")])
    shop.cards.before = lambda: raise_next(errors)
    shop.start()
    shop.drain()
    assert shop.cards.calls == {"call": 3, "query": 1}


@pytest.mark.parametrize("step", [Step.INTENDED, Step.CALLED, Step.KNOWN])
@pytest.mark.parametrize("is_seen", [True, False], ids=["died", "given back"])
def test_a_killed_process_leaves_an_effect_once(shop: Shop, ledger: Ledger, step: Step, is_seen: bool) -> None:
    shop.start()
    shop.crash(step, is_seen=is_seen)
    assert shop.drain()[-1] is Completed
    assert ledger.entries == ["o1 c1"]
    assert len(shop.cards.captured) == 1
    assert shop.cards.calls["query"] == (step is not Step.KNOWN)


@pytest.mark.parametrize("step", [Step.INTENDED, Step.CALLED, Step.KNOWN])
def test_a_killed_process_repeats_what_cannot_be_asked_about_at_most_as_often_as_counted(
    mail: Shop, ledger: Ledger, step: Step
) -> None:
    mail.start()
    mail.crash(step)
    assert mail.drain() == [Completed]
    assert len(ledger.entries) == 1
    assert len(mail.cards.captured) == (2 if step is Step.CALLED else 1)
    assert mail.figures().repeated == (step is not Step.KNOWN)


def test_the_key_is_stable_over_attempts(mail: Shop) -> None:
    mail.cards.after = raising_once(ConnectionError("no answer"))
    mail.start()
    mail.drain()
    first, second = (key for key, _ in mail.cards.captured)
    assert first == second


def test_another_request_under_the_same_key_is_a_dead_letter(shop: Shop, harness: NewHarness) -> None:
    amounts = iter([100, 200])
    shop.amounts = lambda order: next(amounts)
    shop.after = raising_once_with_context(ConnectionError("down"))
    shop.start()
    assert shop.drain() == [Redelivered, Buried, Completed]
    (letter,) = harness().dead_letters()
    assert letter.reason == "hopeless"
    assert letter.causes[0].type.endswith(EffectConflict.__name__)
    assert shop.cards.calls == {"call": 1}


def test_a_handler_that_catches_the_conflict_is_dead_all_the_same(app: App, cards: Cards, harness: NewHarness) -> None:
    card = card_of(app, cards)
    amounts = iter([100, 200])

    @app.endpoint("pay", redelivery=Redelivery.fixed(every_seconds=1, times=3))
    def pay(ctx: Context, order: Order) -> None:
        amount = next(amounts)
        try:
            ctx.effect(card, CaptureRequest(order.id, amount))
        except EffectConflict:
            return
        raise ConnectionError("down")

    app.start(pay, Order("o1"), flow_id="order:1")
    assert [type(each) for each in harness().drain()] == [Redelivered, Buried, Completed]


def test_two_calls_of_one_run_are_two_effects(app: App, cards: Cards, harness: NewHarness) -> None:
    card = card_of(app, cards)

    @app.endpoint("pay", redelivery=Redelivery.fixed(every_seconds=1, times=3))
    def pay(ctx: Context, order: Order) -> None:
        first = ctx.effect(card, CaptureRequest(order.id, 1))
        second = ctx.effect(card, CaptureRequest(order.id, 2))
        assert (first, second) == (Capture("c1"), Capture("c2"))
        if not ctx.redelivered:
            raise ConnectionError("down")

    app.start(pay, Order("o1"), flow_id="order:1")
    assert [type(each) for each in harness().drain()] == [Redelivered, Completed]
    assert cards.calls == {"call": 2}


def test_two_handlers_and_two_messages_of_an_envelope_have_effects_of_their_own(
    app: App, cards: Cards, harness: NewHarness
) -> None:
    card = card_of(app, cards)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ctx.effect(card, CaptureRequest(order.id, order.amount))

    @pay.handler
    def insure(ctx: Context, order: Order) -> None:
        ctx.effect(card, CaptureRequest(order.id, order.amount))

    with app.initiate() as out:
        out.together(pay, [Order("o1"), Order("o2")], flow_id="order:1")
    assert [type(each) for each in harness().drain()] == [Completed]
    assert len({key for key, _ in cards.captured}) == 4


def test_a_stale_owner_may_not_call(shop: Shop, harness: NewHarness) -> None:
    """The first owner wakes up after another one has called: the log refuses its intent."""
    shop.cards.before = raising_once(NotDone("the card is locked"))
    shop.start()
    stale = harness(owner="harness/stale")
    claim = stale.claim_one()
    assert claim is not None
    shop.take_over(claim, is_seen=False)
    fresh = harness(owner="harness/fresh")
    assert isinstance(fresh.run_one(), Redelivered)
    assert type(stale.transaction.run(claim)).__name__ == "Lost"
    assert shop.cards.calls == {"call": 1}
    assert shop.drain() == [Completed]
    assert shop.cards.calls == {"call": 2}


@pytest.mark.parametrize("has_query", [True, False])
def test_an_attempt_waits_for_the_call_of_another_that_is_under_way(
    app: App, ledger: Ledger, cards: Cards, harness: NewHarness, has_query: bool
) -> None:
    """Two attempts at once: the second one is put off, uncounted, and it does not ask before the first one ends."""
    shop = Shop(app, ledger, cards, harness, has_query=has_query)
    second: list[object] = []

    def meanwhile() -> None:
        if not second:
            second.append(None)
            assert first.running is not None
            shop.take_over(first.running, is_seen=False)
            second.append(harness(owner="harness/second").run_one())

    shop.cards.before = meanwhile
    shop.start()
    first = harness(owner="harness/first")
    assert type(first.run_one()).__name__ == "Lost"
    assert isinstance(second[-1], Returned)
    assert shop.drain() == [Completed]
    assert shop.cards.calls == {"call": 1}


def test_a_process_that_stood_still_before_its_call_does_not_call(
    shop: Shop, ledger: Ledger, clock: ManualClock
) -> None:
    def stand_still(step: Step, claim: Claim) -> None:
        if step is Step.INTENDED and step not in shop.steps:
            clock.advance(40)
        shop.steps.append(step)

    engine_of(shop.app).listener = stand_still
    shop.start()
    assert shop.drain() == [Returned, Completed]
    assert shop.cards.calls == {"call": 1}
    assert ledger.entries == ["o1 c1"]


def test_a_result_that_the_log_refused_is_written_by_the_next_run(
    shop: Shop, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = engine_of(shop.app).effect_log
    assert log is not None
    committing = log.committing

    def refuse_once() -> Any:
        if shop.cards.calls["call"] == 1:
            monkeypatch.setattr(log, "committing", committing)
            raise StoreUnavailable("the disk is away")
        return committing()

    monkeypatch.setattr(log, "committing", refuse_once)
    shop.start()
    # The harness does not wait for the database, so the attempt is abandoned and its claim given back.
    harness = shop.harness(owner="harness/first")
    outcome = harness.run_one()
    assert type(outcome).__name__ == "Abandoned"
    assert harness.running is not None
    shop.take_over(harness.running, is_seen=False)
    assert shop.drain()[-1] is Completed
    assert len(shop.cards.captured) == 1
    assert ledger.entries == ["o1 c1"]


def test_wrong_types_are_refused(app: App, harness: NewHarness) -> None:
    def capture(request: CaptureRequest) -> Capture:
        return "c1"  # type: ignore[return-value]  # the mistake under test

    card = app.effect("card", call=capture)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        with pytest.raises(IllegalCall, match="the effect card takes a CaptureRequest"):
            ctx.effect(card, order)  # type: ignore[misc]  # the mistake under test
        with pytest.raises(IllegalCall, match="is no effect"):
            ctx.effect(capture, order)  # type: ignore[arg-type]  # the mistake under test
        ctx.effect(card, CaptureRequest("h", 1))

    app.start(pay, Order("o1"), flow_id="order:1")
    worker = harness()
    assert [type(each) for each in worker.drain()] == [Buried, Completed]
    assert "the effect card returns a Capture" in worker.dead_letters()[0].causes[0].message


def test_effects_come_before_the_transaction(app: App, cards: Cards, harness: NewHarness) -> None:
    """While the call runs, no transaction is open."""
    open_ones: list[bool] = []
    cards.before = lambda: open_ones.append(worker.access.work.is_begun)
    card = card_of(app, cards)

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None:
        ctx.effect(card, CaptureRequest(order.id, order.amount))
        ctx.sql("SELECT 1")
        ctx.effect(card, CaptureRequest(order.id, order.amount))

    app.start(pay, Order("o1"), flow_id="order:1")
    worker = harness()
    assert [type(each) for each in worker.drain()] == [Completed]
    assert open_ones == [False, True]


def test_no_message_waits_for_ever_for_an_owner_whose_end_was_not_recorded(
    shop: Shop, ledger: Ledger, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process lives on, and the log was away when its attempt ended. The time limit of the stage ends the wait."""
    log = engine_of(shop.app).effect_log
    assert log is not None
    monkeypatch.setattr(log, "is_alive", lambda owner: True)
    shop.start()
    shop.crash(Step.CALLED, is_seen=False)
    begin = clock.now()
    outcomes = shop.drain()
    assert (outcomes[-1], set(outcomes[:-1])) == (Completed, {Returned})
    assert clock.now() - begin > 600 * SECOND
    assert (ledger.entries, shop.cards.calls) == (["o1 c1"], {"call": 1, "query": 1})


def test_an_attempt_whose_end_could_not_be_recorded_fails_as_it_did(
    mail: Shop, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = engine_of(mail.app).effect_log
    assert log is not None

    def refuse(claim: Claim) -> None:
        raise StoreUnavailable("the disk is away")

    monkeypatch.setattr(log, "end_attempt", refuse)
    mail.cards.after = raising_once(ConnectionError("no answer"))
    mail.start()
    # The harness has no process that others could see, so the next attempt takes the owner for gone.
    assert mail.drain() == [Redelivered, Completed]
    assert "effect-log-unavailable" in [getattr(each, "event", None) for each in caplog.records]


def test_a_log_that_is_away_counts_against_no_message(
    shop: Shop, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = engine_of(shop.app).effect_log
    assert log is not None
    with monkeypatch.context() as patch:
        patch.setattr(log, "committing", raise_unavailable)
        shop.start()
        harness = shop.harness(owner="harness/first")
        assert type(harness.run_one()).__name__ == "Abandoned"
        assert harness.running is not None
        shop.take_over(harness.running, is_seen=False)
    assert shop.drain() == [Completed]
    assert shop.cards.calls == {"call": 1}


def raise_unavailable() -> Any:
    raise StoreUnavailable("the disk is away")
