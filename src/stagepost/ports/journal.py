"""The journal: the history of every message, append-only, with positions that readers can resume from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, Self

import msgspec

from stagepost.flow.errors import DeclarationError
from stagepost.ports.outbox import Backlog

_POSITION_TEXT = re.compile(r"(?:([0-9a-f-]+):)?([0-9]{1,18})")

WaypointName = Literal[
    "accepted",
    "received",
    "returned",
    "duplicate",
    "committed",
    "sent",
    "failed",
    "refused",
    "died",
    "delayed",
    "dead",
    "replayed",
    "edited",
    "expired",
    "arrived",
    "confirmed",
    "doubted",
]


class Waypoint(msgspec.Struct, frozen=True):
    """One line of a message's history.

    ``stage``       the stage of this message; for ``sent`` and ``accepted`` the stage it goes to
    ``cause_id``    the message whose handler sent this one
    ``kind``, ``ordinal``  of a ``sent``: which of the sends of one handler run it was
    ``origin_at``   when the flow was accepted; audits count by it, so that all hops of a flow fall into one window
    ``ms``          of ``committed`` and ``failed``: how long the handler ran
    ``attempt``     of a ``sent`` or ``accepted``: 1 for a message that went over a broker without a row of the queue
    ``bytes``       size of the envelope
    ``detail``      of a ``sent``: the stage that sent it; of a ``committed``: its amount (``flow.amounts``);
                    else free text: an error, a reason, an operator
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


class Position(int):
    """A place in a store's journal: every line before it is readable and does not change.

    It is valid only within its ``epoch``, which changes when the database is restored or its server is promoted. Its
    text is ``epoch:number``. A position without an epoch is a number that cannot be checked.
    """

    epoch: str

    def __new__(cls, number: int, epoch: str = "") -> Self:
        made = super().__new__(cls, number)
        made.epoch = epoch
        return made

    @classmethod
    def read(cls, text: str) -> Position | None:
        """Parse the text of a position; None where the text is none."""
        written = _POSITION_TEXT.fullmatch(text)
        return None if written is None else cls(int(written[2]), written[1] or "")

    def __str__(self) -> str:
        return f"{self.epoch}:{int(self)}" if self.epoch else repr(self)


@dataclass(frozen=True, slots=True)
class Span:
    """A range of the journal from ``begin`` up to, but without, ``end``; None is the journal's own begin or end."""

    begin: Position | None = None
    end: Position | None = None

    def check_epoch(self, epoch: str, place: str) -> None:
        """Raise ``DeclarationError`` for a position of another epoch than that of the store at ``place``."""
        for each in (self.begin, self.end):
            if each is not None and each.epoch not in ("", epoch):
                raise DeclarationError(
                    f"the position {each} is of another epoch than the journal of {place}, which is in {epoch}: since "
                    "it was taken the database was restored, or its server was promoted, and what was read up to it "
                    "may be gone or have changed. Read the journal from its beginning again, without the option from, "
                    "and go on from a new position."
                )


WHOLE = Span()


class Bounds(NamedTuple):
    """Ids of journal lines from ``low`` up to, but without, ``high``, as one snapshot of the store sees them.

    ``snapshot``  None where ids are in the order of commits
    ``restored``  the greatest id that came with a dump of another server; no snapshot of this one sees its transactions
    """

    low: int
    high: int
    snapshot: str | None = None
    restored: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """The journal's lines from a position on.

    ``lines``      how many, and the moment of the earliest
    ``committed``  how many messages each node committed
    ``has_ended``  whether an attempt ended, well or not; released claims do not count
    """

    lines: Backlog
    committed: dict[str, int]
    has_ended: bool


class Journal(Protocol):
    """The journal's part of a session. Only ``record`` needs an open transaction."""

    def record(self, waypoints: Sequence[Waypoint]) -> None:
        """Append lines, in the open transaction."""

    def history(self, flow_or_message_id: str, latest: int | None = None) -> list[Waypoint]:
        """Return the lines of a flow in the order in which they were written.

        Where no flow has that id, return those of the flow that the message of that id belongs to. With ``latest``,
        return the last lines of the message of that id alone, so many at most.
        """

    def has_committed(self, stage: str, message_id: str) -> bool:
        """Say whether the journal has a ``committed`` line of this message at this stage."""

    def position(self) -> Position:
        """Return the journal's end: lines before it do not change, later lines come at it or beyond.

        Call it outside any transaction.
        """

    def since(self, position: int) -> Progress:
        """Sum up the lines from that position on."""
