"""Handle Ctrl-C in commands that stop only between two steps, and in commands that must end Java first."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import click

from stagepost.cli.exits import SIGNALLED

# A poll accepts only as many milliseconds as an int holds. A caller with a longer wait waits again.
WAIT_MAX_SECONDS = 86_400.0


class PipeSignal:
    """A ``transaction.database_wait.StopSignal`` that is given when a byte is in the pipe."""

    def __init__(self, pipe: int) -> None:
        # A signal handler must not set a threading.Event that its own thread waits for.
        self._poll = select.poll()
        self._poll.register(pipe, select.POLLIN)

    def wait(self, seconds: float) -> bool:
        return not self._poll.poll(min(seconds, WAIT_MAX_SECONDS) * 1000)


@contextmanager
def interruptible() -> Iterator[PipeSignal]:
    """Turn the first Ctrl-C within the block into a stop signal. A second one breaks off the running step."""
    reader, writer = os.pipe()

    def handle(number: int, frame: FrameType | None) -> None:
        os.write(writer, b"!")
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield PipeSignal(reader)
    finally:
        signal.signal(signal.SIGINT, before)
        os.close(reader)
        os.close(writer)


class Stopped(Exception):
    """A signal requested the command to stop."""


@dataclass
class StopRequest:
    """A request to stop. ``signal`` is the number of the signal that made the request, or None without a request."""

    signal: int | None = None

    def check(self) -> None:
        """Raise ``Stopped`` after a request to stop."""
        if self.signal is not None:
            raise Stopped


@contextmanager
def stoppable() -> Iterator[StopRequest]:
    """Turn the first Ctrl-C or SIGTERM within the block into a request to stop, and confirm it at once with a line.

    A second signal ends this process immediately. After a request to stop, the block ends with ``Exit`` and the
    signal's exit code.
    """
    request = StopRequest()

    def handle(number: int, frame: FrameType | None) -> None:
        if request.signal is not None:
            os._exit(SIGNALLED + number)
        request.signal = number
        # The signal may have interrupted a print, which cannot be entered twice.
        os.write(2, b"interrupted, stopping; a second signal ends the command at once\n")

    # A shell makes a background command ignore Ctrl-C, which is meant for another command.
    handled = [each for each in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(each) is not signal.SIG_IGN]
    before = {each: signal.signal(each, handle) for each in handled}
    try:
        yield request
    except Exception:
        # Cancelled work raises errors of many types.
        if request.signal is None:
            raise
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    if request.signal is not None:
        raise click.exceptions.Exit(SIGNALLED + request.signal)
