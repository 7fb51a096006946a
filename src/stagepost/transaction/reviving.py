"""What all have in common that bring a dead letter's message back."""

from __future__ import annotations

from stagepost.flow.waypoint import Waypoint, WaypointName
from stagepost.recovery.deadletter import DeadLetter


def deaths_kept(letter: DeadLetter) -> int:
    """What killed its process before may do so again: it stays a suspect, and runs alone."""
    return 1 if letter.deaths else 0


def waypoint_of(letter: DeadLetter, name: WaypointName, now: int, node: str, detail: str) -> Waypoint:
    return Waypoint(
        name,
        now,
        node,
        letter.stage,
        letter.message_id,
        letter.flow_id,
        letter.failures + letter.deaths,
        letter.origin_at,
        detail=detail,
    )
