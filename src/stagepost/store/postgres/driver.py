"""The driver of ``postgresql:`` and ``postgres:``. It imports psycopg, which is an extra, only to open a database."""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from typing import Any, cast

from stagepost.flow.clock import Clock
from stagepost.flow.errors import DeclarationError
from stagepost.ports.export import Export
from stagepost.ports.health import StoreHealth
from stagepost.ports.registry import Capability, unknown
from stagepost.ports.store import Store

capabilities: frozenset[Capability] = frozenset(
    {
        "business_keys",
        *("circuits", "declarations", "decisions", "edge", "effects", "inbox", "outbox", "prepare"),
        *("replays", "runs", "staging", "subscriptions", "archives", "audits", "cursors", "export", "health"),
        "retention",
        *("concurrent_writers", "shared"),
    }
)


def check(url: str) -> None:
    if not url.startswith(("postgresql://", "postgres://")):
        raise unknown(url)


def open(url: str, *, allow: Collection[str] = ()) -> Store:  # noqa: A001 - the driver's port names it
    return cast("Store", _module("store").PostgresStore(url, allow=allow))


def open_existing(url: str, source: str) -> Store:
    return cast("Store", _module("store").PostgresStore(url, may_make=False))


def migrate(url: str) -> list[int]:
    return cast("list[int]", _module("store").migrate_database(url))


def examine(url: str, source: str, clock: Clock, *, thorough: bool = False) -> StoreHealth:
    return cast("StoreHealth", _module("examination").examine(url, source, clock))


def export(url: str) -> Export:
    return cast("Export", _module("export").PostgresExport(url))


def _module(name: str) -> Any:
    try:
        return import_module(f"stagepost.store.postgres.{name}")
    except ImportError as error:
        raise DeclarationError(
            f"the database URL names PostgreSQL, and its driver cannot be imported ({error}). "
            "Run: pip install 'stagepost[postgres]'"
        ) from error
