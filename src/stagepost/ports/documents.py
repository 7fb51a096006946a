"""A store of documents, whose only transaction is the write of one document.

Each key has one document and a set of lists: the outgoing messages of attempts, by name. Every method is one atomic
operation, and is on the disk when it returns. Every method raises ``StoreUnavailable`` and ``StoreError``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol


class StoredDocument(NamedTuple):
    """A document; ``version`` is 0 and ``body`` is empty for one that is missing."""

    version: int
    body: bytes


class DocumentStore(Protocol):
    """A store of documents. Threads share one."""

    def read(self, key: str) -> StoredDocument:
        """Return the document, as the last write left it."""

    def write(self, key: str, body: bytes, version: int) -> bool:
        """Write the document if it still has this version, and raise the version by one. Return whether it had.

        Version 0 creates a missing document. The lists of the key stay as they are.
        """

    def keep(self, key: str, name: str, content: bytes) -> bool:
        """Add a list under a new name. Return False, and change nothing, if the name is taken."""

    def lists(self, key: str) -> Mapping[str, bytes]:
        """Return the lists of a key by their names."""

    def drop(self, key: str, name: str) -> None:
        """Delete a list, if it is there."""
