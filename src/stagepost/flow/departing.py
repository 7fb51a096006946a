"""The calls of a handler that hands its message to a system outside, where no transaction reaches.

The gateway's delivery uses them. They are no part of a user's ``Context``.
"""

from __future__ import annotations

from typing import Any, NoReturn

from stagepost.flow.context import Context
from stagepost.flow.errors import Refuse
from stagepost.flow.target import Target


def depart(context: Context) -> int | None:
    """Note on the disk that the message may leave the store from now on. Call it before any use of the database.

    Return when it may have left before, if the end of that departure is not known (microseconds), else None.
    Raises ``LeaseLost``, ``StoreError`` and ``IllegalCall``.
    """
    return context._unit_of_work.depart()  # noqa: SLF001 - a context shows its handler no internals


def end_departure(context: Context) -> None:
    """Forget the departure when the attempt ends: it is known whether the message was taken."""
    context._unit_of_work.end_departure()  # noqa: SLF001 - see above


def note(context: Context, detail: str) -> None:
    """Write a text into the journal's line of this attempt, if it succeeds."""
    context._result.detail = detail  # noqa: SLF001 - see above


def refuse(context: Context, error: Refuse, report_to: Target[Any, Any] | None, report: Any) -> NoReturn:
    """Dead-letter the message at once, as ``ctx.refuse`` does, and send the report in the same commit."""
    result = context._result  # noqa: SLF001 - see above
    if report_to is not None:
        context.send(report_to, report)
        result.report = result.outgoing.pop()
    result.refusal = error
    raise error
