"""What a process has claimed and not begun: shared by its threads, and given back when it waits for too long."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, cast

import pytest

from stagepost import StoreUnavailable
from stagepost.flow.claim import Claim
from stagepost.ports.queue import Pending
from stagepost.runtime.prefetch import Prefetcher
from stagepost.testing import ManualClock
from stagepost.transaction.claiming import Claimer
from tests.liveness.scripted_worker import claim
from tests.waiting import PATIENCE_SECONDS, wait_until

NOTHING = Pending(ready=False, claimed=False, next_due_at=None, next_suspect_at=None)


class Queue:
    """A queue that hands out what is put in, as often as it is asked; as the tests need it and no more."""

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
                self.holding.wait(PATIENCE_SECONDS)
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
    def queue(self) -> Queue:
        return self

    @property
    def claimer(self) -> Claimer:
        return cast(Claimer, self)


class Taker:
    """A thread that takes one message, or finds that there is none to come."""

    def __init__(self, prefetcher: Prefetcher, queue: Queue) -> None:
        self.taken: Claim | None = None
        self.error: BaseException | None = None
        self._prefetcher = prefetcher
        self._queue = queue
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def _take(self) -> None:
        try:
            self.taken = next(iter(self._prefetcher.next(self._queue.claimer)), None)
        except BaseException as error:  # noqa: BLE001 - it is looked at
            self.error = error

    @property
    def is_waiting(self) -> bool:
        return self._thread.is_alive()

    def over(self) -> Claim | None:
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.taken


@pytest.fixture
def queue() -> Queue:
    return Queue()


@pytest.fixture
def prefetcher(clock: ManualClock) -> Prefetcher:
    return Prefetcher({"bank.pay": 1}, "bank/1", "node", 2, clock)


def claims(count: int) -> list[Claim]:
    return [claim(row, 1) for row in range(1, count + 1)]


def test_a_window_is_handed_out_in_its_order_and_asked_for_once(prefetcher: Prefetcher, queue: Queue) -> None:
    queue.batches = [claims(3), claims(1)]
    taken = [each for _ in range(3) for each in prefetcher.next(queue.claimer)]
    assert taken == claims(3)
    assert len(queue.asked) == 1
    assert prefetcher.next(queue.claimer) == [claim(1, 1)]
    assert len(queue.asked) == 2


def test_it_asks_for_as_many_as_the_window_says(prefetcher: Prefetcher, queue: Queue) -> None:
    queue.batches = [claims(2), claims(1)]
    prefetcher.next(queue.claimer)
    prefetcher.next(queue.claimer)
    for _ in range(50):
        prefetcher.window.observe(0.004)
    prefetcher.next(queue.claimer)
    assert queue.asked == [2, prefetcher.window.size]
    assert prefetcher.window.size > 2


def test_one_thread_claims_for_all_and_the_others_get_what_it_claimed(prefetcher: Prefetcher, queue: Queue) -> None:
    queue.holding = threading.Event()
    queue.batches = [claims(3)]
    takers = [Taker(prefetcher, queue) for _ in range(3)]
    wait_until(lambda: queue.claiming == 1, "one of them asks")
    queue.holding.set()
    assert {each.over() for each in takers} == set(claims(3))
    assert queue.claiming_max == 1
    assert len(queue.asked) == 1


def test_one_that_fails_to_claim_says_so_and_leaves_it_to_the_next(prefetcher: Prefetcher, queue: Queue) -> None:
    queue.errors = [StoreUnavailable("down")]
    queue.batches = [claims(1)]
    with pytest.raises(StoreUnavailable):
        prefetcher.next(queue.claimer)
    assert prefetcher.next(queue.claimer) == [claim(1, 1)]


def test_what_somebody_else_commits_is_looked_for(prefetcher: Prefetcher, queue: Queue) -> None:
    taker = Taker(prefetcher, queue)
    wait_until(lambda: queue.asked, "it has asked")
    queue.batches = [claims(1)]
    queue.has_changed = True
    assert taker.over() == claim(1, 1)


def test_what_this_process_commits_is_looked_for_when_it_rings(prefetcher: Prefetcher, queue: Queue) -> None:
    taker = Taker(prefetcher, queue)
    wait_until(lambda: queue.asked, "it has asked")
    queue.batches = [claims(1)]

    def rings() -> bool:
        prefetcher.wakeup.ring()
        return not taker.is_waiting

    wait_until(rings, "it was heard")
    assert taker.over() == claim(1, 1)


def test_what_is_delayed_is_looked_for_when_it_is_due(prefetcher: Prefetcher, queue: Queue, clock: ManualClock) -> None:
    queue.next_pending = Pending(ready=False, claimed=False, next_due_at=clock.now() + 1, next_suspect_at=None)
    taker = Taker(prefetcher, queue)
    wait_until(lambda: queue.asked, "it has asked")
    queue.batches = [claims(1)]
    clock.advance(1)
    assert taker.over() == claim(1, 1)


def test_an_idle_one_does_not_ask_again_before_something_happened(prefetcher: Prefetcher, queue: Queue) -> None:
    taker = Taker(prefetcher, queue)
    wait_until(lambda: queue.asked, "it has asked")
    asked_whether_changed = 0

    def changed() -> bool:
        nonlocal asked_whether_changed
        asked_whether_changed += 1
        return False

    queue.changed = changed  # type: ignore[method-assign]
    wait_until(lambda: asked_whether_changed > 10, "it has looked ten times")
    assert queue.asked == [2]
    prefetcher.stop()
    assert taker.over() is None


def test_stopping_ends_the_wait_of_all_threads(prefetcher: Prefetcher, queue: Queue) -> None:
    takers = [Taker(prefetcher, queue) for _ in range(3)]
    wait_until(lambda: queue.asked, "one of them has asked")
    prefetcher.stop()
    assert [each.over() for each in takers] == [None, None, None]
    assert prefetcher.is_stopped


def test_one_that_was_stopped_hands_out_nothing_more(prefetcher: Prefetcher, queue: Queue) -> None:
    queue.batches = [claims(3)]
    prefetcher.next(queue.claimer)
    prefetcher.stop()
    assert prefetcher.next(queue.claimer) == []
    prefetcher.give_back(queue.claimer)
    assert queue.released == claims(3)[1:]


def test_what_waits_for_too_long_is_given_back_and_not_handed_out(
    prefetcher: Prefetcher, queue: Queue, clock: ManualClock
) -> None:
    queue.batches = [claims(3), []]
    prefetcher.next(queue.claimer)
    clock.advance(0.999)
    prefetcher.give_back(queue.claimer, held_longer_than=1.0)
    assert queue.released == []
    clock.advance(0.001)
    prefetcher.give_back(queue.claimer, held_longer_than=1.0)
    assert queue.released == claims(3)[1:]
    prefetcher.give_back(queue.claimer)
    assert queue.released == claims(3)[1:]


def test_what_could_not_be_given_back_is_still_held(prefetcher: Prefetcher, queue: Queue, clock: ManualClock) -> None:
    """By the database it is ours: forgotten here, it would be nobody's for as long as this process lives."""
    queue.batches = [claims(3)]
    prefetcher.next(queue.claimer)
    queue.errors = [StoreUnavailable("down")]
    clock.advance(2)
    with pytest.raises(StoreUnavailable):
        prefetcher.give_back(queue.claimer, held_longer_than=1.0)
    prefetcher.give_back(queue.claimer, held_longer_than=1.0)
    assert queue.released == claims(3)[1:]


