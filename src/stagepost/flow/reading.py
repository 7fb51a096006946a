"""What a store tells those who only look: ``observe``, the command line, the audit's second look."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Depth:
    """How many messages of one stage wait, run, or were set aside. ``oldest_at``: when the oldest waiting flow
    began."""

    stage: str
    ready: int
    claimed: int
    delayed: int
    suspect: int
    dead: int
    oldest_at: int | None
