"""The store that a URL names, as the source reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from stagepost.app.settings import is_postgres, sqlite_path
from stagepost.flow.errors import DeclarationError
from stagepost.flow.journal import Bounds, Span
from stagepost.store.sqlite import export as sqlite

Batches = Iterator[list[Sequence[Any]]]


class Export(Protocol):
    """Made on the driver, and used by the tasks: it travels, and holds no connection."""

    def journal_bounds(self, span: Span) -> Bounds: ...

    def read_rows(self, table: str, bounds: Bounds | None, span: Span) -> Batches: ...


@dataclass(frozen=True, slots=True)
class SqliteExport:
    path: Path

    def journal_bounds(self, span: Span) -> Bounds:
        return sqlite.journal_bounds(self.path, span)

    def read_rows(self, table: str, bounds: Bounds | None, span: Span) -> Batches:
        return sqlite.read_rows(self.path, table, bounds, span)


@dataclass(frozen=True, slots=True)
class PostgresExport:
    """``repr`` leaves out the URL, which may hold a password."""

    url: str

    def __repr__(self) -> str:
        return "PostgresExport()"

    def journal_bounds(self, span: Span) -> Bounds:
        from stagepost.store.postgres import export  # noqa: PLC0415 - its driver is an extra

        return export.journal_bounds(self.url, span)

    def read_rows(self, table: str, bounds: Bounds | None, span: Span) -> Batches:
        from stagepost.store.postgres import export  # noqa: PLC0415 - its driver is an extra

        return export.read_rows(self.url, table, bounds, span)


def export_of(url: str) -> Export:
    """Raises ``DeclarationError``."""
    if is_postgres(url):
        return PostgresExport(url)
    path = sqlite_path(url).absolute()
    if not path.exists():
        raise DeclarationError(f"{path} does not exist; check the option url of the source stagepost")
    return SqliteExport(path)
