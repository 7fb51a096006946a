"""Effects that no commit kept are undone, whatever ended their message, and a replay calls exactly these again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from stagepost import App, Context, NotDone, Redelivery, ReplayRefused
from stagepost.app.app import engine_of
from stagepost.flow.claim import Claim
from stagepost.ports.dead_letters import Selection
from stagepost.recovery.editing import EditRefused, envelope_of
from stagepost.runtime.assembly import queue_commit_of
from stagepost.transaction.editing import edit
from stagepost.transaction.outcome import AnsweredWithFailure, Buried, Completed, Redelivered, Returned
from stagepost.transaction.replaying import freeze, run_replay
from stagepost.transaction.settling import Settlement
from stagepost.transaction.steps import Halt, Step
from tests.places import place
from tests.transaction.outside import CaptureRequest, Cards, card_of
from tests.transaction.shops import NewHarness, Order, Shop, raising_once, raising_once_with_context

if TYPE_CHECKING:
    from tests.conftest import Ledger

IN_EVERY_MODE = True
pytestmark = pytest.mark.longer_on_postgres


@pytest.fixture(params=["sqlite", "postgres", "postgres-two_phase"])
def new_database(request: pytest.FixtureRequest) -> Callable[[], str]:
    return place(request)


@pytest.fixture
def cards() -> Cards:
    return Cards()


@pytest.fixture
def shop(app: App, ledger: Ledger, cards: Cards, harness: NewHarness) -> Shop:
    return Shop(app, ledger, cards, harness, has_undo=True)


class Never:
    """A stop signal that never waits, and gives up at the first wait."""

    def wait(self, seconds: float) -> bool:
        return not seconds


def refuse(ctx: Context) -> None:
    ctx.refuse("no such account")


def replay(shop: Shop) -> int:
    """Replay all dead letters of the shop's stage, and return how many came back."""
    worker = shop.harness(owner="harness/replay")
    commit = queue_commit_of(engine_of(shop.app), worker.access, "cli")
    ids = [kept.id for kept in commit.session.dead_letters.select(Selection("all")) if kept.letter.stage == "pay"]
    frozen = freeze(commit.session, [Selection("id", each) for each in ids], clock=shop.app_clock, who="olga")
    assert frozen is not None
    try:
        return sum(len(each.letters) for each in run_replay(commit, frozen, stop=Never(), who="olga"))
    finally:
        worker.close()


def dead_stages(shop: Shop) -> list[str]:
    worker = shop.harness(owner="harness/look")
    found = [each.stage for each in worker.dead_letters()]
    worker.close()
    return found


def test_a_refused_message_undoes_its_effect_and_a_replay_charges_again(shop: Shop, ledger: Ledger) -> None:
    shop.after = refuse
    shop.start()
    assert shop.drain() == [Buried, Completed]
    assert (shop.cards.kept, shop.cards.calls["undo"]) == ([], 1)
    assert [(each.generation, each.ending) for each in shop.log()[:1]] == [(0, "undone")]
    shop.after = lambda ctx: None
    assert replay(shop) == 1
    assert shop.drain() == [Completed]
    assert shop.cards.kept == ["c2"]
    assert ledger.entries == ["o1 c2"]
    first, second = (key for key, _ in shop.cards.captured)
    assert first != second


def test_another_branch_undoes_the_effect_that_its_attempt_was_not_given(shop: Shop, ledger: Ledger) -> None:
    shop.after = raising_once_with_context(ConnectionError("down"))
    shop.is_free = lambda ctx: ctx.redelivered
    shop.start()
    assert shop.drain() == [Redelivered, Completed, Completed]
    assert shop.cards.kept == []
    assert ledger.entries == ["o1 free"]


def test_a_caught_failure_undoes_the_effect(shop: Shop, ledger: Ledger) -> None:
    """The call took effect, its answer was lost, and the handler went on without it."""
    shop.cards.after = raising_once(ConnectionError("no answer"))
    shop.catches = ConnectionError
    shop.start()
    assert shop.drain() == [Completed, Returned, Completed]
    assert shop.cards.calls == {"call": 1, "query": 1, "undo": 1}
    assert shop.cards.kept == []
    assert ledger.entries == ["o1 free"]


