"""Which app declares which stage, as a store knows it."""

from __future__ import annotations

from typing import NamedTuple


class Declaration(NamedTuple):
    """``dropped_at`` is when a newer start of the app no longer declared the stage; processes of the app that started
    before may still run it."""

    stage: str
    endpoint: str
    app: str
    dropped_at: int | None = None


class Undeclared(NamedTuple):
    """A stage at which messages wait and which no app declares. ``app`` is the last one that did, until ``dropped_at``;
    None where none ever did."""

    stage: str
    app: str | None
    dropped_at: int | None
