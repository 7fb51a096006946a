"""The driver of ``memory:``, an SQLite file in a temporary folder: a store for the tests of one process."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Collection
from pathlib import Path
from tempfile import mkdtemp
from typing import NoReturn

from stagepost.flow.clock import Clock
from stagepost.flow.errors import CapabilityMissing, DeclarationError
from stagepost.ports.registry import Capability, unknown
from stagepost.store.sqlite import driver
from stagepost.store.sqlite.store import SqliteStore

URL = "memory:"

capabilities: frozenset[Capability] = driver.capabilities - {"export", "health"}


class TemporaryStore(SqliteStore):
    """A store that ends with the object. Its URL opens another one each time."""

    def __init__(self) -> None:
        folder = mkdtemp(prefix="stagepost-memory-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        super().__init__(Path(folder) / "memory.db")
        self.url = self.address = URL

    def _log_made(self) -> None:
        """Log nothing: the user did not name this file."""

    def liveness(self, clock: Clock) -> NoReturn:
        raise DeclarationError("the memory store lives in one process; workers need a database: sqlite:///stagepost.db")


def check(url: str) -> None:
    if url != URL:
        raise unknown(url)


def open(url: str, *, allow: Collection[str] = ()) -> TemporaryStore:  # noqa: A001 - the driver's port names it
    return TemporaryStore()


def open_existing(url: str, source: str) -> TemporaryStore:
    return TemporaryStore()


def migrate(url: str) -> NoReturn:
    raise unknown(url)


def examine(url: str, source: str, clock: Clock, *, thorough: bool = False) -> NoReturn:
    raise CapabilityMissing("health", "It is a store of one process and its tests.", url)


def export(url: str) -> NoReturn:
    raise CapabilityMissing("export", "The memory store lives in one process, and ends with it.", url)
