"""Which part of a journal is meant."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """From one position of the journal up to, but without, another; None is its beginning or its end."""

    begin: int | None = None
    end: int | None = None
