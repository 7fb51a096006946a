"""Effects: calls to something outside that cannot join the transaction of a stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from stagepost.flow import ids

Q = TypeVar("Q")
A = TypeVar("A")

# It cannot be in a declared name, so no declared effect has the name of an undo.
UNDO_SUFFIX = "/undo"


class EffectId(NamedTuple):
    """An effect's place: the ``ordinal``-th call of ``name`` by a handler, on one message of an envelope.

    ``handler`` is the name of a handler that was added to the stage's own, and empty for its own.
    """

    message_id: str
    stage: str
    message_index: int
    handler: str
    name: str
    ordinal: int

    def key(self, generation: int) -> str:
        """Return the ``Idempotency-Key`` for the outside: the same in each attempt, and another after an undo."""
        name = f"{self.name}{ids.SEPARATOR}{generation}"
        place = self.message_id, self.stage, self.message_index, "effect", name, self.ordinal
        return ids.derived(*place, self.handler or None)


class UndoOrder(msgspec.Struct, frozen=True):
    """The message to the stage that undoes an effect, because no commit kept it."""

    effect: EffectId
    generation: int


class UndoRequest(msgspec.Struct, frozen=True):
    """The request of an undo, which is an effect itself: the encoded request and result of the call to undo."""

    request: bytes
    result: bytes


class OutsideFunction(NamedTuple):
    """A user's function that calls, asks or undoes. ``takes`` are those of ``key`` and ``timeout`` that it takes."""

    function: Callable[..., Any]
    takes: frozenset[str]

    def __call__(self, *arguments: Any, key: str, timeout: float) -> Any:
        offered = {"key": key, "timeout": timeout}
        return self.function(*arguments, **{name: offered[name] for name in self.takes})


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Effect(Generic[Q, A]):
    """A declared effect: ``app.effect(…)`` makes it, and ``ctx.effect`` calls it.

    ``result_type``   None for a call that returns nothing
    ``query``         finds the result of an earlier call; None where the outside cannot be asked
    ``undo``          undoes a call with that result; None where it cannot be undone
    ``timeout_seconds``       the limit of one call
    ``settle_after_seconds``  the silence after a call, before the outside is asked about it
    ``undo_at``       the address of the stage that undoes it
    ``declared_at``   ``file:line``
    """

    name: str
    request_type: type
    result_type: type | None
    call: OutsideFunction
    query: OutsideFunction | None
    undo: OutsideFunction | None
    timeout_seconds: float
    settle_after_seconds: float
    undo_at: str
    declared_at: str

    def __repr__(self) -> str:
        return f"<Effect {self.name}>"
