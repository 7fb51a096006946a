"""The driver of ``toy:``, registered by an entry point as another package would do it: see ``installed``."""

from __future__ import annotations

from collections.abc import Collection
from typing import NoReturn

from stagepost.flow.clock import Clock
from stagepost.flow.errors import CapabilityMissing
from stagepost.ports.registry import Capability, unknown
from tests.toy_store.store import ToyStore

capabilities: frozenset[Capability] = frozenset(
    {
        "audits",
        "business_keys",
        "circuits",
        "declarations",
        "edge",
        "inbox",
        "outbox",
        "replays",
        "runs",
        "subscriptions",
    }
)


def check(url: str) -> None:
    if url != ToyStore.url:
        raise unknown(url)


def open(url: str, *, allow: Collection[str] = ()) -> ToyStore:  # noqa: A001 - the driver's port names it
    return ToyStore()


def open_existing(url: str, source: str) -> ToyStore:
    return ToyStore()


def migrate(url: str) -> NoReturn:
    raise unknown(url)


def examine(url: str, source: str, clock: Clock, *, thorough: bool = False) -> NoReturn:
    raise CapabilityMissing("health", "It is a store of one process and its tests.", url)


def export(url: str) -> NoReturn:
    raise CapabilityMissing("export", "The memory store lives in one process, and ends with it.", url)
