"""The memory of processes that a campaign never kills: the last quarter of their life against the second one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

# Grown by more than this, a process leaks.
GROWTH_MAX = 1.05
# A shorter run says nothing: a process still warms up.
JUDGED_SECONDS = 600.0
LOOK_SECONDS = 2.0
PAGE = 4096


@dataclass
class MemoryWatch:
    """``pids`` by the name of the process."""

    pids: Mapping[str, int]
    _samples: list[tuple[float, dict[str, int]]] = field(default_factory=list)

    def look(self) -> None:
        now = time.monotonic()
        if not self._samples or now - self._samples[-1][0] >= LOOK_SECONDS:
            self._samples.append((now, {name: resident_bytes(pid) for name, pid in self.pids.items()}))

    def growth(self) -> dict[str, tuple[float, float]]:
        """Return the medians of the second and of the last quarter, in MiB, by process."""
        quarter = len(self._samples) // 4
        if not quarter:
            return {}
        second, last = self._samples[quarter : 2 * quarter], self._samples[-quarter:]
        return {name: (_median(second, name), _median(last, name)) for name in self.pids}

    def problems(self) -> Iterator[str]:
        if not self._samples or self._samples[-1][0] - self._samples[0][0] < JUDGED_SECONDS:
            return
        for name, (second, last) in self.growth().items():
            if last > second * GROWTH_MAX:
                yield f"memory: {name} had {second:.1f} MiB in the second quarter, and {last:.1f} MiB in the last one"


def resident_bytes(pid: int) -> int:
    """Return the resident memory, 0 for a process that has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1]) * PAGE
    except OSError:
        return 0


def _median(samples: list[tuple[float, dict[str, int]]], name: str) -> float:
    return statistics.median(each[name] for _, each in samples) / 2**20
