"""Suspend a PostgreSQL server, so that its connections hang. This works on Linux only."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from stagepost.testing.postgres import PostgresServer

WRITERS = (b"walwriter", b"background writer", b"checkpointer")


@contextmanager
def stalled(server: PostgresServer) -> Iterator[None]:
    """Suspend all processes of the server during the block."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        # A suspended first process starts no other processes.
        while _state_of(server.pid) != "T":
            time.sleep(0.001)
        _signal_all(children(server.pid), signal.SIGSTOP)
        yield
    finally:
        _signal_all([*children(server.pid), server.pid], signal.SIGCONT)


@contextmanager
def without_writers(server: PostgresServer) -> Iterator[None]:
    """Suspend the processes that write to the disk without a commit that waits for it. Kill the server in the block."""
    writers = [each for each in children(server.pid) if _is_writer(each)]
    _signal_all(writers, signal.SIGSTOP)
    try:
        yield
    finally:
        # Those of a server that was killed are gone.
        _signal_all(writers, signal.SIGCONT)


def _is_writer(pid: int) -> bool:
    with suppress(OSError):
        return any(name in Path(f"/proc/{pid}/cmdline").read_bytes() for name in WRITERS)
    return False


def is_suspended(pid: int) -> bool:
    with suppress(OSError):
        return _state_of(pid) == "T"
    return False


def children(pid: int) -> list[int]:
    found = []
    for each in Path("/proc").glob("[0-9]*/stat"):
        # The process may have ended since the listing.
        with suppress(OSError):
            parent = each.read_text(encoding="utf-8").rpartition(")")[2].split()[1]
            if int(parent) == pid:
                found.append(int(each.parent.name))
    return found


def _state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]


def _signal_all(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
