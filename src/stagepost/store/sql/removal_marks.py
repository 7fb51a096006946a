"""The marks in a store's metadata that tell what has left it for its age."""

from __future__ import annotations

from abc import ABC, abstractmethod

from stagepost.ports.journal import Position

# The key under which ``stagepost_meta`` has the purge mark of the journal.
PURGED = "purged"
# The latest death of the letters that left the store because of their age.
LETTERS_REMOVED = "letters_removed"


class RemovalMarks(ABC):
    """Implements the marks of ``ports.export.Export`` over the metadata."""

    __slots__ = ()

    def purged_until(self) -> Position | None:
        text = self._meta(PURGED)
        return None if text is None else Position.read(text)

    def letters_removed(self) -> int | None:
        text = self._meta(LETTERS_REMOVED)
        return None if text is None else int(text)

    @abstractmethod
    def _meta(self, key: str) -> str | None:
        """Return a value of the metadata."""
