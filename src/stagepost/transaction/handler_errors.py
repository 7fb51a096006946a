"""Prepare a handler's error for its journal line and dead letter."""

from __future__ import annotations

import traceback

from stagepost.flow.errors import TimeLimitExceeded
from stagepost.transaction.stage import Stage


def with_limit(error: BaseException, stage: Stage) -> BaseException:
    """Add the stage's limit to a ``TimeLimitExceeded``, which the watchdog raises without a text."""
    if not isinstance(error, TimeLimitExceeded):
        return error
    if error.args != TimeLimitExceeded().args:
        return error
    named = TimeLimitExceeded(f"the attempt took longer than the time_limit of {stage.time_limit_seconds:g} s")
    return named.with_traceback(error.__traceback__)


def clear_frames(error: BaseException) -> None:
    """Clear the frames of a traceback.

    A handler's variable may hold a connection that it closed. While the error exists, that variable would keep the
    transaction open and the database locked.
    """
    chain: list[BaseException | None] = [error]
    seen: set[int] = set()
    while chain:
        each = chain.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            traceback.clear_frames(each.__traceback__)
            chain += [each.__cause__, each.__context__]
