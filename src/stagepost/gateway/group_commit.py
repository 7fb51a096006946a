"""Let concurrent requests share a commit: while one group commits, the next one gathers.

A group that is refused is written one message at a time, so that one bad message fails alone. An unknown commit is
unknown to the whole group.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from stagepost.flow.errors import CommitUnknown, StoreContention, StoreError, StoreRefused
from stagepost.flow.initiation import Acceptance, Verdict
from stagepost.gateway.problems import Problem
from stagepost.gateway.steps import GatewayListener, GatewayStep
from stagepost.runtime.service import Service

# A thread that has nothing to write ends. The next request starts another one.
IDLE_SECONDS = 10.0

Outcome = Verdict | Exception
Write = Callable[[Sequence[Acceptance]], Sequence[Verdict]]


@dataclass(slots=True, eq=False)
class _Request:
    acceptances: Sequence[Acceptance]
    outcomes: asyncio.Future[list[Outcome]]


class GroupCommit:
    """Writes the acceptances of concurrent requests, one group at a time, in a thread of its own.

    ``write`` commits acceptances together, and returns a verdict for each. ``group_max`` is the number of messages
    that a group has at most, unless one request alone has more.
    """

    def __init__(self, write: Write, listener: GatewayListener, group_max: int) -> None:
        self._write = write
        self._listener = listener
        self._group_max = group_max
        # The lock covers all of the following. The thread takes a request from the waiting ones as its write begins.
        self._changed = threading.Condition()
        self._waiting: deque[_Request] = deque()
        self._service: Service | None = None

    async def write(self, acceptances: Sequence[Acceptance], deadline: float) -> list[Outcome]:
        """Return the outcome of each acceptance once its commit has ended. ``deadline`` is in the loop's time.

        Raises ``Problem``: ``deadline-passed`` before the commit has begun, ``outcome-unknown`` after that.
        """
        request = _Request(acceptances, asyncio.get_running_loop().create_future())
        self._add(request)
        try:
            async with asyncio.timeout_at(deadline):
                return await request.outcomes
        except TimeoutError:
            if self._withdraw(request):
                raise Problem("deadline-passed", "the commit did not begin before the request's deadline") from None
            raise Problem("outcome-unknown", "the commit did not end before the request's deadline") from None
        except asyncio.CancelledError:
            self._withdraw(request)
            raise

    def _add(self, request: _Request) -> None:
        with self._changed:
            self._waiting.append(request)
            # A forked child has no thread.
            if self._service is None or not self._service.is_alive:
                self._service = Service("gateway-commits", self._write_groups, logs_error=True)
                self._service.start()
            self._changed.notify()

    def _withdraw(self, request: _Request) -> bool:
        """Write a request no more. Return False if its write has begun."""
        with self._changed:
            if request not in self._waiting:
                return False
            self._waiting.remove(request)
            return True

    def _write_groups(self) -> None:
        while group := self._next_group():
            acceptances = [each for request in group for each in request.acceptances]
            try:
                outcomes = self._write_group(acceptances)
            except Exception as error:  # noqa: BLE001 - each request of the group answers with it
                outcomes = [error] * len(acceptances)
            # A loop that has ended has no requests any more.
            with suppress(RuntimeError):
                group[0].outcomes.get_loop().call_soon_threadsafe(_answer, group, outcomes)

    def _next_group(self) -> list[_Request]:
        """Wait for requests, and return those of the next group. Returns none where no request comes for long."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._waiting, IDLE_SECONDS):
                self._service = None
                return []
            group = [self._waiting.popleft()]
            size = len(group[0].acceptances)
            while self._waiting and size + len(self._waiting[0].acceptances) <= self._group_max:
                group.append(self._waiting.popleft())
                size += len(group[-1].acceptances)
            return group

    def _write_group(self, acceptances: Sequence[Acceptance]) -> list[Outcome]:
        keys = [each.key for each in acceptances]
        self._listener(GatewayStep.COMMITTING, keys)
        try:
            outcomes: list[Outcome] = list(self._write(acceptances))
        except (StoreContention, StoreRefused) as error:
            if len(acceptances) == 1:
                return [error]
            outcomes = self._write_singly(acceptances)
        except StoreError as error:
            return [error] * len(acceptances)
        self._listener(GatewayStep.COMMITTED, keys)
        return outcomes

    def _write_singly(self, acceptances: Sequence[Acceptance]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for each in acceptances:
            try:
                outcomes += self._write([each])
            except (StoreContention, StoreRefused, CommitUnknown) as error:
                outcomes.append(error)
            except StoreError as error:
                # The store is away. The others would each wait for it.
                return outcomes + [error] * (len(acceptances) - len(outcomes))
        return outcomes


def _answer(group: Sequence[_Request], outcomes: Sequence[Outcome]) -> None:
    """Let the requests of a group go on, in their event loop."""
    start = 0
    for request in group:
        end = start + len(request.acceptances)
        if not request.outcomes.done():
            request.outcomes.set_result(list(outcomes[start:end]))
        start = end
