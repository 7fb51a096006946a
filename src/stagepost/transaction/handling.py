"""Running a stage's handler, plain or ``async def``, on one message."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable
from typing import Any

from stagepost.flow.codec import decode
from stagepost.flow.context import Context
from stagepost.transaction.stage import Stage

CANCEL_ROUNDS_MAX = 100

logger = logging.getLogger(__name__)


class EventLoop:
    """The thread's own event loop, made when an ``async def`` handler first needs it."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None
        self._task: asyncio.Task[Any] | None = None

    def run(self, handler: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        if self._runner is None:
            self._runner = asyncio.Runner()
        # The runner would otherwise keep the context variables of its first run for all later ones.
        return self._runner.run(self._alone(handler, arguments), context=contextvars.copy_context())

    def interrupt(self) -> None:
        """Cancel the handler that runs, from another thread."""
        task = self._task
        if task is not None:
            task.get_loop().call_soon_threadsafe(task.cancel)

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()
            self._runner = None

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
                if not leftover:
                    break
                for task in leftover:
                    task.cancel()
                await asyncio.gather(*leftover, return_exceptions=True)


def run_handler(stage: Stage, context: Context, body: bytes, loop: EventLoop) -> None:
    message = decode(body, stage.message_type)
    arguments = (context, context.state, message) if stage.takes_state else (context, message)
    returned = loop.run(stage.handler, arguments) if stage.is_async else stage.handler(*arguments)
    context.finish(returned)
