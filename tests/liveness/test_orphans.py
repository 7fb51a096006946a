"""Whose replies expire: of those who are gone, and of nobody who lives, in this process or another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stagepost import App, StoreUnavailable
from stagepost.app.app import engine_of
from stagepost.flow.claim import Claim
from stagepost.liveness.detector import FailureDetector
from stagepost.liveness.incarnation import is_edge, listening, owner_at, reply_address
from stagepost.liveness.takeover import Takeover
from stagepost.runtime.assembly import queue_commit_of
from stagepost.runtime.housekeeper import Orphans
from stagepost.testing import Harness
from stagepost.testing.contract.givens import a_row, committed
from stagepost.transaction.outcome import Outcome
from stagepost.transaction.settling import Settlement
from stagepost.transaction.stage import Stage
from tests.toy_store.store import ToyStore

OWNER = "other-app/01a2005e-b3b2-7b01-8174-af2c5a974ad4"
ADDRESS = "other-app.reply.01a2005e-b3b2-7b01-8174-af2c5a974ad4"


@pytest.fixture
def worker(app: App, harness: Callable[..., Harness]) -> Harness:
    if isinstance(engine_of(app).store, ToyStore):
        pytest.skip("a memory store ends with its process")
    return harness()


@pytest.fixture
def orphans(app: App, worker: Harness) -> Iterator[Orphans]:
    orphans = Orphans(engine_of(app), worker.access, "shop/1", "worker@here:1")
    yield orphans
    orphans.close()


@pytest.fixture
def listener() -> Iterator[None]:
    listening.add(OWNER)
    yield
    listening.discard(OWNER)


def put(worker: Harness, *stages: str) -> None:
    with committed(worker.access.session):
        worker.access.session.queue.enqueue([a_row(f"m{n}", stage) for n, stage in enumerate(stages)])


def expired(worker: Harness) -> list[str]:
    return [each.stage for each in worker.history("flow") if each.waypoint == "expired"]


def test_replies_to_who_is_gone_expire_whatever_app_he_was_of_and_nothing_else_does(
    worker: Harness, orphans: Orphans
) -> None:
    put(worker, ADDRESS, ADDRESS, "shop.pay", "other-app.reply.later", "reply")
    assert orphans.sweep() == 2
    assert orphans.sweep() == 0
    assert expired(worker) == [ADDRESS, ADDRESS]
    assert worker.access.session.queue.waiting_stages() == sorted(["shop.pay", "other-app.reply.later", "reply"])


def test_what_could_not_be_written_expires_with_the_next_sweep(
    worker: Harness, orphans: Orphans, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(worker, ADDRESS, ADDRESS, ADDRESS)
    settle, settled = Settlement.settle, list[Claim]()

    def fail_at_the_second(settlement: Settlement, stage: Stage | None, claim: Claim, *arguments: Any) -> Outcome:
        if settled:
            raise StoreUnavailable("gone")
        settled.append(claim)
        return settle(settlement, stage, claim, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Settlement, "settle", fail_at_the_second)
        with pytest.raises(StoreUnavailable):
            orphans.sweep()
    assert orphans.sweep() == 2
    assert expired(worker) == [ADDRESS] * 3
    assert worker.access.session.queue.owned("shop/1") == []


@pytest.mark.usefixtures("listener")
def test_what_this_very_process_listens_for_is_left_to_it(worker: Harness, orphans: Orphans) -> None:
    put(worker, ADDRESS)
    assert orphans.sweep() == 0
    assert expired(worker) == []


@pytest.mark.usefixtures("listener")
def test_what_this_very_process_is_taking_is_not_taken_over(app: App, worker: Harness) -> None:
    put(worker, ADDRESS)
    owner = OWNER.replace("other-app", app.name)
    worker.access.claimer.claim([ADDRESS], 1, owner, "edge@here:1")
    survey = FailureDetector(engine_of(app).store.liveness(engine_of(app).clock), app.name, engine_of(app).clock)
    takeover = Takeover(
        app.name,
        engine_of(app).stages(),
        worker.access.claimer,
        queue_commit_of(engine_of(app), worker.access, "worker@here:1"),
        survey,
        engine_of(app).random,
    )
    listening.add(owner)
    assert takeover.sweep() == 0
    listening.discard(owner)
    assert takeover.sweep() == 1
    survey.close()


def test_an_address_says_whose_it_is_and_no_stages_address_does() -> None:
    assert reply_address(OWNER) == ADDRESS
    assert owner_at(ADDRESS) == OWNER
    for stage in ("pay", "shop.reply", "shop.reply.pay", "reply.01a2005e-b3b2-7b01-8174-af2c5a974ad4", ADDRESS + ".x"):
        assert owner_at(stage) is None


def test_who_only_asks_is_told_by_his_role() -> None:
    assert is_edge("edge@here:1")
    assert not is_edge("worker@edge:1")