def test_it_stops_by_itself_when_it_is_told_that_nothing_is_left(clock: ManualClock, queue: Queue) -> None:
    seen: list[Pending] = []

    def is_done(pending: Pending) -> bool:
        seen.append(pending)
        return pending.is_drained

    prefetcher = Prefetcher({"bank.pay": 1}, "bank/1", "node", 2, clock, is_done=is_done)
    queue.batches = [claims(1)]
    queue.next_pending = Pending(ready=False, claimed=True, next_due_at=None, next_suspect_at=None)
    assert prefetcher.next(queue.claimer) == [claim(1, 1)]
    taker = Taker(prefetcher, queue)
    wait_until(lambda: seen, "it has looked whether anything is left")
    assert taker.is_waiting
    queue.next_pending = NOTHING
    queue.has_changed = True
    assert taker.over() is None
    assert prefetcher.is_stopped


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


def test_it_has_moved_when_something_was_handed_out_since_it_was_last_asked(
    prefetcher: Prefetcher, queue: Queue
) -> None:
    assert prefetcher.has_moved()
    assert not prefetcher.has_moved()
    queue.batches = [claims(2)]
    prefetcher.next(queue.claimer)
    assert prefetcher.has_moved()
    assert not prefetcher.has_moved()


def test_it_has_moved_while_the_database_keeps_a_claim_waiting(prefetcher: Prefetcher, queue: Queue) -> None:
    prefetcher.has_moved()
    queue.holding = threading.Event()
    queue.batches = [claims(1)]
    taker = Taker(prefetcher, queue)
    wait_until(lambda: queue.claiming, "it asks")
    assert prefetcher.has_moved()
    assert prefetcher.has_moved()
    queue.holding.set()
    taker.over()


# Those that may share a transaction


@pytest.fixture
def batching(clock: ManualClock) -> Prefetcher:
    return Prefetcher({"bank.pay": 3, "bank.done": 1}, "bank/1", "node", 1, clock)


def handed_out(prefetcher: Prefetcher, queue: Queue, waiting: list[Claim]) -> list[list[int]]:
    queue.batches.append(waiting)
    given: list[list[int]] = []
    while sum(map(len, given)) < len(waiting):
        given.append([each.row for each in prefetcher.next(queue.claimer)])
    return given


def test_first_attempts_at_one_stage_are_handed_out_together_as_many_as_may_be(
    batching: Prefetcher, queue: Queue
) -> None:
    assert handed_out(batching, queue, claims(5)) == [[1, 2, 3], [4, 5]]


def test_those_of_another_stage_keep_their_turn(batching: Prefetcher, queue: Queue) -> None:
    other = claim(2, 1)._replace(stage="bank.done"), claim(4, 1)._replace(stage="bank.done")
    waiting = [claim(1, 1), other[0], claim(3, 1), other[1], claim(5, 1), claim(6, 1)]
    assert handed_out(batching, queue, waiting) == [[1, 3, 5], [2], [4], [6]]


@pytest.mark.parametrize("again", [claim(2, 2), claim(2, 1, failures=1), claim(2, 2, deaths=1)])
def test_what_came_back_is_handed_out_alone(batching: Prefetcher, queue: Queue, again: Claim) -> None:
    assert handed_out(batching, queue, [claim(1, 1), again, claim(3, 1)]) == [[1, 3], [2]]
    assert handed_out(batching, queue, [again, claim(3, 1)]) == [[2], [3]]
