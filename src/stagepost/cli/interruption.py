"""Ctrl-C for a command that stops between two steps, never within one, and for one that has Java to end."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

from stagepost.cli.exits import exit_code_of

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


class Stopped(Exception):
    """The command was told to stop."""


class StopRequest:
    """``signal`` is the one that asked to stop; None while nobody has."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def check(self) -> None:
        """Raises ``Stopped`` once somebody has."""
        if self.signal is not None:
            raise Stopped


@contextmanager
def stoppable() -> Iterator[StopRequest]:
    """Within it the first Ctrl-C or SIGTERM is a request to stop, and is answered with a line at once. A second one
    ends this process as it stands.

    Raises ``Exit`` with the signal's exit code at the end, where there was one.
    """
    request = StopRequest()

    def hear(number: int, frame: FrameType | None) -> None:
        if request.signal is not None:
            os._exit(exit_code_of(number))
        request.signal = number
        # Not print, which a signal handler may have interrupted.
        os.write(2, b"interrupted: stopping. A second time ends it at once.\n")

    # A shell that runs a command in the background has it ignore Ctrl-C, which is another command's.
    heard = [each for each in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(each) is not signal.SIG_IGN]
    before = {each: signal.signal(each, hear) for each in heard}
    try:
        yield request
    except Exception:
        # What is broken off says so in many ways.
        if request.signal is None:
            raise
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    if request.signal is not None:
        raise click.exceptions.Exit(exit_code_of(request.signal))
