"""Read the store for producers and operators: a message's status, and how much waits on each route."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from stagepost.flow.clock import SECOND
from stagepost.flow.errors import CapabilityMissing, StoreError
from stagepost.gateway.acceptor import problem_of
from stagepost.gateway.problems import Problem
from stagepost.gateway.threads import Threads
from stagepost.observe.trace import TracedMessage
from stagepost.ports.edge import Fill
from stagepost.ports.journal import Waypoint
from stagepost.ports.session import Session
from stagepost.runtime.engine import Engine
from stagepost.runtime.pool import Pool

T = TypeVar("T")

SESSIONS_MAX = 2
# A look-up reads no more lines of a message, so that its cost is bounded.
LINES_MAX = 1_000
# Waiting messages are counted up to this number at least.
COUNT_MAX = 10_000
# A count is good for this time.
FRESH_SECONDS = 2.0
READY_SECONDS = 5.0


class Lookups:
    """Reads the store in threads. ``stages`` has the stage of each route.

    Waiting messages are counted up to ``count_max``.
    """

    def __init__(self, engine: Engine, stages: Mapping[str, str], count_max: int) -> None:
        self._engine = engine
        self._stages = stages
        self._most = count_max
        self.pool: Pool[Session] = Pool(lambda: engine.store.session(is_pinned=False), engine.clock, SESSIONS_MAX)
        self._threads = Threads(SESSIONS_MAX)
        self._fills: dict[str, Fill] = {}
        self._filled_at = float("-inf")
        self._filling: asyncio.Lock | None = None

    async def history(self, message_id: str, deadline: float) -> TracedMessage | None:
        """Return the latest lines of a message in the journal; None where it has none. Raises ``Problem``."""
        lines = await self._read(lambda session: session.journal.history(message_id, LINES_MAX), deadline)
        if not lines:
            return None
        return TracedMessage(message_id, lines[0].stage, lines[0].cause_id, lines[0].kind, lines)

    async def waiting(self, stage: str, deadline: float) -> int:
        """Return how many messages of a stage wait or run, from a count of the last two seconds. Raises ``Problem``."""
        fill = (await self.fills(deadline)).get(stage, Fill(0, 0))
        return fill.active + fill.failed

    async def fills(self, deadline: float) -> dict[str, Fill]:
        """Return the counts of the routes' stages. Concurrent callers share one count. Raises ``Problem``."""
        if self._filling is None:
            self._filling = asyncio.Lock()
        async with self._filling:
            now = asyncio.get_running_loop().time()
            if now - self._filled_at > FRESH_SECONDS:
                self._fills = await self._read(self._fill, deadline)
                self._filled_at = now
            return self._fills

    async def readiness(self) -> tuple[bool, dict[str, Any]]:
        """Say whether the store answers, with the depth and the age of each route."""
        deadline = asyncio.get_running_loop().time() + READY_SECONDS
        try:
            fills = await self.fills(deadline)
        except Problem as problem:
            return False, {"status": "unready", "code": problem.code, "detail": problem.detail}
        now = self._engine.clock.now()
        routes = {
            route: {
                "waiting": fill.active + fill.failed,
                "oldest_seconds": None if fill.oldest_at is None else max(0, now - fill.oldest_at) // SECOND,
            }
            for route, fill in ((name, fills.get(stage, Fill(0, 0))) for name, stage in self._stages.items())
        }
        return True, {"status": "ready", "routes": routes}

    def _fill(self, session: Session) -> dict[str, Fill]:
        try:
            return session.edge.fill(sorted(set(self._stages.values())), self._most, self._most)
        except CapabilityMissing:
            return {}

    async def _read(self, read: Callable[[Session], T], deadline: float) -> T:
        def run() -> T:
            with self.pool.taken() as session:
                return read(session)

        try:
            async with asyncio.timeout_at(deadline):
                return await self._threads.run(run)
        except TimeoutError:
            raise Problem("store-busy", "the store did not answer in time") from None
        except StoreError as error:
            raise problem_of(error) from error


def status_document(theirs: str, message_id: str, found: TracedMessage | None) -> dict[str, Any]:
    """Return the producer's view of its message. Errors of the consumer are the operator's, and are left out.

    A line ``dead`` has its ``reason``: a producer must not take ``maybe-delivered`` for a refusal.
    """
    lines = [] if found is None else found.waypoints
    return {
        "id": theirs,
        "message_id": message_id,
        "status": "accepted" if found is None else found.standing,
        "received": sum(each.waypoint == "received" for each in lines),
        "waypoints": [_line(each) for each in lines],
    }


def _line(waypoint: Waypoint) -> dict[str, Any]:
    line = {"waypoint": waypoint.waypoint, "at": _time_text(waypoint.at), "attempt": waypoint.attempt}
    if waypoint.waypoint == "dead":
        # The word after the reason is the fingerprint of the error.
        line["reason"] = (waypoint.detail or "").partition(" ")[0]
    return line


def _time_text(moment: int) -> str:
    return datetime.fromtimestamp(moment / SECOND, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
