"""Wait for a condition, with a time-out that a busy machine meets.

A test that waits for progress uses ``PATIENCE_SECONDS``, also as the time-out of a thread, a process or a connection.
Only a failing test waits for so long.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_SECONDS = 300.0
# A system in which nothing has moved for so long has stopped. It is longer than any pause of a sound library in these
# tests: after a death, or until a hung process is killed.
STANDSTILL_SECONDS = 60.0
LOOK_SECONDS = 0.02


def wait_until(condition: Callable[[], T], what: str) -> T:
    """Return the first true result of ``condition``. The failure of a wait names ``what``."""
    found = last_of(condition, PATIENCE_SECONDS)
    if not found:
        raise AssertionError(f"{PATIENCE_SECONDS:.0f} s have passed, and it is still not so that {what}")
    return found


def last_of(condition: Callable[[], T], seconds: float = STANDSTILL_SECONDS) -> T:
    """Return the first true result of ``condition``, or its last one after that time."""
    return last_while_moving(condition, lambda: None, seconds)


def last_while_moving(
    condition: Callable[[], T], progress: Callable[[], object], standstill_seconds: float = STANDSTILL_SECONDS
) -> T:
    """Return the first true result of ``condition``, or its last one when ``progress`` stands still for that time."""
    seen, seen_at = progress(), time.monotonic()
    while not (found := condition()):
        now, current = time.monotonic(), progress()
        if current != seen:
            seen, seen_at = current, now
        elif now - seen_at > standstill_seconds:
            break
        time.sleep(LOOK_SECONDS)
    return found
