"""How a claim ends, whoever found out: the owner itself, or one who cleans up after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from stagepost import App, Context, WorkerDied
from stagepost.app.app import engine_of
from stagepost.flow.claim import Claim
from stagepost.flow.clock import SECOND
from stagepost.runtime.prefetch import WINDOW_MAX, PrefetchWindow
from stagepost.testing import Harness, ManualClock
from stagepost.transaction.enqueueing import attempt_of
from stagepost.transaction.outcome import Buried, Completed, Died, Lost, Outcome, Redelivered, Returned
from stagepost.transaction.queue_commit import QueueCommit
from stagepost.transaction.settling import Settlement

NewHarness = Callable[..., Harness]


@dataclass
class Order:
    id: str


@pytest.fixture
def worker(app: App, harness: NewHarness) -> Harness:
    @app.endpoint("pay")
    def pay(ctx: Context, order: Order) -> None: ...

    app.start(pay, Order("o1"), flow_id="flow")
    return harness()


def claimed(worker: Harness) -> Claim:
    claim = worker.claim_one()
    assert claim is not None
    return claim


def settle(app: App, worker: Harness, claim: Claim, outcome: Outcome) -> Outcome:
    queue_commit = QueueCommit(worker.access.session, engine_of(app).clock, "sweeper")
    return Settlement(queue_commit).settle(engine_of(app).stages()[claim.stage], claim, outcome)


def tail(worker: Harness, count: int) -> list[tuple[str, str | None]]:
    return [(each.waypoint, each.detail) for each in worker.history("flow")[-count:]]


def test_what_died_is_a_suspect_and_counted_apart_from_failures(app: App, worker: Harness, clock: ManualClock) -> None:
    claim = claimed(worker)
    assert isinstance(settle(app, worker, claim, Died(2 * SECOND, "signal 9")), Died)
    assert tail(worker, 2) == [("died", "signal 9"), ("delayed", "2.000 s, then alone")]
    assert worker.claim_one() is None
    clock.advance(2)
    again = claimed(worker)
    assert (again.failures, again.deaths, attempt_of(again)) == (0, 1, 2)
    assert worker.history("flow")[-1].detail == "alone"


def test_what_was_not_tried_comes_again_uncounted(app: App, worker: Harness, clock: ManualClock) -> None:
    assert isinstance(settle(app, worker, claimed(worker), Returned(SECOND, "told to stop")), Returned)
    assert tail(worker, 1) == [("returned", "told to stop")]
    assert worker.claim_one() is None
    clock.advance(1)
    again = claimed(worker)
    assert (again.failures, again.deaths, attempt_of(again), again.deliveries) == (0, 0, 1, 2)


def test_a_suspect_that_was_not_tried_is_a_suspect_still(app: App, worker: Harness) -> None:
    settle(app, worker, claimed(worker), Died(0, "x"))
    settle(app, worker, claimed(worker), Returned(0, "its process did not start"))
    assert not worker.access.claimer.claim(["pay"], 1, "w1", "test")
    assert claimed(worker).deaths == 1


def test_a_failure_of_a_suspect_keeps_its_deaths(app: App, worker: Harness) -> None:
    settle(app, worker, claimed(worker), Died(0, "x"))
    settle(app, worker, claimed(worker), Redelivered(0, ValueError("no")))
    again = claimed(worker)
    assert (again.failures, again.deaths, attempt_of(again)) == (1, 1, 3)


def test_one_that_died_too_often_is_a_dead_letter_that_says_so(app: App, worker: Harness) -> None:
    settle(app, worker, claimed(worker), Died(0, "x"))
    settle(app, worker, claimed(worker), Buried("worker-died", WorkerDied("killed by signal 11")))
    (letter,) = worker.dead_letters()
    assert (letter.reason, letter.failures, letter.deaths) == ("worker-died", 0, 2)
    assert letter.summary == "stagepost.WorkerDied: killed by signal 11"
    assert letter.node == "sweeper"
    assert [name for name, _ in tail(worker, 2)] == ["died", "dead"]


def test_one_that_failed_too_often_counts_its_last_failure(app: App, worker: Harness) -> None:
    settle(app, worker, claimed(worker), Buried("exhausted", ValueError("no")))
    (letter,) = worker.dead_letters()
    assert (letter.reason, letter.failures, letter.deaths) == ("exhausted", 1, 0)
    assert tail(worker, 2)[1] == ("dead", f"exhausted {letter.fingerprint}")


OUTCOMES: list[Outcome] = [
    Completed([], [], 1.0),
    Redelivered(0, ValueError("no")),
    Died(0, "x"),
    Returned(0, "x"),
    Buried("exhausted", ValueError("no")),
]


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: type(outcome).__name__)
def test_a_claim_is_settled_once_and_whoever_comes_second_changes_nothing(
    app: App, worker: Harness, outcome: Outcome
) -> None:
    claim = claimed(worker)
    assert settle(app, worker, claim, outcome) == outcome
    history = worker.history("flow")
    pending = worker.access.claimer.pending(["pay"])
    for second in OUTCOMES:
        assert isinstance(settle(app, worker, claim, second), Lost)
        assert not worker.access.session.is_begun
    assert worker.history("flow") == history
    assert worker.access.claimer.pending(["pay"]) == pending


# How much is claimed ahead


def test_a_window_starts_with_one_message_for_each_thread() -> None:
    assert PrefetchWindow(4).size == 4


def test_a_window_holds_a_tenth_of_a_second_of_work_and_never_too_much() -> None:
    window = PrefetchWindow(2)
    window.observe(0.01)
    assert window.size == 20
    quick = PrefetchWindow(2)
    quick.observe(0.000_01)
    assert quick.size == WINDOW_MAX
    quick.observe(0)
    assert quick.size == WINDOW_MAX


def test_a_window_shrinks_at_once_when_work_becomes_slow_and_grows_slowly_again() -> None:
    window = PrefetchWindow(2)
    for _ in range(10):
        window.observe(0.001)
    assert window.size == WINDOW_MAX
    window.observe(1.0)
    assert window.size == 2
    window.observe(0.001)
    assert window.size == 2
    for _ in range(50):
        window.observe(0.001)
    assert window.size == WINDOW_MAX
