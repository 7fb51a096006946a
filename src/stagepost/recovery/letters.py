"""Dead letters as they are kept, chosen and grouped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stagepost.recovery.deadletter import DeadLetter


@dataclass(frozen=True, slots=True)
class KeptLetter:
    """``id`` is what the commands name it by."""

    id: int
    letter: DeadLetter


@dataclass(frozen=True, slots=True)
class LetterGroup:
    """Dead letters of one kind of failure at one place; ``latest_id`` is a sample."""

    fingerprint: str
    stage: str
    reason: str
    count: int
    first_at: int
    last_at: int
    latest_id: int


@dataclass(frozen=True, slots=True)
class Selection:
    """Which dead letters: all, or those whose id, message, flow or group is ``value``."""

    by: Literal["all", "id", "message", "flow", "group"]
    value: str | int | None = None

    def __str__(self) -> str:
        return self.by if self.value is None else f"{self.by} {self.value}"
