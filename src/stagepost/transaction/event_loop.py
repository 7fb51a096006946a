"""The event loop of one thread, for ``async def`` handlers."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

CANCEL_ROUNDS_MAX = 100

logger = logging.getLogger(__name__)


class EventLoop:
    """The event loop of a thread, made when an ``async def`` handler first needs it."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._is_interrupted = False

    def begin_attempt(self) -> None:
        """Forget the interrupt of an earlier attempt."""
        self._is_interrupted = False

    def run(self, handler: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        # The copy keeps the context variables that a run sets out of the next run.
        task = self._loop.create_task(self._alone(handler, arguments), context=contextvars.copy_context())
        try:
            return self._loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt):
            # asyncio stops the loop whichever task raised this, and leaves the handler unfinished.
            self.close()
            raise

    def interrupt(self) -> None:
        """Cancel the running handler, from another thread; between two handlers of an attempt, cancel the next one."""
        # Before the task is read: the next handler writes its task, and then reads this.
        self._is_interrupted = True
        task = self._task
        if task is not None:
            task.get_loop().call_soon_threadsafe(task.cancel)

    def close(self) -> None:
        """Cancel the tasks that are left, and close the loop. Does not wait for threads that a handler started in
        it."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        for _ in range(CANCEL_ROUNDS_MAX):
            leftover = asyncio.all_tasks(loop)
            if not leftover:
                break
            for task in leftover:
                task.cancel()
            # A cancelled task may raise SystemExit, or never end.
            with suppress(SystemExit, KeyboardInterrupt):
                loop.run_until_complete(asyncio.sleep(0))
        with suppress(SystemExit, KeyboardInterrupt):
            loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    async def _alone(self, handler: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Await the handler, then cancel the tasks that it left, so that none of them runs during the next run."""
        self._task = asyncio.current_task()
        try:
            if self._is_interrupted:
                raise asyncio.CancelledError
            returned = await handler(*arguments)
            if len(asyncio.all_tasks()) > 1:
                logger.warning(
                    "%s returned before %d tasks that it had started; they are cancelled: await every task you start",
                    handler.__qualname__,
                    len(asyncio.all_tasks()) - 1,
                    extra={"event": "tasks-cancelled"},
                )
            return returned
        finally:
            own, self._task = self._task, None
            # A cancelled task may start others, so this repeats, up to a limit.
            for _ in range(CANCEL_ROUNDS_MAX):
                leftover = [task for task in asyncio.all_tasks() if task is not own]
                # Without a loop, ``close`` is running, and it cancels all of them.
                if not leftover or self._loop is None:
                    break
                for task in leftover:
                    task.cancel()
                await asyncio.gather(*leftover, return_exceptions=True)
