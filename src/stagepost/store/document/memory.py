"""A store of documents in the memory of one process, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock

from stagepost.ports.documents import StoredDocument

MISSING = StoredDocument(0, b"")


class MemoryDocuments:
    """Implements ``DocumentStore``."""

    def __init__(self) -> None:
        self._documents: dict[str, StoredDocument] = {}
        self._lists: dict[str, dict[str, bytes]] = {}
        self._lock = Lock()

    def read(self, key: str) -> StoredDocument:
        with self._lock:
            return self._documents.get(key, MISSING)

    def write(self, key: str, body: bytes, version: int) -> bool:
        with self._lock:
            if self._documents.get(key, MISSING).version != version:
                return False
            self._documents[key] = StoredDocument(version + 1, body)
            return True

    def keep(self, key: str, name: str, content: bytes) -> bool:
        with self._lock:
            lists = self._lists.setdefault(key, {})
            is_new = name not in lists
            lists.setdefault(name, content)
            return is_new

    def lists(self, key: str) -> Mapping[str, bytes]:
        with self._lock:
            return dict(self._lists.get(key, {}))

    def drop(self, key: str, name: str) -> None:
        with self._lock:
            self._lists.get(key, {}).pop(name, None)
