"""What a process has claimed and not begun: shared by its threads, and given back when it waits for too long."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, cast

import pytest

from stagepost import StoreUnavailable
from stagepost.flow.claim import Claim
from stagepost.flow.queue import Pending
from stagepost.liveness.intake import Intake
from stagepost.testing import ManualClock
from stagepost.transaction.seams import Transport
from tests.faults.waiting import wait_until
from tests.liveness.lodger import claim

NOTHING = Pending(ready=False, claimed=False, next_due_at=None, next_suspect_at=None)


class Queue:
    """A transport that hands out what is put in, as often as it is asked; as the tests need it and no more."""

    def __init__(self) -> None:
        self.batches: list[list[Claim]] = []
        self.asked: list[int] = []
        self.released: list[Claim] = []
        self.errors: list[Exception] = []
        self.next_pending = NOTHING
        self.has_changed = False
        self.holding: threading.Event | None = None
        self.claiming = 0
        self.claiming_max = 0

    def claim(self, stages: Sequence[str], limit: int, owner: str, node: str) -> list[Claim]:
        self.claiming += 1
        self.claiming_max = max(self.claiming_max, self.claiming)
        try:
            if self.holding is not None:
                self.holding.wait(60)
            self.asked.append(limit)
            if self.errors:
                raise self.errors.pop(0)
            return self.batches.pop(0) if self.batches else []
        finally:
            self.claiming -= 1

    def pending(self, stages: Sequence[str]) -> Pending:
        return self.next_pending

    def changed(self) -> bool:
        changed, self.has_changed = self.has_changed, False
        return changed

    def release(self, claims: Sequence[Claim], node: str) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.released += claims

    @property
    def transport(self) -> Transport:
        return cast(Transport, self)


class Taker:
    """A thread that takes one message, or finds that there is none to come."""

    def __init__(self, intake: Intake, queue: Queue) -> None:
        self.taken: Claim | None = None
        self.error: BaseException | None = None
        self._intake = intake
        self._queue = queue
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def _take(self) -> None:
        try:
            self.taken = next(iter(self._intake.next(self._queue.transport)), None)
        except BaseException as error:  # noqa: BLE001 - it is looked at
            self.error = error

    @property
    def is_waiting(self) -> bool:
        return self._thread.is_alive()

    def over(self) -> Claim | None:
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.taken


@pytest.fixture
def queue() -> Queue:
    return Queue()


@pytest.fixture
def intake(clock: ManualClock) -> Intake:
    return Intake({"bank.pay": 1}, "bank/1", "node", 2, clock)


def claims(count: int) -> list[Claim]:
    return [claim(row, 1) for row in range(1, count + 1)]


def test_a_window_is_handed_out_in_its_order_and_asked_for_once(intake: Intake, queue: Queue) -> None:
    queue.batches = [claims(3), claims(1)]
    taken = [each for _ in range(3) for each in intake.next(queue.transport)]
    assert taken == claims(3)
    assert len(queue.asked) == 1
    assert intake.next(queue.transport) == [claim(1, 1)]
    assert len(queue.asked) == 2


def test_it_asks_for_as_many_as_the_window_says(intake: Intake, queue: Queue) -> None:
    queue.batches = [claims(2), claims(1)]
    intake.next(queue.transport)
    intake.next(queue.transport)
    for _ in range(50):
        intake.window.observe(0.004)
    intake.next(queue.transport)
    assert queue.asked == [2, intake.window.size]
    assert intake.window.size > 2


def test_one_thread_claims_for_all_and_the_others_get_what_it_claimed(intake: Intake, queue: Queue) -> None:
    queue.holding = threading.Event()
    queue.batches = [claims(3)]
    takers = [Taker(intake, queue) for _ in range(3)]
    wait_until(lambda: queue.claiming == 1, "one of them asks")
    queue.holding.set()
    assert {each.over() for each in takers} == set(claims(3))
    assert queue.claiming_max == 1
    assert len(queue.asked) == 1


def test_one_that_fails_to_claim_says_so_and_leaves_it_to_the_next(intake: Intake, queue: Queue) -> None:
    queue.errors = [StoreUnavailable("down")]
    queue.batches = [claims(1)]
    with pytest.raises(StoreUnavailable):
        intake.next(queue.transport)
    assert intake.next(queue.transport) == [claim(1, 1)]


def test_what_somebody_else_commits_is_looked_for(intake: Intake, queue: Queue) -> None:
    taker = Taker(intake, queue)
    wait_until(lambda: queue.asked, "it has asked")
    queue.batches = [claims(1)]
    queue.has_changed = True
    assert taker.over() == claim(1, 1)


def test_what_this_process_commits_is_looked_for_when_it_rings(intake: Intake, queue: Queue) -> None:
    taker = Taker(intake, queue)
    wait_until(lambda: queue.asked, "it has asked")
    queue.batches = [claims(1)]

    def rings() -> bool:
        intake.wakeup.ring()
        return not taker.is_waiting

    wait_until(rings, "it was heard")
    assert taker.over() == claim(1, 1)


def test_what_is_delayed_is_looked_for_when_it_is_due(intake: Intake, queue: Queue, clock: ManualClock) -> None:
    queue.next_pending = Pending(ready=False, claimed=False, next_due_at=clock.now() + 1, next_suspect_at=None)
    taker = Taker(intake, queue)
    wait_until(lambda: queue.asked, "it has asked")
    queue.batches = [claims(1)]
    clock.advance(1)
    assert taker.over() == claim(1, 1)


def test_an_idle_one_does_not_ask_again_before_something_happened(intake: Intake, queue: Queue) -> None:
    taker = Taker(intake, queue)
    wait_until(lambda: queue.asked, "it has asked")
    asked_whether_changed = 0

    def changed() -> bool:
        nonlocal asked_whether_changed
        asked_whether_changed += 1
        return False

    queue.changed = changed  # type: ignore[method-assign]
    wait_until(lambda: asked_whether_changed > 10, "it has looked ten times")
    assert queue.asked == [2]
    intake.stop()
    assert taker.over() is None


def test_stopping_ends_the_wait_of_all_threads(intake: Intake, queue: Queue) -> None:
    takers = [Taker(intake, queue) for _ in range(3)]
    wait_until(lambda: queue.asked, "one of them has asked")
    intake.stop()
    assert [each.over() for each in takers] == [None, None, None]
    assert intake.is_stopped


def test_one_that_was_stopped_hands_out_nothing_more(intake: Intake, queue: Queue) -> None:
    queue.batches = [claims(3)]
    intake.next(queue.transport)
    intake.stop()
    assert intake.next(queue.transport) == []
    intake.give_back(queue.transport)
    assert queue.released == claims(3)[1:]


def test_what_waits_for_too_long_is_given_back_and_not_handed_out(
    intake: Intake, queue: Queue, clock: ManualClock
) -> None:
    queue.batches = [claims(3), []]
    intake.next(queue.transport)
    clock.advance(0.999)
    intake.give_back(queue.transport, held_longer_than=1.0)
    assert queue.released == []
    clock.advance(0.001)
    intake.give_back(queue.transport, held_longer_than=1.0)
    assert queue.released == claims(3)[1:]
    intake.give_back(queue.transport)
    assert queue.released == claims(3)[1:]


def test_what_could_not_be_given_back_is_still_held(intake: Intake, queue: Queue, clock: ManualClock) -> None:
    """By the database it is ours: forgotten here, it would be nobody's for as long as this process lives."""
    queue.batches = [claims(3)]
    intake.next(queue.transport)
    queue.errors = [StoreUnavailable("down")]
    clock.advance(2)
    with pytest.raises(StoreUnavailable):
        intake.give_back(queue.transport, held_longer_than=1.0)
    intake.give_back(queue.transport, held_longer_than=1.0)
    assert queue.released == claims(3)[1:]