def test_fail_with_undoes_the_effect(app: App, cards: Cards, harness: NewHarness) -> None:
    card = card_of(app, cards, has_undo=True)

    @app.endpoint("done")
    def done(ctx: Context, order: Order) -> None: ...

    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> Order:
        ctx.effect(card, CaptureRequest(order.id, order.amount))
        ctx.fail_with(Order("failed"))

    app.start(pay, Order("o1"), flow_id="order:1", reply_to=done)
    outcomes = [type(each) for each in harness().drain()]
    assert outcomes[0] is AnsweredWithFailure
    assert outcomes.count(Completed) == 2
    assert cards.kept == []


def test_an_exhausted_message_undoes_all_its_effects(app: App, cards: Cards, harness: NewHarness) -> None:
    card = card_of(app, cards, has_undo=True)

    @app.endpoint("pay", redelivery=Redelivery.none())
    def pay(ctx: Context, order: Order) -> None:
        for n in range(3):
            ctx.effect(card, CaptureRequest(order.id, n))
        raise ConnectionError("down")

    app.start(pay, Order("o1"), flow_id="order:1")
    assert [type(each) for each in harness().drain()] == [Buried, *[Completed] * 3]
    assert (len(cards.captured), cards.kept) == (3, [])


def test_a_message_that_kills_its_processes_undoes_its_effect(shop: Shop) -> None:
    """The takeover buries it, in a process that never ran it."""
    shop.start()
    shop.crash(Step.CALLED)
    worker = shop.harness(owner="harness/last")
    claim = worker.claim_one()
    assert claim is not None
    settlement = Settlement(queue_commit_of(engine_of(shop.app), worker.access, worker.node))
    stage = engine_of(shop.app).stages()["pay"]
    settlement.settle(stage, claim, Buried("worker-died", ConnectionError("killed")))
    worker.close()
    assert shop.drain() == [Returned, Completed]
    assert shop.cards.calls == {"call": 1, "query": 1, "undo": 1}


def test_a_call_that_never_arrived_is_not_undone(shop: Shop) -> None:
    shop.cards.before = raising_once(ConnectionError("no route"))
    shop.redeliveries_end()
    shop.start()
    assert shop.drain() == [Buried, Returned, Completed]
    assert shop.cards.calls == {"call": 1, "query": 1}
    assert shop.figures().doubted == 0


def test_a_withdrawn_call_is_not_undone(shop: Shop) -> None:
    shop.cards.before = raising_once(NotDone("the card is locked"))
    shop.redeliveries_end()
    shop.start()
    assert shop.drain() == [Buried]


