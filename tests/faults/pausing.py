"""Pause a process from outside: it lives, and does nothing."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import IO

from stagepost.store.sqlite.second_file import second_of
from stagepost.store.sqlite.writer_lock import NEXT, SUFFIX, WRITER
from tests.waiting import wait_until

SQLITE = "sqlite:///"


def pause(pid: int, url: str) -> None:
    """Stop a process at a moment at which none of its threads writes to its database, or to the second file of it.

    SQLite has one writer, so all others would wait until the stopped one goes on.
    """
    with _no_writer(url):
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: _is_stopped(pid), f"process {pid} is stopped")


@contextmanager
def _no_writer(url: str) -> Iterator[None]:
    if not url.startswith(SQLITE):
        yield
        return
    first = Path(url.removeprefix(SQLITE))
    with ExitStack() as files:
        for each in (first, second_of(first)):
            file = files.enter_context(each.with_name(each.name + SUFFIX).open("ab"))
            # As a writer takes them, and without giving up the first: no process may wait for its turn either.
            for byte in (NEXT, WRITER):
                wait_until(partial(_has_locked, file, byte), "no process writes")
        yield


def _has_locked(file: IO[bytes], byte: int) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _is_stopped(pid: int) -> bool:
    # The name may have any text, and ends with the last bracket.
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T"
