"""The settings of a stage: those that a user gives, and what they are for one stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypedDict, Unpack

from stagepost.app.guards import Guards, Key, check_guard, check_key
from stagepost.app.retention import hours_of
from stagepost.flow.clock import SECONDS_MAX, is_span
from stagepost.flow.errors import DeclarationError
from stagepost.recovery.pausing import PAUSE_AFTER, check_pause_after
from stagepost.recovery.redelivery import Redelivery, check_redelivery
from stagepost.runtime.modes import check_mode
from stagepost.transaction.stage import BATCH_MAX, Mode

THREADS_MAX = 256


class StageSettings(TypedDict, total=False):
    """The settings of a stage. One that is absent or None is that of its endpoint, or else of its app.

    ``redelivery``   the policy after a failure
    ``time_limit``   the limit of one attempt, in seconds or as a timedelta
    ``mode``         the transaction mode: see docs/transactions.md
    ``pause_after``  the stage pauses after so many messages failed at it in a row; 0 for never
    ``batch``        the number of messages that may share a transaction in mode ``single``, 1 by default: see
                     docs/transactions.md
    ``guard``, ``key``  what recognises a message that was handled before: see docs/guards.md
    ``retention``    how long the ids of its messages are kept, such as ``"30d"``: see docs/retention.md
    """

    redelivery: Redelivery | None
    time_limit: float | timedelta | None
    mode: Mode | None
    pause_after: int | None
    batch: int | None
    guard: Guards | None
    key: Key | None
    retention: str | timedelta | None


@dataclass(frozen=True, slots=True)
class Terms:
    """The checked settings of a stage.

    ``has_scopes``  whether the app has services for handlers
    ``threads``     the number of a stage's own threads in each worker process; None if it shares those of all stages
    ``retention``   the hours for the ids of the stages' messages; None for those of their types, or of the app
    """

    redelivery: Redelivery
    time_limit_seconds: float
    mode: Mode | None = None
    pause_after: int = PAUSE_AFTER
    batch: int = 1
    has_scopes: bool = False
    guard: Guards | None = None
    key: Key | None = None
    threads: int | None = None
    retention: int | None = None

    def overridden(self, **settings: Unpack[StageSettings]) -> Terms:
        """Return the terms with these settings in place of their own. Raises ``DeclarationError``."""
        unknown = settings.keys() - CHECKS.keys()
        if unknown:
            raise TypeError(f"a stage has no setting {min(unknown)!r}; its settings are {', '.join(CHECKS)}")
        checked = {}
        for name, value in settings.items():
            if value is not None:
                field, check = CHECKS[name]
                checked[field] = check(value)
        return replace(self, **checked)

    def with_threads(self, threads: int | None) -> Terms:
        """Return the settings of a stage with threads of its own. Raises ``DeclarationError``."""
        if threads is not None and (isinstance(threads, bool) or not 1 <= threads <= THREADS_MAX):
            raise DeclarationError(
                f"threads must be a whole number from 1 to {THREADS_MAX}, how many threads of each worker process run "
                f"this endpoint alone, not {threads!r}"
            )
        return replace(self, threads=threads)


def check_time_limit(value: float | timedelta) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not is_span(seconds) or not seconds:
        raise DeclarationError(
            f"time_limit must be a number of seconds above 0, at most {SECONDS_MAX:.0f}, or a timedelta, not {value!r}"
        )
    return float(seconds)


def check_batch(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= BATCH_MAX:
        raise DeclarationError(
            f"batch must be a whole number from 1 to {BATCH_MAX}, how many messages may share a transaction, not "
            f"{value!r}"
        )
    return value


# The field of each setting in ``Terms``, and the check that returns its value.
CHECKS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "redelivery": ("redelivery", check_redelivery),
    "time_limit": ("time_limit_seconds", check_time_limit),
    "mode": ("mode", check_mode),
    "pause_after": ("pause_after", check_pause_after),
    "batch": ("batch", check_batch),
    "guard": ("guard", check_guard),
    "key": ("key", check_key),
    "retention": ("retention", lambda value: hours_of("retention", value)),
}
