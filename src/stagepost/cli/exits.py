"""Exit codes, and errors as people can read them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click
from rich.console import Console

from stagepost.cli.show import say
from stagepost.flow.errors import StagepostError, StoreError
from stagepost.flow.texts import lines

BAD_NEWS = 1
CANNOT = 2
DATABASE = 3
INTERRUPTED = 130


@contextmanager
def readable_errors() -> Iterator[None]:
    """Stagepost's own errors are one paragraph without a traceback; all others are somebody's bug, and keep theirs."""
    try:
        yield
    except StagepostError as error:
        Console(stderr=True, soft_wrap=True, highlight=False, emoji=False).print(
            f"[red]error[/red] ({error.code}): ", end=""
        )
        say(lines(str(error)), err=True)
        raise click.exceptions.Exit(DATABASE if isinstance(error, StoreError) else CANNOT) from error
