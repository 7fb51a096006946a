"""Dead letters: messages that were set aside, each with its cause."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

from stagepost.flow.texts import one_line

# ``maybe-sent`` and ``oversized`` are outbound messages. ``conflict`` has the id of another accepted message, or the
# business key of another handled one, and other content. ``duplicate`` has the key of a handled one, and its caller
# cannot be answered.
# ``maybe-delivered`` is a message that the gateway's consumer may have taken.
DeathReason = Literal[
    "refused",
    "hopeless",
    "undecodable",
    "exhausted",
    "worker-died",
    "unsendable",
    "maybe-sent",
    "maybe-delivered",
    "oversized",
    "conflict",
    "duplicate",
]


class Cause(msgspec.Struct, frozen=True):
    """One exception of a chain; the outermost comes first."""

    type: str
    message: str

    @property
    def summary(self) -> str:
        """Type and first line of the message, on one line."""
        first_line = self.message.splitlines()[0] if self.message else ""
        return one_line(f"{self.type}: {first_line}" if first_line else self.type)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message set aside.

    ``causes``       the chain of exceptions, at least one
    ``stack``        the trace as Python prints it, bounded
    ``fingerprint``  twelve hex digits, equal for the same kind of failure at the same place
    ``dead_at``      microseconds, UTC
    ``declared_at``  file and line of the stage
    ``envelope``     the bytes as they were received
    """

    message_id: str
    flow_id: str
    stage: str
    reason: DeathReason
    causes: tuple[Cause, ...]
    stack: str
    fingerprint: str
    failures: int
    deaths: int
    deliveries: int
    origin_at: int
    dead_at: int
    node: str
    declared_at: str
    envelope: bytes

    @property
    def summary(self) -> str:
        return self.causes[0].summary


@dataclass(frozen=True, slots=True)
class KeptLetter:
    """A dead letter of the store; commands name it by ``id``."""

    id: int
    letter: DeadLetter


@dataclass(frozen=True, slots=True)
class LetterGroup:
    """The dead letters of one kind of failure at one place; ``latest_id`` is a sample."""

    fingerprint: str
    stage: str
    reason: str
    count: int
    first_at: int
    last_at: int
    latest_id: int


@dataclass(frozen=True, slots=True)
class Selection:
    """Dead letters to choose: all, or those whose id, message, flow or group is ``value``."""

    by: Literal["all", "id", "message", "flow", "group"]
    value: str | int | None = None

    def __str__(self) -> str:
        return self.by if self.value is None else f"{self.by} {self.value}"


class DeadLetters(Protocol):
    """The dead letters' part of a session. Writes happen in its open transaction; reads need none."""

    def bury(self, letter: DeadLetter) -> None:
        """Add a dead letter."""

    def remove(self, letter_id: int) -> bool:
        """Remove a dead letter. Returns False where it is not there."""

    def select(self, selection: Selection) -> Iterator[KeptLetter]:
        """Return the chosen dead letters in the order of their ids."""

    def ids_of(self, flow_ids: Sequence[str]) -> list[int]:
        """Return the ids of the dead letters of these flows, in any order."""

    def groups(self) -> list[LetterGroup]:
        """Return all groups, those with the latest death first."""
