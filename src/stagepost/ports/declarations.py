"""Capability: the declarations, which app declares which stage. They find messages that no app will handle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Declaration(NamedTuple):
    """A declared stage.

    ``dropped_at``  when a newer start of the app no longer declared it; processes of the app that started before may
                    still run it
    ``types``       the names of the message types that it takes, with commas
    """

    stage: str
    endpoint: str
    app: str
    dropped_at: int | None = None
    types: str = ""


class Undeclared(NamedTuple):
    """A stage with waiting messages that no app declares.

    ``app`` is the last app that declared it, until ``dropped_at``; None where none ever did.
    """

    stage: str
    app: str | None
    dropped_at: int | None


class Declarations(Protocol):
    """The declarations' part of a session. Writes happen in its open transaction."""

    def declared(self, stages: Sequence[str]) -> set[str]:
        """Return those of the stages that an app declares, and that were not dropped."""

    def lock(self) -> None:
        """Keep all other sessions from changing declarations until the transaction ends."""

    def listed(self) -> list[Declaration]:
        """Return all declarations, in any order."""

    def put(self, declarations: Sequence[Declaration]) -> None:
        """Insert declarations, or replace those of the same stages."""

    def undeclared(self) -> list[Undeclared]:
        """Return the addresses at which messages wait and which are not declared, or were dropped."""
