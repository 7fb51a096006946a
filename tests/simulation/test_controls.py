"""Negative controls: each breaks one promise on purpose, and the histories must notice.

A simulation that passes whatever the code does would prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from stagepost.flow.claim import Claim
from stagepost.flow.initiation import Acceptance, Verdict
from stagepost.flow.produced import Produced
from stagepost.transaction.attempt import AttemptRunner
from stagepost.transaction.outcome import Completed
from stagepost.transaction.queue_commit import QueueCommit
from tests.simulation.test_histories import run_history
from tests.toy_store.accepted import ToyAccepted
from tests.toy_store.queue import ToyQueue
from tests.toy_store.store import ToySession

SEEDS = 120

Sabotage = Callable[[pytest.MonkeyPatch], None]


def no_fence(patch: pytest.MonkeyPatch) -> None:
    """Whoever thinks it holds a message may commit, also when it is gone."""
    remove = ToyQueue.remove

    def unfenced(self: ToyQueue, claim: Claim) -> bool:
        remove(self, claim)
        return True

    patch.setattr(ToyQueue, "remove", unfenced)


def early_acknowledge(patch: pytest.MonkeyPatch) -> None:
    """The message is removed, and that committed, before its handler runs."""
    handle = AttemptRunner._handle

    def acknowledging(self: AttemptRunner, stage: Any, claim: Claim, unit_of_work: Any) -> Any:
        session = unit_of_work.session
        unit_of_work.begin()
        session.commit()
        outcome = handle(self, stage, claim, unit_of_work)
        if isinstance(outcome, Completed):
            session.begin()
        return outcome

    patch.setattr(AttemptRunner, "_handle", acknowledging)


def rollback_commits(patch: pytest.MonkeyPatch) -> None:
    """What a failed attempt wrote stays."""

    def rollback(self: ToySession) -> None:
        if self.is_open:
            self.commit()

    patch.setattr(ToySession, "rollback", rollback)


def everything_is_new(patch: pytest.MonkeyPatch) -> None:
    """The same id starts a flow each time it comes."""

    def accept(self: ToyAccepted, acceptances: Sequence[Acceptance]) -> list[Verdict]:
        return [Verdict("started", each.digest) for each in acceptances]

    patch.setattr(ToyAccepted, "accept", accept)


def outgoing_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Of several messages that a stage sends, one does not leave."""
    enqueue = ToyQueue.enqueue
    patch.setattr(ToyQueue, "enqueue", lambda self, rows: enqueue(self, rows[:1]))


def outgoing_leaves_at_once(patch: pytest.MonkeyPatch) -> None:
    """What a stage sends is committed before the stage is."""
    put = QueueCommit.put

    def eager(self: QueueCommit, claim: Claim, produced: Produced) -> None:
        put(self, claim, produced)
        self.session.commit()
        self.session.begin()

    patch.setattr(QueueCommit, "put", eager)
    patch.setattr(ToyQueue, "remove", lambda self, claim: self.holds(claim))


def failures_not_counted(patch: pytest.MonkeyPatch) -> None:
    """A message that always fails is tried for ever."""
    defer = QueueCommit.defer

    def forgetful(self: QueueCommit, claim: Claim, after: int, *, failures: int, deaths: int) -> None:
        defer(self, claim, after, failures=claim.failures, deaths=deaths)

    patch.setattr(QueueCommit, "defer", forgetful)


def deaths_count_as_failures(patch: pytest.MonkeyPatch) -> None:
    """What was running when its process died is blamed for it."""
    defer = QueueCommit.defer

    def blaming(self: QueueCommit, claim: Claim, after: int, *, failures: int, deaths: int) -> None:
        defer(self, claim, after, failures=failures + deaths - claim.deaths, deaths=0)

    patch.setattr(QueueCommit, "defer", blaming)


def claims_are_shared(patch: pytest.MonkeyPatch) -> None:
    """A claim does not keep others from claiming: each gets a row of its own."""
    own = ToyQueue.own

    def copying(self: ToyQueue, key: int, owner: str) -> Claim:
        held = self._tables.ready.get(key)
        assert held is not None
        return own(self, self._tables.ready.insert(held) if held.row.deliveries == 0 else key, owner)

    patch.setattr(ToyQueue, "own", copying)


def the_dead_keep_what_they_hold(patch: pytest.MonkeyPatch) -> None:
    """Nobody takes over."""
    owned = ToyQueue.owned
    patch.setattr(ToyQueue, "owned", lambda self, owner, **how: [] if "is_unattended" in how else owned(self, owner))


CONTROLS: list[Sabotage] = [
    no_fence,
    early_acknowledge,
    rollback_commits,
    everything_is_new,
    outgoing_forgotten,
    outgoing_leaves_at_once,
    failures_not_counted,
    deaths_count_as_failures,
    claims_are_shared,
    the_dead_keep_what_they_hold,
]


@pytest.mark.parametrize("sabotage", CONTROLS, ids=lambda each: each.__name__)
def test_the_histories_notice(sabotage: Sabotage, monkeypatch: pytest.MonkeyPatch) -> None:
    sabotage(monkeypatch)
    monkeypatch.setattr("tests.simulation.world.TURNS_MAX", 100)
    for seed in range(SEEDS):
        try:
            run_history(seed)
        except Exception:  # noqa: BLE001 - however it is noticed
            return
    pytest.fail(f"{SEEDS} histories did not notice: {sabotage.__doc__}")
