"""Running a stage's handler, plain or ``async def``, on one message."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from stagepost.flow.codec import decode
from stagepost.flow.context import Context
from stagepost.transaction.stage import Stage

CANCEL_ROUNDS_MAX = 100

logger = logging.getLogger(__name__)


class EventLoop:
    """The thread's own event loop, made when an ``async def`` handler first needs it."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    def run(self, handler: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        # A copy, so that what a run sets is not there for the next one.
        task = self._loop.create_task(self._alone(handler, arguments), context=contextvars.copy_context())
        try:
            return self._loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt):
            # Whichever task raised it, asyncio breaks off the loop, and leaves the handler in the middle.
            self.close()
            raise

    def interrupt(self) -> None:
        """Cancel the handler that runs, from another thread."""
        task = self._task
        if task is not None:
            task.get_loop().call_soon_threadsafe(task.cancel)

    def close(self) -> None:
        """Cancel what is left, and forget the loop. Threads that a handler started in it are not waited for."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        for _ in range(CANCEL_ROUNDS_MAX):
            leftover = asyncio.all_tasks(loop)
            if not leftover:
                break
            for task in leftover:
                task.cancel()
            # What is cancelled may exit in its turn, or never end.
            with suppress(SystemExit, KeyboardInterrupt):
                loop.run_until_complete(asyncio.sleep(0))
        with suppress(SystemExit, KeyboardInterrupt):
            loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    async def _alone(self, handler: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Awaits the handler, then cancels what it started and did not await: nothing of it may reach the next run."""
        self._task = asyncio.current_task()
        try:
            returned = await handler(*arguments)
            if len(asyncio.all_tasks()) > 1:
                logger.warning(
                    "%s returned before %d tasks that it had started, which are cancelled: await what you start",
                    handler.__qualname__,
                    len(asyncio.all_tasks()) - 1,
                    extra={"event": "tasks-cancelled"},
                )
            return returned
        finally:
            own, self._task = self._task, None
            # Again and again, for what is cancelled may start something in its turn, but not for ever.
            for _ in range(CANCEL_ROUNDS_MAX):
                leftover = [task for task in asyncio.all_tasks() if task is not own]
                # Without a loop it is being closed, which cancels all of them.
                if not leftover or self._loop is None:
                    break
                for task in leftover:
                    task.cancel()
                await asyncio.gather(*leftover, return_exceptions=True)


def run_handler(stage: Stage, context: Context, body: bytes, loop: EventLoop) -> None:
    message = decode(body, stage.message_type)
    arguments = (context, context.state, message) if stage.takes_state else (context, message)
    returned = loop.run(stage.handler, arguments) if stage.is_async else stage.handler(*arguments)
    context.finish(returned)
