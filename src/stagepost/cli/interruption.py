"""Handle Ctrl-C in a command that stops only between two steps, and in a command that must end Java first."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

from stagepost.cli.exits import exit_code_of

# A poll takes only as many milliseconds as an int holds, so a longer wait is several waits.
WAIT_MAX_SECONDS = 86_400.0


class Interruptible:
    """A pipe as ``transaction.database_wait.StopSignal``."""

    def __init__(self, pipe: int) -> None:
        # A signal handler must not set a threading.Event that its own thread waits for.
        self._poll = select.poll()
        self._poll.register(pipe, select.POLLIN)

    def wait(self, seconds: float) -> bool:
        return not self._poll.poll(min(seconds, WAIT_MAX_SECONDS) * 1000)

    @property
    def is_stopped(self) -> bool:
        return not self.wait(0)


@contextmanager
def interruptible() -> Iterator[Interruptible]:
    """Turn the first Ctrl-C within the block into a stop signal. A second one breaks off the running step."""
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
    """A request to stop. ``signal`` is the number of the signal that made it, and None before."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def check(self) -> None:
        """Raise ``Stopped`` after a request to stop."""
        if self.signal is not None:
            raise Stopped


@contextmanager
def stoppable() -> Iterator[StopRequest]:
    """Turn the first Ctrl-C or SIGTERM within the block into a request to stop, and confirm it with a line at once.

    A second signal ends this process immediately. After a request to stop, the block ends with ``Exit`` and the
    signal's exit code.
    """
    request = StopRequest()

    def hear(number: int, frame: FrameType | None) -> None:
        if request.signal is not None:
            os._exit(exit_code_of(number))
        request.signal = number
        # print may be what this handler has interrupted, so it cannot be called here.
        os.write(2, b"interrupted, stopping; a second signal ends the command at once\n")

    # A shell makes a background command ignore Ctrl-C, which is meant for another command.
    heard = [each for each in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(each) is not signal.SIG_IGN]
    before = {each: signal.signal(each, hear) for each in heard}
    try:
        yield request
    except Exception:
        # Work that is broken off raises errors of many types.
        if request.signal is None:
            raise
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    if request.signal is not None:
        raise click.exceptions.Exit(exit_code_of(request.signal))
