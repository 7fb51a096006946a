"""Format moments and durations, and print text, tables and progress."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from typing import IO

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn

from stagepost.flow.clock import MILLISECOND, SECOND, to_datetime
from stagepost.flow.texts import one_line
from stagepost.ports.findings import span

STDOUT, STDERR = 1, 2

# The width of output to a file or a pipe, which has no terminal to take a width from.
WIDTH_WITHOUT_TERMINAL = 160
# A character of Rich's spinner "dots".
DOTS = "\N{BRAILLE PATTERN DOTS-1}"


def console() -> Console:
    # Rich would print a part of an id such as "order:100:7" as an emoji.
    out = Console(highlight=False, emoji=False)
    return out if out.file.isatty() else Console(highlight=False, emoji=False, width=WIDTH_WITHOUT_TERMINAL)


def echo(text: str = "", *, err: bool = False) -> None:
    """Print a line. The stream is passed, because click otherwise treats an ASCII terminal as one of UTF-8."""
    click.echo(text, file=sys.stderr if err else sys.stdout)


def plain(text: str) -> str:
    """Return a text of foreign origin as one line, without Rich's markup and without control characters."""
    return escape(one_line(text))


def progress(*columns: ProgressColumn | str) -> Progress:
    """Return a progress line on standard error, so that output can be piped.

    It is shown on a terminal that can write a line again. Rich would also write it to a pipe if FORCE_COLOR is set.
    """
    terminal = Console(stderr=True, emoji=False)
    spinner = SpinnerColumn("dots" if _has_characters(terminal.file, DOTS) else "line")
    is_shown = terminal.file.isatty() and not terminal.is_dumb_terminal
    shown = (spinner, TextColumn("{task.description}"), *columns, TimeElapsedColumn())
    return Progress(*shown, console=terminal, disable=not is_shown, transient=True)


def _has_characters(stream: IO[str], text: str) -> bool:
    """Return whether a stream can write the text, in its encoding."""
    try:
        text.encode(getattr(stream, "encoding", None) or "ascii")
    except UnicodeEncodeError:
        return False
    return True


@contextmanager
def reserve_stdout() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Reserve standard output for the command's result.

    Within the block, the output of this process and of its children goes to standard error. Print a result that is
    ready before the end of the block in a block of the function that this yields.
    """
    sys.stdout.flush()
    out, kept = sys.stdout, os.dup(STDOUT)
    os.dup2(STDERR, STDOUT)

    @contextmanager
    def released() -> Iterator[None]:
        os.dup2(kept, STDOUT)
        try:
            with redirect_stdout(out):
                yield
                out.flush()
        finally:
            os.dup2(STDERR, STDOUT)

    try:
        with redirect_stdout(sys.stderr):
            yield released
    finally:
        os.dup2(kept, STDOUT)
        os.close(kept)


def moment(at: int) -> str:
    return to_datetime(at).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


def clock_time(at: int) -> str:
    return to_datetime(at).strftime("%H:%M:%S.%f")[:-3]


def duration(microseconds: float) -> str:
    return f"{microseconds / MILLISECOND:.1f} ms" if microseconds < SECOND else span(microseconds / SECOND)
