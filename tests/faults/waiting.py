"""Waiting for a condition, with a deadline so generous that a busy machine does not miss it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

DEADLINE_SECONDS = 90.0
LOOK_SECONDS = 0.02


def wait_until(condition: Callable[[], T], what: str, seconds: float = DEADLINE_SECONDS) -> T:
    """What ``condition`` gives once it is true. ``what`` says in the failure what was waited for."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"{seconds:.0f} s have passed, and it is still not so that {what}")
        time.sleep(LOOK_SECONDS)


def is_soon(condition: Callable[[], object], seconds: float) -> bool:
    """Whether it came to be so within that time: for a judgement, which says itself what is wrong."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_SECONDS)
    return True
