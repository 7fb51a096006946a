"""The rows that an export reads, as a test compares them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from stagepost.ports.export import TABLES, Export, TableQuery
from stagepost.ports.journal import WHOLE, Bounds, Span


def exported(
    export: Export, table: str, bounds: Bounds | None, span: Span = WHOLE, columns: Sequence[str] = ()
) -> list[tuple[Any, ...]]:
    """Read the columns, or all of the table's."""
    query = TableQuery(table, columns or list(TABLES[table]), span=span)
    return [row for batch in export.read(query, bounds) for row in zip(*map(values, batch), strict=True)]


def values(column: Any) -> list[Any]:
    found: Iterable[Any] = column.to_pylist() if hasattr(column, "to_pylist") else column
    return [each.decode(errors="replace") if isinstance(each, bytes) else each for each in found]
