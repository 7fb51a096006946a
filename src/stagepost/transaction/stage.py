"""A stage as the transaction runs it: its position, its handler and its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from stagepost.flow.target import Position
from stagepost.recovery.pausing import PAUSE_AFTER
from stagepost.recovery.redelivery import Redelivery

Mode = Literal["single", "outbox", "two_phase"]

# A worker claims this many messages ahead, so a larger batch would never fill.
BATCH_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage.

    ``takes_state``         whether the handler is ``(ctx, state, message)``, and not ``(ctx, message)``
    ``time_limit_seconds``  the limit of one attempt, without its waits for the database's write lock
    ``declared_at``         ``file:line``
    ``services``            the types of the handler's services, by the names of its parameters
    ``mode``                None for the default mode of the queue's place: see ``app.modes``
    ``pause_after``         how many messages must fail in a row before the stage pauses; 0 for never
    ``batch``               how many messages may share a transaction; 1 gives each its own
    """

    position: Position
    message_type: type
    handler: Callable[..., Any]
    takes_state: bool
    is_async: bool
    redelivery: Redelivery
    time_limit_seconds: float
    declared_at: str
    services: Mapping[str, Any]
    mode: Mode | None = None
    pause_after: int = PAUSE_AFTER
    batch: int = 1

    @property
    def address(self) -> str:
        return self.position.address
