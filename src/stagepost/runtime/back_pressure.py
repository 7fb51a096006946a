"""Decide from which addresses a receiver receives now. The rest of their messages waits at the broker.

A stage stops its address while two windows of messages are ready or claimed, while many wait after a failure, and while
it is paused. A paused stage without a message receives one at a time, because only a message can probe it. A backlog of
outbound rows stops all addresses except those that only replies come to, because a reply ends work and begins none.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from stagepost.flow.clock import Clock
from stagepost.ports.edge import Fill
from stagepost.ports.session import Session
from stagepost.transaction.arrivals import Entrance

WINDOW = 100
ACTIVE_MAX = 2 * WINDOW
FAILED_MAX = 10_000
OUTBOUND_MAX = 100_000
PROBE_WINDOW = 1
LOOK_SECONDS = 0.5
# The total of all outbound rows changes slowly, and counting it costs more.
TOTAL_SECONDS = 5.0

logger = logging.getLogger(__name__)


class BackPressure:
    """The windows of one receiver. ``windows`` reads the store at most every half a second.

    ``probing`` has the addresses that are received from for a probe alone. The store must run it, since only its claims
    know of pauses.
    """

    def __init__(
        self,
        session: Session,
        entrances: Sequence[Entrance],
        clock: Clock,
        *,
        window: int = WINDOW,
        outbound_max: int = OUTBOUND_MAX,
    ) -> None:
        self._session = session
        self._entrances = entrances
        self._clock = clock
        self._window = window
        self._outbound_max = outbound_max
        self._looked_at = -math.inf
        self._counted_at = -math.inf
        self._is_full = False
        self.probing: set[str] = set()
        self._stopped: set[str] = set()
        self._windows: dict[str, int] = {}

    def windows(self, *, takes_publications: bool) -> dict[str, int]:
        """Return the window of each address to receive from. Raises ``StoreError``.

        ``takes_publications`` is False while the broker is blocked. Then due outbound rows stop nothing, because a
        broker without memory or disk recovers by delivering.
        """
        now = self._clock.monotonic()
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            self._windows = self._look(takes_publications)
        return self._windows

    @property
    def fullness(self) -> str:
        """The reason why nothing is received from any address that begins work; empty without one."""
        waiting = f"{self._outbound_max:,} outbound messages wait"
        return f"receiving stops: {waiting}. 'stagepost status' shows their destinations" if self._is_full else ""

    def _look(self, takes_publications: bool) -> dict[str, int]:
        stages = [each.stage for each in self._entrances if each.stage is not None]
        fills = self._session.edge.fill(stages, 2 * ACTIVE_MAX, FAILED_MAX)
        paused = {each.stage for each in self._session.circuits.paused()}
        is_backed_up = self._is_over_the_limit() or (takes_publications and self._has_due_outbound(paused))
        empty = {stage for stage in paused.intersection(stages) if not any(fills.get(stage, Fill(0, 0))[:2])}
        self.probing = {each.address for each in self._entrances if each.stage in empty}
        self._stopped = {
            stage
            for stage in stages
            if (stage in paused and stage not in empty) or self._is_full_stage(stage, fills.get(stage, Fill(0, 0)))
        }
        return {
            each.address: PROBE_WINDOW if each.stage in empty else self._window
            for each in self._entrances
            if each.stage not in self._stopped and (each.takes_replies_alone or not is_backed_up)
        }

    def _is_full_stage(self, stage: str, fill: Fill) -> bool:
        """Say whether a stage has enough to do. A stopped one goes on once a window has room again."""
        limit = self._window if stage in self._stopped else 2 * self._window
        return fill.active >= limit or fill.failed >= FAILED_MAX

    def _has_due_outbound(self, paused: set[str]) -> bool:
        """Say whether two windows of outbound rows wait at destinations that take messages."""
        taking = [each for each in self._session.edge.destinations() if each not in paused]
        if not taking:
            return False
        fills = self._session.edge.fill(taking, 2 * self._window, 0)
        return sum(each.active for each in fills.values()) >= 2 * self._window

    def _is_over_the_limit(self) -> bool:
        now = self._clock.monotonic()
        if now - self._counted_at >= TOTAL_SECONDS:
            self._counted_at = now
            was_full, self._is_full = (
                self._is_full,
                self._session.edge.outbound(self._outbound_max) >= self._outbound_max,
            )
            if self._is_full and not was_full:
                logger.warning("%s", self.fullness, extra={"event": "outbound-full"})
        return self._is_full
