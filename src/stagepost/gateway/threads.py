"""Blocking calls of an event loop, in a few threads of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread

T = TypeVar("T")


class Threads:
    """Runs calls in at most ``most`` threads at a time; further calls wait.

    Calls that hang take no thread of another purpose, and none of the web app that mounts the gateway.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._limiter: anyio.CapacityLimiter | None = None

    async def run(self, call: Callable[[], T], *, is_abandoned: bool = True) -> T:
        """Return the result of ``call``. A caller that is cancelled leaves its call behind if it ``is_abandoned``."""
        if self._limiter is None:
            # It belongs to the event loop, which does not run yet when the gateway is made.
            self._limiter = anyio.CapacityLimiter(self._most)
        return await anyio.to_thread.run_sync(call, abandon_on_cancel=is_abandoned, limiter=self._limiter)
