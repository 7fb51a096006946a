"""Knowing that there may be work, without asking too often."""

from __future__ import annotations

import threading

import pytest

from stagepost.runtime.prefetch import INTERVAL_SECONDS_MAX, INTERVAL_SECONDS_MIN, Wakeup
from tests.waiting import PATIENCE_SECONDS


class Bell:
    """In place of the event: notes for how long it was asked to wait."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.is_set = False

    def set(self) -> None:
        self.is_set = True

    def clear(self) -> None:
        self.is_set = False

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        return self.is_set


@pytest.fixture
def bell(monkeypatch: pytest.MonkeyPatch) -> Bell:
    bell = Bell()
    monkeypatch.setattr(threading, "Event", lambda: bell)
    return bell


def test_it_asks_ever_less_often_while_nothing_comes(bell: Bell) -> None:
    wakeup = Wakeup()
    for _ in range(30):
        assert wakeup.wait() is False
    assert bell.waits[0] == INTERVAL_SECONDS_MIN
    assert bell.waits == sorted(bell.waits)
    assert bell.waits[-1] == INTERVAL_SECONDS_MAX


def test_it_asks_often_again_after_it_saw_work(bell: Bell) -> None:
    wakeup = Wakeup()
    for _ in range(30):
        wakeup.wait()
    wakeup.saw_work()
    wakeup.wait()
    assert bell.waits[-1] == INTERVAL_SECONDS_MIN


def test_a_ring_ends_the_wait_and_is_heard_once() -> None:
    wakeup = Wakeup()
    ringing = threading.Event()

    def ring() -> None:
        # For one that is not waiting yet a ring is not kept; it looks by itself soon after.
        while not ringing.is_set():
            wakeup.ring()

    ringer = threading.Thread(target=ring, daemon=True)
    ringer.start()
    assert any(wakeup.wait() for _ in range(1_000))
    ringing.set()
    ringer.join(PATIENCE_SECONDS)
    wakeup.wait()
    assert wakeup.wait() is False


def test_a_ring_while_nobody_waits_costs_no_more_than_one_interval(bell: Bell) -> None:
    wakeup = Wakeup()
    wakeup.ring()
    wakeup.wait()
    assert bell.waits == [INTERVAL_SECONDS_MIN]
