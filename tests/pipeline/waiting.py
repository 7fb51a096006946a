"""Waiting for a condition, with a deadline so generous that a busy machine does not miss it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

DEADLINE_SECONDS = 120.0
LOOK_SECONDS = 0.01


def wait_until(condition: Callable[[], T], what: str) -> T:
    """What ``condition`` gives once it is true. ``what`` says in the failure what was waited for."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{DEADLINE_SECONDS:.0f} s have passed, and it is still not so that {what}")
        time.sleep(LOOK_SECONDS)
    return found
