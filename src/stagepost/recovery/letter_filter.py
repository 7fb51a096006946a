"""Which dead letters to replay, of those in the store and of those in an archive."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from stagepost.flow.codec import decode_envelope
from stagepost.flow.errors import Undecodable
from stagepost.ports.dead_letters import DeadLetter, Selection
from stagepost.ports.replays import TIME_MAX, Period


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFilter:
    """The letters for which all that is given is true.

    ``since``, ``until``  when the letter died, in microseconds: from ``since`` on, and before ``until``
    ``type``              the name of a message type
    ``messages``          ids of messages
    """

    fingerprint: str | None = None
    flow_id: str | None = None
    since: int | None = None
    until: int | None = None
    type: str | None = None
    messages: Collection[str] | None = None

    def takes(self, letter: DeadLetter, types: Iterable[str]) -> bool:
        """``types`` are those of the letter's messages."""
        return (
            self.fingerprint in (None, letter.fingerprint)
            and self.flow_id in (None, letter.flow_id)
            and (self.since is None or letter.dead_at >= self.since)
            and (self.until is None or letter.dead_at < self.until)
            and (self.type is None or self.type in types)
            and (self.messages is None or letter.message_id in self.messages)
        )

    def selections(self) -> list[Selection | Period]:
        """Return the looks by a store's indexes that find the letters; none where all letters must be seen."""
        found: list[Selection | Period] = [Selection("message", each) for each in self.messages or ()]
        if self.flow_id is not None:
            found.append(Selection("flow", self.flow_id))
        if self.fingerprint is not None:
            found.append(Selection("group", self.fingerprint))
        if self.since is not None or self.until is not None:
            found.append(Period(self.since or 0, TIME_MAX if self.until is None else self.until))
        return found

    @property
    def is_one_look(self) -> bool:
        """Say whether a letter of any of ``selections`` is one of the filter."""
        given = (self.fingerprint, self.flow_id, self.messages)
        is_period = self.since is not None or self.until is not None
        return self.type is None and sum(each is not None for each in given) + is_period <= 1


def types_of(envelope: bytes) -> list[str]:
    """Return the types of an envelope's messages; none for bytes that are no envelope."""
    try:
        return [each.type for each in decode_envelope(envelope).messages]
    except Undecodable:
        return []
