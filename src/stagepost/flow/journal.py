"""Which part of a journal is meant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Span:
    """From one position of the journal up to, but without, another; None is its beginning or its end."""

    begin: int | None = None
    end: int | None = None


class Bounds(NamedTuple):
    """Ids from ``low`` up to but without ``high``, as one snapshot of the store sees them.

    ``snapshot`` is None where ids are in the order of commits. ``restored`` is the greatest id that came with a dump of
    another server, whose transactions no snapshot of this one sees.
    """

    low: int
    high: int
    snapshot: str | None = None
    restored: int = 0