def test_it_stops_by_itself_when_it_is_told_that_nothing_is_left(clock: ManualClock, queue: Queue) -> None:
    seen: list[Pending] = []

    def is_done(pending: Pending) -> bool:
        seen.append(pending)
        return pending.is_drained

    intake = Intake({"bank.pay": 1}, "bank/1", "node", 2, clock, is_done=is_done)
    queue.batches = [claims(1)]
    queue.next_pending = Pending(ready=False, claimed=True, next_due_at=None, next_suspect_at=None)
    assert intake.next(queue.transport) == [claim(1, 1)]
    taker = Taker(intake, queue)
    wait_until(lambda: seen, "it has looked whether anything is left")
    assert taker.is_waiting
    queue.next_pending = NOTHING
    queue.has_changed = True
    assert taker.over() is None
    assert intake.is_stopped


@pytest.mark.parametrize(
    "left",
    [
        {"ready": True},
        {"claimed": True},
        {"next_due_at": 10**18},
        {"next_suspect_at": 10**18},
    ],
)
def test_drained_means_nothing_ready_claimed_delayed_or_suspect(left: dict[str, Any]) -> None:
    everything: dict[str, Any] = {"ready": False, "claimed": False, "next_due_at": None, "next_suspect_at": None}
    assert Pending(**everything).is_drained
    assert not Pending(**(everything | left)).is_drained


