"""The thread that keeps relaying what is started in the stages' database to the queue's, where they are two."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable

from stagepost.app.app import App
from stagepost.app.running import relay_of
from stagepost.flow.errors import StoreError
from stagepost.transaction.relay import Relay

# How soon what was committed is seen; asking whether anything was costs next to nothing.
TURN_SECONDS = 0.02
# And how late, where the question was answered wrongly, or something is due that nobody commits.
POLL_SECONDS = 1.0
RETRY_SECONDS = 1.0

logger = logging.getLogger(__name__)


class Relaying:
    """``error`` is what ended it, if it did not end by being told to. It may wait for either database."""

    def __init__(self, app: App, node: str) -> None:
        self._app = app
        self._node = node
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self.error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self, seconds: float) -> bool:
        """What it has leased and not sent comes again. False where it takes longer."""
        self._stop.set()
        self._thread.join(max(seconds, 0))
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    self._relay()
                except StoreError as error:
                    logger.warning("waiting to relay: %s", error, extra={"event": "database-unavailable"})
                    self._stop.wait(RETRY_SECONDS)
        except BaseException as error:  # noqa: BLE001 - the process sees it, and ends
            self.error = error

    def _relay(self) -> None:
        access = self._app.access()
        try:
            relay = relay_of(self._app, access, self._node)
            if relay is None:
                self._stop.wait()
                return
            self._keep_relaying(relay, access.work.queue.changed)
        finally:
            access.close()

    def _keep_relaying(self, relay: Relay, changed: Callable[[], bool]) -> None:
        last = -math.inf
        while not self._stop.wait(TURN_SECONDS):
            now = self._app.clock.monotonic()
            if changed() or now - last > POLL_SECONDS:
                last = now
                relay.turn()
