"""Let concurrent requests share a commit: while one group commits, the next one gathers.

A group that is refused is written one message at a time, so that one bad message fails alone. An unknown commit is
unknown to the whole group.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from stagepost.flow.errors import CommitUnknown, StoreContention, StoreError, StoreRefused
from stagepost.flow.initiation import Acceptance, Verdict
from stagepost.gateway.problems import Problem
from stagepost.gateway.steps import GatewayListener, GatewayStep
from stagepost.gateway.threads import Threads

Outcome = Verdict | Exception
Write = Callable[[Sequence[Acceptance]], Sequence[Verdict]]


@dataclass(slots=True)
class _Request:
    acceptances: Sequence[Acceptance]
    outcomes: asyncio.Future[list[Outcome]]
    has_begun: bool = False


class GroupCommit:
    """Writes the acceptances of concurrent requests of one event loop, one group at a time, in a thread.

    ``write`` commits acceptances together, and returns a verdict for each. ``group_max`` is the number of messages
    that a group has at most, unless one request alone has more.
    """

    def __init__(self, write: Write, listener: GatewayListener, group_max: int) -> None:
        self._write = write
        self._listener = listener
        self._group_max = group_max
        self._threads = Threads(1)
        self._waiting: deque[_Request] = deque()
        self._writing: asyncio.Task[None] | None = None

    async def write(self, acceptances: Sequence[Acceptance], deadline: float) -> list[Outcome]:
        """Return the outcome of each acceptance once its commit has ended. ``deadline`` is in the loop's time.

        Raises ``Problem``: ``deadline-passed`` before the commit has begun, ``outcome-unknown`` after that.
        """
        loop = asyncio.get_running_loop()
        request = _Request(acceptances, loop.create_future())
        self._waiting.append(request)
        if self._writing is None or self._writing.done():
            self._writing = loop.create_task(self._write_groups())
        try:
            async with asyncio.timeout_at(deadline):
                return await request.outcomes
        except TimeoutError:
            if request.has_begun:
                raise Problem("outcome-unknown", "the commit did not end before the request's deadline") from None
            raise Problem("deadline-passed", "the commit did not begin before the request's deadline") from None

    async def _write_groups(self) -> None:
        while group := self._next_group():
            acceptances = [each for request in group for each in request.acceptances]
            try:
                outcomes = await self._threads.run(partial(self._write_group, acceptances), is_abandoned=False)
            except Exception as error:  # noqa: BLE001 - each request of the group answers with it
                outcomes = [error] * len(acceptances)
            start = 0
            for request in group:
                end = start + len(request.acceptances)
                if not request.outcomes.done():
                    request.outcomes.set_result(outcomes[start:end])
                start = end

    def _next_group(self) -> list[_Request]:
        """Return the requests of the next group. A request that no longer waits is dropped."""
        group: list[_Request] = []
        size = 0
        while self._waiting:
            request = self._waiting[0]
            if group and size + len(request.acceptances) > self._group_max:
                break
            self._waiting.popleft()
            if not request.outcomes.done():
                request.has_begun = True
                group.append(request)
                size += len(request.acceptances)
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