def test_it_has_moved_when_something_was_handed_out_since_it_was_last_asked(intake: Intake, queue: Queue) -> None:
    assert intake.has_moved()
    assert not intake.has_moved()
    queue.batches = [claims(2)]
    intake.next(queue.transport)
    assert intake.has_moved()
    assert not intake.has_moved()


def test_it_has_moved_while_the_database_keeps_a_claim_waiting(intake: Intake, queue: Queue) -> None:
    intake.has_moved()
    queue.holding = threading.Event()
    queue.batches = [claims(1)]
    taker = Taker(intake, queue)
    wait_until(lambda: queue.claiming, "it asks")
    assert intake.has_moved()
    assert intake.has_moved()
    queue.holding.set()
    taker.over()


# Those that may share a transaction


@pytest.fixture
def batching(clock: ManualClock) -> Intake:
    return Intake({"bank.pay": 3, "bank.done": 1}, "bank/1", "node", 1, clock)


def handed_out(intake: Intake, queue: Queue, waiting: list[Claim]) -> list[list[int]]:
    queue.batches.append(waiting)
    given: list[list[int]] = []
    while sum(map(len, given)) < len(waiting):
        given.append([each.row for each in intake.next(queue.transport)])
    return given


def test_first_attempts_at_one_stage_are_handed_out_together_as_many_as_may_be(batching: Intake, queue: Queue) -> None:
    assert handed_out(batching, queue, claims(5)) == [[1, 2, 3], [4, 5]]


def test_those_of_another_stage_keep_their_turn(batching: Intake, queue: Queue) -> None:
    other = claim(2, 1)._replace(stage="bank.done"), claim(4, 1)._replace(stage="bank.done")
    waiting = [claim(1, 1), other[0], claim(3, 1), other[1], claim(5, 1), claim(6, 1)]
    assert handed_out(batching, queue, waiting) == [[1, 3, 5], [2], [4], [6]]


@pytest.mark.parametrize("again", [claim(2, 2), claim(2, 1, failures=1), claim(2, 2, deaths=1)])
def test_what_came_back_is_handed_out_alone(batching: Intake, queue: Queue, again: Claim) -> None:
    assert handed_out(batching, queue, [claim(1, 1), again, claim(3, 1)]) == [[1, 3], [2]]
    assert handed_out(batching, queue, [again, claim(3, 1)]) == [[2], [3]]
