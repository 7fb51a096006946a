"""Which part of a journal is meant."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple, Self

from stagepost.flow.errors import DeclarationError

WRITTEN = re.compile(r"(?:([0-9a-f-]+):)?([0-9]+)")


class Position(int):
    """A place in a store's journal: what is before it is there and stays as it is.

    It counts only within its ``epoch``, which changes when the database is restored or its server promoted. As text it
    is ``epoch:number``. Without an epoch it is a number that nobody can check.
    """

    epoch: str

    def __new__(cls, number: int, epoch: str = "") -> Self:
        made = super().__new__(cls, number)
        made.epoch = epoch
        return made

    @classmethod
    def read(cls, text: str) -> Position | None:
        """None for a text that is no position."""
        written = WRITTEN.fullmatch(text)
        return None if written is None else cls(int(written[2]), written[1] or "")

    def __str__(self) -> str:
        return f"{self.epoch}:{int(self)}" if self.epoch else repr(self)


@dataclass(frozen=True, slots=True)
class Span:
    """From one position of the journal up to, but without, another; None is its beginning or its end."""

    begin: Position | None = None
    end: Position | None = None

    def check_epoch(self, epoch: str, place: str) -> None:
        """Raises ``DeclarationError`` for a position of another epoch than the store at ``place`` is in."""
        for each in (self.begin, self.end):
            if each is not None and each.epoch not in ("", epoch):
                raise DeclarationError(
                    f"the position {each} is of another epoch than the journal of {place}, which is in {epoch}: since "
                    "it was taken the database was restored, or its server was promoted, and what was read up to it "
                    "may be gone or have changed. Read the journal from its beginning again, without the option from, "
                    "and go on from a new position."
                )


class Bounds(NamedTuple):
    """Ids from ``low`` up to but without ``high``, as one snapshot of the store sees them.

    ``snapshot`` is None where ids are in the order of commits. ``restored`` is the greatest id that came with a dump of
    another server, whose transactions no snapshot of this one sees.
    """

    low: int
    high: int
    snapshot: str | None = None
    restored: int = 0
