"""Ctrl-C for a command that stops between two steps, never within one."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# A poll takes no more milliseconds than an int holds. Whoever has to wait for longer waits again.
WAIT_MAX_SECONDS = 86_400.0


class Interruptible:
    """Implements ``transaction.seams.Patience``."""

    def __init__(self, told: int) -> None:
        # Not a threading.Event, which a signal handler of the thread that waits for it must not set.
        self._told = select.poll()
        self._told.register(told, select.POLLIN)

    def wait(self, seconds: float) -> bool:
        return not self._told.poll(min(seconds, WAIT_MAX_SECONDS) * 1000)

    @property
    def is_told(self) -> bool:
        return not self.wait(0)


@contextmanager
def interruptible() -> Iterator[Interruptible]:
    """Within it the first Ctrl-C only ends the patience. A second one breaks off what runs."""
    hears, says = os.pipe()

    def hear(number: int, frame: FrameType | None) -> None:
        os.write(says, b"!")
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, hear)
    try:
        yield Interruptible(hears)
    finally:
        signal.signal(signal.SIGINT, before)
        os.close(hears)
        os.close(says)