def test_an_effect_without_undo_is_reported(
    app: App, ledger: Ledger, cards: Cards, harness: NewHarness, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop(app, ledger, cards, harness)
    shop.after = refuse
    shop.start()
    with caplog.at_level(logging.ERROR):
        assert shop.drain() == [Buried, Completed]
    assert shop.figures().doubted == 1
    assert "effect-doubted" in [getattr(each, "event", None) for each in caplog.records]
    # A replay gets the stored result of what was not undone.
    shop.after = lambda ctx: None
    assert replay(shop) == 1
    assert shop.drain() == [Completed]
    assert (cards.calls["call"], ledger.entries) == (1, ["o1 c1"])
    assert shop.figures().doubted == 0


def test_an_unknown_result_that_cannot_be_asked_about_is_reported(
    app: App, ledger: Ledger, cards: Cards, harness: NewHarness
) -> None:
    shop = Shop(app, ledger, cards, harness, has_query=False, has_undo=True)
    cards.after = raising_once(ConnectionError("no answer"))
    shop.redeliveries_end()
    shop.start()
    assert shop.drain() == [Buried, Completed]
    assert (cards.calls, shop.figures().doubted) == ({"call": 1}, 1)
    assert replay(shop) == 1
    assert shop.drain() == [Completed]
    assert shop.figures()[2:] == (1, 0)


@pytest.mark.parametrize("step", [Step.INTENDED, Step.CALLED, Step.KNOWN, Step.HANDLED, Step.COMMITTING])
def test_a_killed_undo_goes_on(shop: Shop, step: Step) -> None:
    """The undo is an effect without a query: a kill around its call repeats it, and that is counted."""
    shop.after = refuse
    shop.start()
    worker = shop.harness(owner="harness/first")
    assert isinstance(worker.run_one(), Buried)
    worker.close()
    shop.crash(step)
    assert shop.drain() == [Completed]
    assert shop.cards.kept == []
    assert shop.cards.calls["undo"] == (2 if step is Step.CALLED else 1)
    assert shop.figures().repeated == (step in (Step.INTENDED, Step.CALLED))


def test_a_replay_waits_for_the_undo(shop: Shop) -> None:
    shop.after = refuse
    shop.start()
    worker = shop.harness(owner="harness/first")
    assert isinstance(worker.run_one(), Buried)
    worker.close()
    assert replay(shop) == 0
    assert dead_stages(shop) == ["pay"]
    assert shop.drain() == [Completed]
    assert replay(shop) == 1


def test_a_dead_undo_refuses_replay_and_edit_until_it_was_replayed(shop: Shop, ledger: Ledger) -> None:
    shop.after = refuse
    shop.cards.before_void = lambda: raise_always(ConnectionError("the processor is away"))
    shop.start()
    outcomes = shop.drain()
    assert (outcomes[0], outcomes[-1]) == (Buried, Buried)
    assert dead_stages(shop) == ["pay", "shop.undo.card"]
    with pytest.raises(ReplayRefused, match=r"called the effect card, and the order to undo it is the dead letter 2"):
        replay(shop)
    worker = shop.harness(owner="harness/edit")
    commit = queue_commit_of(engine_of(shop.app), worker.access, "cli")
    kept = next(iter(commit.session.dead_letters.select(Selection("id", 1))))
    with pytest.raises(EditRefused, match="is not undone, because that order is the dead letter 2"):
        edit(commit, kept, envelope_of(kept.letter), envelope_of(kept.letter).messages, message_id="m2", who="olga")
    shop.cards.before_void = lambda: None
    frozen = freeze(commit.session, [Selection("id", 2)], clock=shop.app_clock, who="olga")
    assert frozen is not None
    assert [len(each.letters) for each in run_replay(commit, frozen, stop=Never(), who="olga")] == [1]
    worker.close()
    assert shop.drain() == [Completed]
    assert shop.cards.kept == []
    shop.after = lambda ctx: None
    assert replay(shop) == 1
    assert shop.drain() == [Completed]
    assert len(shop.cards.kept) == 1
    assert len(ledger.entries) == 1


def test_a_message_that_dies_again_undoes_its_new_effect(shop: Shop) -> None:
    shop.after = refuse
    shop.start()
    assert shop.drain() == [Buried, Completed]
    assert replay(shop) == 1
    assert shop.drain() == [Buried, Completed]
    assert (shop.cards.kept, len(shop.cards.captured)) == ([], 2)
    assert [(each.generation, each.ending) for each in shop.log() if each.id.name == "card"] == [
        (0, "undone"),
        (1, "undone"),
    ]


def test_a_stale_owner_cannot_call_for_a_message_that_ended(shop: Shop, harness: NewHarness) -> None:
    """It wakes up before its call, after the message became a dead letter: the log refuses its intent."""
    shop.start()
    stale = harness(owner="harness/stale")
    claim = stale.claim_one()
    assert claim is not None
    worker = shop.harness(owner="harness/bury")
    settlement = Settlement(queue_commit_of(engine_of(shop.app), worker.access, worker.node))
    settlement.settle(engine_of(shop.app).stages()["pay"], claim, Buried("worker-died", ConnectionError("killed")))
    worker.close()
    assert type(stale.transaction.run(claim)).__name__ == "Lost"
    assert shop.cards.calls == {}


def test_a_commit_that_keeps_the_effect_sends_no_order(shop: Shop, harness: NewHarness) -> None:
    shop.after = raising_once_with_context(ConnectionError("down"))
    shop.start()
    assert shop.drain() == [Redelivered, Completed]
    assert shop.cards.kept == ["c1"]


@pytest.mark.parametrize("step", [Step.RECORDED, Step.COMMITTING, Step.COMMITTED])
def test_a_kill_around_the_commit_that_ends_the_message_undoes_once(shop: Shop, step: Step) -> None:
    shop.after = refuse
    shop.start()
    passed: list[Step] = []

    def listen(at: Step, claim: Claim) -> None:
        passed.append(at)
        if at is step:
            raise Halt

    engine_of(shop.app).listener = listen
    worker = shop.harness(owner="harness/victim")
    try:
        worker.run_one()
    except Halt:
        worker.access.rollback()
    engine_of(shop.app).listener = lambda at, claim: None
    assert worker.running is not None
    if worker.access.session.queue.holds(worker.running):
        shop.take_over(worker.running, is_seen=True)
    assert shop.drain()[-1] is Completed
    assert (len(shop.cards.captured), shop.cards.kept) == (1, [])


def raise_always(error: Exception) -> None:
    raise error
