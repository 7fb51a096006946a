"""Say whether the owner of a claim still lives, for an attempt that follows another one."""

from __future__ import annotations

import threading
from collections.abc import Callable

from stagepost.flow.errors import DeclarationError
from stagepost.liveness.detector import FailureDetector


class Owners:
    """The incarnations of an app, looked at when an attempt asks for one. Any thread may ask.

    ``detector`` makes the failure detector. It raises ``DeclarationError`` for a store of a single process.
    """

    def __init__(self, detector: Callable[[], FailureDetector]) -> None:
        self._make_detector = detector
        self._detector: FailureDetector | None = None
        self._lock = threading.Lock()

    def is_alive(self, owner: str) -> bool:
        """Say whether the process of an owner lives, and is not paused. Raises ``StoreError``."""
        with self._lock:
            if self._detector is None:
                try:
                    self._detector = self._make_detector()
                except DeclarationError:
                    # A store of one process has no other process.
                    return False
            try:
                return any(each.record.owner == owner and each.state == "alive" for each in self._detector.look())
            finally:
                # Attempts ask seldom. The detector keeps the heartbeats, and opens its connections again.
                self._detector.close()
