"""Say when a run that drains is over at the edge of a store."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal

from stagepost.flow.clock import Clock
from stagepost.flow.errors import StoreError
from stagepost.ports.circuits import GIVEN_UP_PROBES
from stagepost.runtime.access import Access
from stagepost.runtime.direct import QUIET_SECONDS
from stagepost.runtime.edge_services import DispatcherService, ReceiverService
from stagepost.transaction.database_wait import log_unavailable

# A run that drains gives up a broker that is away, or takes no publications, for so long.
AWAY_SECONDS = 30.0
# How soon the caller asks again.
TURN_SECONDS = 0.25

# ``stalled``: only what waits for a broker, or for a paused destination, is left.
Verdict = Literal["drained", "stalled"]

logger = logging.getLogger(__name__)


class EdgeDrain:
    """First nothing arrives any more, and the receiver ends. Then the stages drain, and the last outbound row leaves.

    ``stages``  the addresses of the app's stages
    """

    def __init__(
        self, receiver: ReceiverService, dispatcher: DispatcherService, stages: Sequence[str], clock: Clock
    ) -> None:
        self._receiver = receiver
        self._dispatcher = dispatcher
        self._stages = list(stages)
        self._clock = clock
        # When the broker was last there.
        self._seen_at = clock.monotonic()

    def verdict(self, access: Access) -> Verdict | None:
        """Return how a run is over, or None while it goes on."""
        now = self._clock.monotonic()
        if self._is_broker_there():
            self._seen_at = now
        is_given_up = now - self._seen_at > AWAY_SECONDS
        if self._receiver.is_alive:
            quiet_since = self._receiver.quiet_since
            if quiet_since is not None and now - quiet_since > QUIET_SECONDS:
                self._receiver.stop()
            return "stalled" if is_given_up else None
        try:
            return self._verdict_on_rest(access, is_given_up=is_given_up)
        except StoreError as error:
            log_unavailable(logger, error, TURN_SECONDS)
            return None

    def _is_broker_there(self) -> bool:
        if self._receiver.is_alive:
            return self._receiver.quiet_since is not None
        return self._dispatcher.is_connected and not self._dispatcher.is_blocked

    def _verdict_on_rest(self, access: Access, *, is_given_up: bool) -> Verdict | None:
        pending = access.claimer.pending(self._stages)
        if pending.stalled_probes is None and not pending.is_drained:
            return None
        edge = access.session.edge
        if edge.outbound(1) == 0:
            return "drained"
        given_up = {
            each.stage
            for each in access.session.circuits.paused()
            if each.pause is not None and each.pause.probes >= GIVEN_UP_PROBES
        }
        destinations = edge.destinations()
        return "stalled" if is_given_up or (destinations and given_up.issuperset(destinations)) else None
