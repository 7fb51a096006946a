"""Decide what follows from the log of an effect: a call, a question to the outside, a wait, or the known result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stagepost.ports.effects import Intent, LoggedEffect

# How soon a message is tried again whose effect another attempt may still be calling.
OWNER_WAIT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Known:
    """The result is known: it is returned, and nothing is called."""

    effect: int
    result: bytes


@dataclass(frozen=True, slots=True)
class Conflict:
    """The effect was called before with another request, of the digest ``called``."""

    called: str


@dataclass(frozen=True, slots=True)
class CallNow:
    """It is called, under a new intent. ``effect`` is the row, or None for a first call of this ``generation``."""

    effect: int | None
    generation: int
    is_repeat: bool


@dataclass(frozen=True, slots=True)
class AskFirst:
    """The outside is asked whether an earlier call did it. ``until`` is the latest intent in question."""

    effect: int
    generation: int
    until: int


@dataclass(frozen=True, slots=True)
class WaitFirst:
    """An earlier call may still reach the outside. The message comes again after ``seconds``, uncounted."""

    seconds: float
    why: str


@dataclass(frozen=True, slots=True)
class UndoNow:
    """The effect is done, with this result: it is undone."""

    effect: int
    request: bytes
    result: bytes


@dataclass(frozen=True, slots=True)
class Doubt:
    """It may be done, and nothing can undo it: that is reported."""

    effect: int


UndoDecision = UndoNow | Doubt | AskFirst | WaitFirst
CallDecision = Known | Conflict | CallNow | AskFirst | WaitFirst
# Says whether the attempt that wrote an intent has ended.
IsOver = Callable[[Intent], bool]


def decide_call(
    logged: LoggedEffect | None,
    digest: str,
    *,
    can_ask: bool,
    settle_after_seconds: float,
    seconds_since: Callable[[int], float],
    is_over: IsOver,
) -> CallDecision:
    """Decide about a call. ``logged`` is the latest generation, and ``seconds_since`` returns the age of a moment."""
    if logged is None:
        return CallNow(None, 0, is_repeat=False)
    if logged.ending == "undone":
        return CallNow(None, logged.generation + 1, is_repeat=False)
    if logged.digest != digest:
        return Conflict(logged.digest)
    if logged.result is not None:
        return Known(logged.row, logged.result)
    if not logged.unknown:
        return CallNow(logged.row, logged.generation, is_repeat=False)
    return _about_unknown(logged, can_ask, settle_after_seconds, seconds_since, is_over) or CallNow(
        logged.row, logged.generation, is_repeat=True
    )


def decide_undo(
    logged: LoggedEffect,
    *,
    can_ask: bool,
    can_undo: bool,
    settle_after_seconds: float,
    seconds_since: Callable[[int], float],
    is_over: IsOver,
) -> UndoDecision | None:
    """Decide about an effect that no commit kept. Returns None if there is nothing to undo."""
    if not logged.is_open:
        return None
    if logged.result is None:
        decision = _about_unknown(logged, can_ask, settle_after_seconds, seconds_since, is_over)
        return decision or Doubt(logged.row)
    return UndoNow(logged.row, logged.request, logged.result) if can_undo else Doubt(logged.row)


def _about_unknown(
    logged: LoggedEffect,
    can_ask: bool,
    settle_after_seconds: float,
    seconds_since: Callable[[int], float],
    is_over: IsOver,
) -> AskFirst | WaitFirst | None:
    """Decide about an effect whose calls have no result. Return None where nothing can be waited or asked for."""
    latest = logged.unknown[-1]
    what = f"the effect {logged.id.name}, which {latest.node} called"
    if not is_over(latest):
        return WaitFirst(OWNER_WAIT_SECONDS, f"{what}, may still be under way")
    if not can_ask:
        return None
    left = settle_after_seconds - seconds_since(latest.at)
    if left > 0:
        return WaitFirst(left, f"{what} {settle_after_seconds - left:.1f} s ago, has no result yet")
    return AskFirst(logged.row, logged.generation, latest.row)
