"""The thread that moves started flows on: from the stages' database to the queue's, and from ``Store.apart``."""

from __future__ import annotations

import logging
import math
from contextlib import closing

from stagepost.flow.errors import StoreError
from stagepost.runtime.assembly import has_outbox_apart, independent_relay_of, relay_of
from stagepost.runtime.engine import Engine
from stagepost.runtime.service import Service
from stagepost.transaction.database_wait import retried

# How soon a commit is seen: the question whether anything was committed is cheap.
TURN_SECONDS = 0.02
# How soon a row is seen that becomes due without a commit, or whose commit the question missed.
POLL_SECONDS = 1.0

logger = logging.getLogger(__name__)


def needs_relay(engine: Engine) -> bool:
    """Say whether started flows of an app may wait to be moved on."""
    return engine.databases.queue is not None or has_outbox_apart(engine)


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
            independent = independent_relay_of(self._engine, access, self._node)
            is_numbered = False
            last = -math.inf
            while self.wait(TURN_SECONDS):
                if not is_numbered and access.apart() is not None:
                    # A stage may have made the second file. It could not let the first one name it.
                    self._engine.databases.renumber()
                    is_numbered = True
                independent.turn()
                now = self._engine.clock.monotonic()
                if relay is not None and (access.work.queue.changed() or now - last > POLL_SECONDS):
                    last = now
                    relay.turn()
