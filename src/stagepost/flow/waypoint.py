"""One line of a message's history."""

from __future__ import annotations

from typing import Literal

import msgspec

WaypointName = Literal[
    "accepted",
    "received",
    "returned",
    "duplicate",
    "committed",
    "sent",
    "failed",
    "died",
    "delayed",
    "dead",
    "replayed",
    "edited",
    "expired",
]


class Waypoint(msgspec.Struct, frozen=True):
    """
    ``stage``       the stage whose message this is; for ``sent`` and ``accepted`` the stage it goes to
    ``cause_id``    the message whose handling sent this one
    ``kind``, ``ordinal``  of a ``sent``: which of the sends of one handler run it was
    ``origin_at``   when the flow was accepted: audits count by it, so that all hops of a flow fall into one window
    ``ms``          of ``committed`` and ``failed``: how long the handler ran
    ``bytes``       size of the envelope
    ``detail``      of a ``sent``: the stage that sent it; else free text: an error, a reason, who did it
    """

    waypoint: WaypointName
    at: int
    node: str
    stage: str
    message_id: str
    flow_id: str
    attempt: int
    origin_at: int
    cause_id: str | None = None
    kind: str | None = None
    ordinal: int | None = None
    ms: float | None = None
    bytes: int | None = None
    detail: str | None = None
