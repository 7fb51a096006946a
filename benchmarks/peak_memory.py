"""Run a command, and measure the greatest memory of all its processes together.

The memory of a process is its PSS, in which pages are divided among the processes that share them.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

SAMPLE_SECONDS = 0.5
# Memory may grow by so much from one size of the input to the next.
MEMORY_MAX = 1.10


def run_measured(words: Sequence[str], environment: Mapping[str, str] | None = None) -> tuple[str, float]:
    """Return the output of a command, and its memory in MiB. A command that fails ends this process."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
    peak = 0.0

    def sample() -> None:
        nonlocal peak
        while process.poll() is None:
            peak = max(peak, sum(memory(pid) for pid in family(process.pid)) / 1024)
            time.sleep(SAMPLE_SECONDS)

    sampler = threading.Thread(target=sample)
    sampler.start()
    out, _ = process.communicate()
    sampler.join()
    if process.returncode:
        raise SystemExit(process.returncode)
    return out, peak


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
