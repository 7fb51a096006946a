"""The guard of a stage whose queue is in another database: a copy of a message that it handled.

A copy that comes with the first delivery looks like a new message. Its queue row does not recognise it, and the inbox
does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from stagepost import App, Context, Redelivery, Target
from stagepost.app.app import engine_of
from stagepost.flow.claim import Claim
from stagepost.testing import Harness
from stagepost.transaction.outcome import Buried, Completed, Duplicate
from stagepost.transaction.steps import Halt, Step
from tests.places import place

if TYPE_CHECKING:
    from tests.conftest import Inject, Ledger

NewHarness = Callable[..., Harness]

IN_EVERY_MODE = True


@pytest.fixture(params=["memory-outbox", "sqlite-outbox"])
def new_database(request: pytest.FixtureRequest) -> Callable[[], str]:
    return place(request)


@dataclass
class Order:
    id: str


@dataclass
class Stage:
    """A stage under test. ``runs`` counts its runs; it sends to ``other`` while ``is_sending``."""

    target: Target[Order, None]
    runs: list[str]
    is_sending: bool = True
    error: Exception | None = None
    steps: list[Step] = field(default_factory=list)


@pytest.fixture(params=["proactive", "reactive", "none"])
def guard(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def stage(app: App, ledger: Ledger, guard: Any) -> Stage:
    other: Target[Order, None] = app.remote("other", Order)

    @app.endpoint("pay", guard=guard, redelivery=Redelivery.none())
    def pay(ctx: Context, order: Order) -> None:
        made.runs.append(order.id)
        ledger.write(ctx, order.id)
        if made.is_sending:
            ctx.send(other, order)
        if made.error is not None:
            raise made.error

    made = Stage(pay, [])
    return made


def handled(app: App, stage: Stage, worker: Harness) -> Claim:
    """Start a flow and run its message. Return its claim."""
    app.start(stage.target, Order("o1"), flow_id="flow")
    claim = worker.claim_one()
    assert claim is not None
    assert isinstance(worker.transaction.run(claim), Completed)
    return claim


def come_again(inject: Inject, claim: Claim) -> None:
    inject("pay", claim.envelope, message_id=claim.message_id, flow_id=claim.flow_id)


def sent(worker: Harness) -> list[str]:
    return [each.message_id for each in worker.access.claimer.claim(["other"], 100, "other/1", "test")]


def test_a_copy_sends_nothing_again_and_changes_nothing(
    app: App, stage: Stage, guard: str, ledger: Ledger, harness: NewHarness, inject: Inject
) -> None:
    worker = harness()
    claim = handled(app, stage, worker)
    assert len(sent(worker)) == 1
    come_again(inject, claim)
    assert isinstance(worker.run_one(), Duplicate)
    assert (sent(worker), ledger.entries, worker.dead_letters()) == ([], ["o1"], [])
    assert len(stage.runs) == {"proactive": 1, "reactive": 2, "none": 2}[guard]


def test_a_copy_of_a_run_that_did_not_send_yet_sends_the_stored_bytes(
    app: App, stage: Stage, ledger: Ledger, harness: NewHarness
) -> None:
    def listen(step: Step, claim: Claim) -> None:
        if step is Step.COMMITTED:
            raise Halt

    engine_of(app).listener = listen
    victim = harness(owner="victim/1")
    app.start(stage.target, Order("o1"), flow_id="flow")
    claim = victim.claim_one()
    assert claim is not None
    with pytest.raises(Halt):
        victim.transaction.run(claim)
    victim.access.rollback()
    engine_of(app).listener = lambda step, claim: None
    assert sent(victim) == []
    assert isinstance(victim.transaction.run(claim._replace(deliveries=1)), Duplicate)
    assert len(sent(victim)) == 1
    assert ledger.entries == ["o1"]


@pytest.mark.parametrize("guard", ["reactive"], indirect=True)
def test_a_copy_whose_run_fails_is_a_duplicate_and_no_failure(
    app: App, stage: Stage, ledger: Ledger, harness: NewHarness, inject: Inject
) -> None:
    """As where a unique key of the user's own fires before ours."""
    worker = harness()
    claim = handled(app, stage, worker)
    stage.error = ValueError("unique constraint failed")
    come_again(inject, claim)
    assert isinstance(worker.run_one(), Duplicate)
    assert (worker.dead_letters(), ledger.entries) == ([], ["o1"])
    app.start(stage.target, Order("o2"), flow_id="another")
    assert isinstance(worker.run_one(), Buried)


def test_only_what_sent_something_is_remembered_without_a_guard(
    app: App, stage: Stage, guard: str, ledger: Ledger, harness: NewHarness, inject: Inject
) -> None:
    stage.is_sending = False
    engine_of(app).listener = lambda step, claim: stage.steps.append(step)
    worker = harness()
    claim = handled(app, stage, worker)
    found = worker.access.work.inbox.find("pay", claim.message_id)
    assert (found is None) == (guard == "none")
    # A run without a row has nothing to mark, and commits nothing more.
    assert (Step.MARKED in stage.steps) == (guard != "none")
    come_again(inject, claim)
    outcome = worker.run_one()
    assert isinstance(outcome, Completed if guard == "none" else Duplicate)
    assert len(ledger.entries) == (2 if guard == "none" else 1)
