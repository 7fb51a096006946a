"""The monitor of attempts, which an ``AttemptRunner`` needs besides a store."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from stagepost.flow.claim import Claim


class AttemptMonitor(Protocol):
    """Keeps a record of the running message, in case this process dies, and enforces the time limit."""

    def started(self, claim: Claim, time_limit_seconds: float) -> None:
        """Record the message as running."""

    def ended(self, *, is_settled: bool) -> None:
        """Remove the record. ``is_settled`` says that the claim no longer belongs to this process."""

    def handling(self, interrupt: Callable[[], None] | None) -> AbstractContextManager[None]:
        """Return the context manager in which a handler runs.

        The time limit raises ``TimeLimitExceeded`` at any line of the handler, or calls ``interrupt``.
        """

    def handled(self) -> None:
        """End the time limit after ``handling``, even if the exception interrupted the exit of ``handling``."""

    def limited(self, seconds: float) -> AbstractContextManager[None]:
        """Return a context manager, for use inside ``handling``, whose block may take ``seconds`` at most."""

    def waiting(self) -> AbstractContextManager[None]:
        """Return a context manager, for use inside ``handling``, that suspends the time limit."""
