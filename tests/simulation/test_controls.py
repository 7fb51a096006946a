"""Negative controls: each breaks one promise on purpose, and the histories must notice.

A simulation that passes whatever the code does would prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stagepost.flow.claim import Claim
from stagepost.flow.initiation import Acceptance, Verdict
from stagepost.flow.produced import Produced
from stagepost.store.memory.queue import MemoryQueue
from stagepost.store.memory.store import MemorySession
from stagepost.transaction.attempt import StageTransaction
from stagepost.transaction.outcome import Completed
from stagepost.transaction.post import Post
from stagepost.transport.database import DatabaseTransport
from tests.simulation.test_histories import run_history

SEEDS = 120

Sabotage = Callable[[pytest.MonkeyPatch], None]


def no_fence(patch: pytest.MonkeyPatch) -> None:
    """Whoever thinks it holds a message may commit, also when it is gone."""
    remove = MemoryQueue.remove

    def unfenced(self: MemoryQueue, claim: Claim) -> bool:
        remove(self, claim)
        return True

    patch.setattr(MemoryQueue, "remove", unfenced)


def early_acknowledge(patch: pytest.MonkeyPatch) -> None:
    """The message is removed, and that committed, before its handler runs."""
    handle = StageTransaction._handle

    def acknowledging(self: StageTransaction, stage: Any, claim: Claim, workspace: Any) -> Any:
        session = workspace._session
        workspace.begin()
        session.commit()
        outcome = handle(self, stage, claim, workspace)
        if isinstance(outcome, Completed):
            session.begin()
        return outcome

    patch.setattr(StageTransaction, "_handle", acknowledging)


def rollback_commits(patch: pytest.MonkeyPatch) -> None:
    """What a failed attempt wrote stays."""

    def rollback(self: MemorySession) -> None:
        if self.is_open:
            self.commit()

    patch.setattr(MemorySession, "rollback", rollback)


def everything_is_new(patch: pytest.MonkeyPatch) -> None:
    """The same id starts a flow each time it comes."""

    def accept(self: MemorySession, acceptance: Acceptance) -> Verdict:
        return Verdict("started", acceptance.digest)

    patch.setattr(MemorySession, "accept", accept)


def outgoing_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Of several messages that a stage sends, one does not leave."""
    put = DatabaseTransport.put
    patch.setattr(DatabaseTransport, "put", lambda self, outgoing: put(self, outgoing[:1]))


def outgoing_leaves_at_once(patch: pytest.MonkeyPatch) -> None:
    """What a stage sends is committed before the stage is."""
    put = Post.put

    def eager(self: Post, claim: Claim, produced: Produced) -> None:
        put(self, claim, produced)
        self.session.commit()
        self.session.begin()
        self.transport.put([])

    patch.setattr(Post, "put", eager)
    patch.setattr(MemoryQueue, "remove", lambda self, claim: self.holds(claim))


def failures_not_counted(patch: pytest.MonkeyPatch) -> None:
    """A message that always fails is tried for ever."""
    defer = DatabaseTransport.defer

    def forgetful(self: DatabaseTransport, claim: Claim, *, due_at: int, failures: int, deaths: int) -> bool:
        return defer(self, claim, due_at=due_at, failures=claim.failures, deaths=deaths)

    patch.setattr(DatabaseTransport, "defer", forgetful)


def deaths_count_as_failures(patch: pytest.MonkeyPatch) -> None:
    """What was running when its process died is blamed for it."""
    defer = DatabaseTransport.defer

    def blaming(self: DatabaseTransport, claim: Claim, *, due_at: int, failures: int, deaths: int) -> bool:
        return defer(self, claim, due_at=due_at, failures=failures + deaths - claim.deaths, deaths=0)

    patch.setattr(DatabaseTransport, "defer", blaming)


def claims_are_shared(patch: pytest.MonkeyPatch) -> None:
    """A claim does not keep others from claiming: each gets a row of its own."""
    own = MemoryQueue.own

    def copying(self: MemoryQueue, key: int, owner: str) -> Claim:
        held = self._tables.ready.get(key)
        assert held is not None
        return own(self, self._tables.ready.insert(held) if held.row.deliveries == 0 else key, owner)

    patch.setattr(MemoryQueue, "own", copying)


def the_dead_keep_what_they_hold(patch: pytest.MonkeyPatch) -> None:
    """Nobody takes over."""
    patch.setattr(DatabaseTransport, "unattended", lambda self, owner: [])


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
