"""Wait for an unavailable database, with one log line, and try again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol, TypeVar

from stagepost.flow.errors import StoreContention, StoreError, StoreUnavailable

# A stable event code: ``app.logs`` repeats its line once a minute for each logger and database.
DATABASE_UNAVAILABLE = "database-unavailable"
RETRY_SECONDS = 1.0

T = TypeVar("T")


class StopSignal(Protocol):
    def wait(self, seconds: float) -> bool:
        """Wait. Return False at once if the waiting thread must stop."""


def log_unavailable(logger: logging.Logger, error: Exception, seconds: float) -> None:
    """Log an outage. ``logger`` is the caller's, so that each part of a process reports it."""
    logger.warning("database unavailable, retrying in %g s: %s", seconds, error, extra={"event": DATABASE_UNAVAILABLE})


def retried(
    logger: logging.Logger,
    step: Callable[[], T],
    stop: StopSignal,
    errors: tuple[type[StoreError], ...] = (StoreContention, StoreUnavailable),
) -> T | None:
    """Repeat the step until it raises none of the ``errors``. Return None if the thread must stop first."""
    while True:
        try:
            return step()
        except errors as error:
            log_unavailable(logger, error, RETRY_SECONDS)
            if not stop.wait(RETRY_SECONDS):
                return None
