"""The thread that moves started flows from the stages' database to the queue's, where these are two."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from stagepost.app.app import App
from stagepost.app.running import relay_of
from stagepost.flow.errors import StoreError
from stagepost.runtime.service import Service
from stagepost.transaction.database_wait import retried
from stagepost.transaction.relay import Relay

# How soon a commit is seen: asking whether anything was committed costs next to nothing.
TURN_SECONDS = 0.02
# How late it is seen if that question was answered wrongly, or a row becomes due that no commit announces.
POLL_SECONDS = 1.0

logger = logging.getLogger(__name__)


class RelayService(Service):
    """It may wait for either database. Rows that it has leased and not sent when it stops are sent again."""

    def __init__(self, app: App, node: str) -> None:
        super().__init__("relay", self._relay_until_stopped)
        self._app = app
        self._node = node

    def _relay_until_stopped(self) -> None:
        retried(logger, self._relay, self, (StoreError,))

    def _relay(self) -> None:
        access = self._app.access()
        try:
            relay = relay_of(self._app, access, self._node)
            if relay is not None:
                self._keep_relaying(relay, access.work.queue.changed)
        finally:
            access.close()

    def _keep_relaying(self, relay: Relay, changed: Callable[[], bool]) -> None:
        last = -math.inf
        while self.wait(TURN_SECONDS):
            now = self._app.clock.monotonic()
            if changed() or now - last > POLL_SECONDS:
                last = now
                relay.turn()
