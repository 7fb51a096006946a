"""Opening the database by those who have time: one that is away comes back."""

from __future__ import annotations

import logging
import threading

from stagepost.app.app import App
from stagepost.app.stores import Access
from stagepost.flow.errors import StoreError

PAUSE_SECONDS = 0.25

logger = logging.getLogger(__name__)


def patient_access(app: App, stop: threading.Event) -> Access | None:
    """None where ``stop`` is set before the database can be opened."""
    while not stop.is_set():
        try:
            return app.access()
        except StoreError as error:
            logger.warning("waiting for the database: %s", error, extra={"event": "database-unavailable"})
            stop.wait(PAUSE_SECONDS)
    return None
