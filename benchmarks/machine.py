"""The machine: what it is, and whether it was busy with something else while a ratio was measured."""

from __future__ import annotations

import os
import platform
import resource
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

# A share of one core that others may take before a measurement is worth nothing.
BUSY_MAX = 0.25
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Quiet:
    """``others`` is the share of one core that other processes used, once the block has ended."""

    others: float = 0.0

    @property
    def is_quiet(self) -> bool:
        return self.others <= BUSY_MAX


@contextmanager
def watched(*servers: int) -> Iterator[Quiet]:
    """Watch who uses the processors while the block runs; its own children that have ended count as its own, and so do
    the processes with these numbers, and theirs."""
    quiet = Quiet()
    begin, busy, own = time.monotonic(), _busy_seconds(), _own_seconds(servers)
    yield quiet
    wall = time.monotonic() - begin
    quiet.others = max(_busy_seconds() - busy - (_own_seconds(servers) - own), 0.0) / wall


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
    """Return the busy time of all processors since boot: all but idle and waiting for input and output."""
    numbers = [int(number) for number in Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0].split()[1:]]
    user, nice, system, _idle, _iowait, *rest = numbers
    # Interrupts too; time stolen by other machines is not ours to spend, and counts as others'.
    return (user + nice + system + sum(rest[:3])) / TICKS


def _own_seconds(servers: Sequence[int]) -> float:
    """Return the processor time of this process and all below it, also of those that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime + sum(_family_ticks(servers)) / TICKS


def _family_ticks(servers: Sequence[int]) -> Iterator[int]:
    """User and system time of this process and its living descendants, with what their own ended children used."""
    family = {os.getpid(), *servers}
    stats = sorted(_stats(), key=lambda stat: stat[0])
    for process, parent, ticks in stats:
        # A child is younger than its parent, and numbers are handed out in order until they wrap.
        if process in family or parent in family:
            family.add(process)
            yield ticks


def _stats() -> Iterator[tuple[int, int, int]]:
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            # The command's name stands in brackets and may hold anything.
            fields = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            own = int(fields[11]) + int(fields[12])
            ended = 0 if int(folder.name) == os.getpid() else int(fields[13]) + int(fields[14])
            yield int(folder.name), int(fields[1]), own + ended
