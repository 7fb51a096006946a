"""Describe the machine, and measure the load of other processes during a benchmark."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

# The largest share of one core that other processes may use during a valid measurement.
BUSY_MAX = 0.25
TICKS = os.sysconf("SC_CLK_TCK")
PR_SET_CHILD_SUBREAPER = 36


@dataclass
class Load:
    """The load during a block. ``others`` is the share of one core that other processes used, set after the block."""

    others: float = 0.0


@contextmanager
def watched(*servers: int) -> Iterator[Load]:
    """Measure the use of the processors during the block.

    This process, its descendants, the processes ``servers`` and their children do not count as others.
    """
    _adopt_orphans()
    load = Load()
    begin, busy, own = time.monotonic(), _busy_seconds(), _own_seconds(servers)
    yield load
    wall = time.monotonic() - begin
    load.others = max(_busy_seconds() - busy - (_own_seconds(servers) - own), 0.0) / wall


def describe() -> str:
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return (
        f"{os.cpu_count()} x {model}, {platform.system()} {platform.release()}, Python {platform.python_version()}, "
        f"SQLite {sqlite3.sqlite_version}"
    )


def _busy_seconds() -> float:
    """Return the seconds since boot in which a processor was neither idle nor waiting for input and output."""
    numbers = [int(number) for number in Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0].split()[1:]]
    user, nice, system, _idle, _iowait, *rest = numbers
    # The rest are interrupts and stolen time. Time that other virtual machines steal counts as the load of others.
    return (user + nice + system + sum(rest[:3])) / TICKS


def _adopt_orphans() -> None:
    """Become the parent of each descendant whose parent ends: a plain session of Spark leaves its Java behind."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot become the parent of orphans")


def _own_seconds(servers: Sequence[int]) -> float:
    """Return the processor time of this process and its descendants, with those that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime + sum(_family_ticks(servers)) / TICKS


def _family_ticks(servers: Sequence[int]) -> Iterator[int]:
    """Yield the user and system time of this process and its living descendants, with that of their ended children."""
    family = {os.getpid(), *servers}
    stats = sorted(_stats(), key=lambda stat: stat[0])
    for process, parent, ticks in stats:
        # A child has a higher id than its parent, unless ids have wrapped around.
        if process in family or parent in family:
            family.add(process)
            yield ticks


def _stats() -> Iterator[tuple[int, int, int]]:
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            # The command's name is in brackets and may hold any character.
            fields = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            own = int(fields[11]) + int(fields[12])
            ended = 0 if int(folder.name) == os.getpid() else int(fields[13]) + int(fields[14])
            yield int(folder.name), int(fields[1]), own + ended
