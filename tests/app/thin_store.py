"""The driver of another package, whose stores have the mandatory parts alone."""

from __future__ import annotations

from collections.abc import Collection

from stagepost.flow.errors import DeclarationError
from stagepost.ports.registry import Capability, Driver
from tests.toy_store.store import ToyStore


class ThinDriver(Driver):
    capabilities: frozenset[Capability] = frozenset()

    def check(self, url: str) -> None:
        if url != "thin://here":
            raise DeclarationError(f"{url} is no thin store")

    def open(self, url: str, *, allow: Collection[str] = ()) -> ToyStore:
        return ToyStore()

    def open_existing(self, url: str, source: str) -> ToyStore:
        return ToyStore()

    def migrate(self, url: str) -> list[int]:
        return []


driver = ThinDriver()
