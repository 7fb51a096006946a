"""The driver of ``sqlite:``, a file that the processes of one machine share."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from stagepost.flow.clock import Clock
from stagepost.flow.errors import DeclarationError, StoreUnavailable
from stagepost.flow.urls import shown_url
from stagepost.ports.health import StoreHealth
from stagepost.ports.registry import Capability, unknown
from stagepost.store.sqlite import examination
from stagepost.store.sqlite.export import SqliteExport
from stagepost.store.sqlite.store import SqliteStore, file_of, migrate_file

PREFIX = "sqlite:///"

capabilities: frozenset[Capability] = frozenset(
    {
        "business_keys",
        *("archives", "audits", "circuits", "cursors", "declarations", "edge", "effects", "export", "health", "inbox"),
        *("outbox", "replays", "retention", "runs", "staging", "subscriptions"),
    }
)


def path_of(url: str) -> Path:
    """Return the file of ``sqlite:///relative.db`` or ``sqlite:////absolute.db``. Raises ``DeclarationError``."""
    name = url.removeprefix(PREFIX)
    if not url.startswith(PREFIX) or not name or name.startswith(":") or "\0" in name:
        raise unknown(url)
    return Path(name)


def check(url: str) -> None:
    path_of(url)


def open(url: str, *, allow: Collection[str] = ()) -> SqliteStore:  # noqa: A001 - the driver's port names it
    return SqliteStore(path_of(url))


def open_existing(url: str, source: str) -> SqliteStore:
    path = file_of(path_of(url))
    if not path.exists():
        raise StoreUnavailable(
            f"{path.absolute()} does not exist; {shown_url(url)} was taken from {source}. Name the store that there is "
            "with --database, or run the command where its stagepost.toml is."
        )
    return SqliteStore(path, may_make=False)


def migrate(url: str) -> list[int]:
    return migrate_file(path_of(url))


def examine(url: str, source: str, clock: Clock, *, thorough: bool = False) -> StoreHealth:
    return examination.examine(path_of(url), source, clock, thorough=thorough)


def export(url: str) -> SqliteExport:
    path = path_of(url).absolute()
    if not path.exists():
        raise DeclarationError(f"{path} does not exist; check the option url of the source stagepost")
    return SqliteExport(path)
