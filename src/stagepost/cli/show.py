"""Output for people: moments, durations, tables and progress."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn

from stagepost.flow.clock import MILLISECOND, SECOND, to_datetime
from stagepost.flow.texts import one_line

STDOUT, STDERR = 1, 2

MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR


# Output to a file or a pipe is not wrapped to the width of a screen.
WIDTH_WITHOUT_SCREEN = 160


def console() -> Console:
    # Rich would print a part of an id such as "order:100:7" as an emoji.
    out = Console(highlight=False, emoji=False)
    return out if out.is_terminal else Console(highlight=False, emoji=False, width=WIDTH_WITHOUT_SCREEN)


def echo(text: str = "", *, err: bool = False) -> None:
    """Print a line. Without the stream, click would treat an ASCII terminal as one of UTF-8."""
    click.echo(text, file=sys.stderr if err else sys.stdout)


def plain(text: str) -> str:
    """Return foreign text for a line or a cell, without markup, and without control characters for the terminal."""
    return escape(one_line(text))


def progress(*columns: ProgressColumn | str) -> Progress:
    """Return a progress line. It goes to standard error, so that output can be piped, and only to a screen."""
    screen = Console(stderr=True, emoji=False)
    shown = (SpinnerColumn(), TextColumn("{task.description}"), *columns, TimeElapsedColumn())
    return Progress(*shown, console=screen, disable=not screen.is_terminal, transient=True)


@contextmanager
def reserve_stdout() -> Iterator[None]:
    """Keep standard output for the command's answer.

    Within the block, the output of the user's modules, here and in child processes, goes to standard error.
    """
    sys.stdout.flush()
    kept = os.dup(STDOUT)
    os.dup2(STDERR, STDOUT)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, STDOUT)
        os.close(kept)


def moment(at: int) -> str:
    return to_datetime(at).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


def clock_time(at: int) -> str:
    return to_datetime(at).strftime("%H:%M:%S.%f")[:-3]


def duration(microseconds: float) -> str:
    if microseconds < SECOND:
        return f"{microseconds / MILLISECOND:.1f} ms"
    if microseconds < 2 * MINUTE:
        return f"{microseconds / SECOND:.1f} s"
    if microseconds < 2 * HOUR:
        return f"{microseconds / MINUTE:.0f} min"
    if microseconds < 2 * DAY:
        return f"{microseconds / HOUR:.0f} h"
    return f"{microseconds / DAY:.0f} d"
