"""When somebody who works until nothing is left stops waiting for stages that are paused."""

from __future__ import annotations

from stagepost.flow.queue import Pending


class Draining:
    """Of one run. Paused stages are given up once several probes were in vain, one of them since the run began: an
    outage may have ended since the run before."""

    def __init__(self) -> None:
        self._has_looked = False
        self._found: int | None = None

    def is_stalled(self, pending: Pending) -> bool:
        """Whether nothing is left but what waits at paused stages, and these are given up. Ask from the beginning."""
        if not self._has_looked:
            self._has_looked = True
            self._found = pending.stalled_probes
        return pending.stalled_probes is not None and pending.stalled_probes != self._found
