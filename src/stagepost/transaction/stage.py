"""A stage as the transaction runs it: its place, its handler, and the terms it runs on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from stagepost.flow.target import Position
from stagepost.recovery.pausing import PAUSE_AFTER
from stagepost.recovery.redelivery import Redelivery

Mode = Literal["single", "outbox", "two_phase"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """
    ``takes_state``         the handler is ``(ctx, state, message)``, else ``(ctx, message)``
    ``time_limit_seconds``  one attempt's; not counting the time it waits for the database to let it write
    ``declared_at``         ``file:line``
    ``demarcation``         None for what suits where the queue is: see ``app.modes``
    ``pause_after``         how many messages fail one after the other before it pauses; 0 for never
    ``batch``               how many messages may share a transaction; 1 for each its own
    """

    position: Position
    message_type: type
    handler: Callable[..., Any]
    takes_state: bool
    is_async: bool
    redelivery: Redelivery
    time_limit_seconds: float
    declared_at: str
    demarcation: Mode | None = None
    pause_after: int = PAUSE_AFTER
    batch: int = 1

    @property
    def address(self) -> str:
        return self.position.address
