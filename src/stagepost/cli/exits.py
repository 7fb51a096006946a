"""Exit codes, and errors without tracebacks."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import click
from rich.console import Console

from stagepost.cli.show import echo
from stagepost.flow.errors import StagepostError, StoreError
from stagepost.flow.texts import lines

BAD_NEWS = 1
CANNOT = 2
DATABASE = 3
UNBALANCED = 4
# A shell adds this to the number of the signal that ended a process: 130 after Ctrl-C.
SIGNALLED = 128
INTERRUPTED = SIGNALLED + signal.SIGINT


@contextmanager
def readable_errors() -> Iterator[None]:
    """Print Stagepost's own errors as one paragraph without a traceback. Other errors are bugs, and keep theirs."""
    try:
        yield
    except StagepostError as error:
        print_error(error.code, lines(str(error)))
        raise click.exceptions.Exit(DATABASE if isinstance(error, StoreError) else CANNOT) from error


def fail(text: str) -> NoReturn:
    """Print the line to standard error, and end the command with exit code 1."""
    echo(text, err=True)
    raise click.exceptions.Exit(BAD_NEWS)


def print_error(code: str, text: str) -> None:
    Console(stderr=True, soft_wrap=True, highlight=False, emoji=False).print(f"[red]error[/red] ({code}): ", end="")
    echo(text, err=True)
