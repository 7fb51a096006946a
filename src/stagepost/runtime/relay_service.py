"""The thread that moves started flows from the stages' database to the queue's, if these are two."""

from __future__ import annotations

import logging
import math
from contextlib import closing

from stagepost.flow.errors import StoreError
from stagepost.runtime.assembly import relay_of
from stagepost.runtime.engine import Engine
from stagepost.runtime.service import Service
from stagepost.transaction.database_wait import retried

# How soon a commit is seen: the question whether anything was committed is cheap.
TURN_SECONDS = 0.02
# How soon a row is seen that becomes due without a commit, or whose commit the question missed.
POLL_SECONDS = 1.0

logger = logging.getLogger(__name__)


class RelayService(Service):
    """The relay of one process. It may wait for either database. Another relay sends the rows that it leaves leased."""

    def __init__(self, engine: Engine, node: str) -> None:
        super().__init__("relay", self._relay_until_stopped)
        self._engine = engine
        self._node = node

    def _relay_until_stopped(self) -> None:
        retried(logger, self._relay, self, (StoreError,))

    def _relay(self) -> None:
        with closing(self._engine.access()) as access:
            relay = relay_of(self._engine, access, self._node)
            assert relay is not None, "only an app with two databases has this service"
            last = -math.inf
            while self.wait(TURN_SECONDS):
                now = self._engine.clock.monotonic()
                if access.work.queue.changed() or now - last > POLL_SECONDS:
                    last = now
                    relay.turn()
