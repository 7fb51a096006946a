"""Run a command, and measure its time and the greatest memory of all its processes together.

The memory of a process is its PSS, in which pages are divided among the processes that share them.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SAMPLE_SECONDS = 0.5
# Memory may grow by so much from one size of the input to the next.
MEMORY_MAX = 1.10
KIB_A_MIB = 1024


@dataclass(frozen=True, slots=True)
class Measured:
    """The output of a command, its time, and its memory in MiB. ``java`` is the part of Java."""

    out: str
    seconds: float
    mebibytes: float
    java: float


def run_measured(
    words: Sequence[str], environment: Mapping[str, str] | None = None, codes: Collection[int] = (0,)
) -> Measured:
    """Return the output, the time and the memory of a command. Another exit code than ``codes`` ends this process."""
    begin = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
    peak = java = 0.0

    def sample() -> None:
        nonlocal peak, java
        while process.poll() is None:
            found = {pid: memory(pid) / KIB_A_MIB for pid in family(process.pid)}
            if sum(found.values()) > peak:
                peak = sum(found.values())
                java = sum(size for pid, size in found.items() if is_java(pid))
            time.sleep(SAMPLE_SECONDS)

    sampler = threading.Thread(target=sample)
    sampler.start()
    out, _ = process.communicate()
    seconds = time.perf_counter() - begin
    sampler.join()
    if process.returncode not in codes:
        print(out, file=sys.stderr)
        raise SystemExit(process.returncode or 1)
    return Measured(out, seconds, peak, java)


def family(pid: int) -> list[int]:
    """Return the process and all its descendants."""
    found = [pid]
    for each in found:
        try:
            tasks = list(Path(f"/proc/{each}/task").iterdir())
            found += [int(child) for task in tasks for child in (task / "children").read_text().split()]
        except OSError:
            # It has ended.
            continue
    return found


def memory(pid: int) -> float:
    """Return the memory of a process in KiB, with shared pages divided among those that share them."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((float(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def is_java(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "java"
    except OSError:
        return False
