"""The result of ``ctx.sql``: fetched rows, with the same interface on every store.

No cursor stays open on the connection, so none keeps a snapshot alive past the stage's transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload


class Row(Sequence[Any]):
    """A row: ``row["amount"]``, ``row[0]``, ``id, amount = row``."""

    __slots__ = ("_columns", "_values")

    def __init__(self, columns: tuple[str, ...], values: Sequence[Any]) -> None:
        self._columns = columns
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, key: int | str | slice) -> Any:
        if isinstance(key, str):
            try:
                return self._values[self._columns.index(key)]
            except ValueError:
                raise KeyError(f"no column {key!r}; the row has {', '.join(self._columns)}") from None
        return self._values[key]

    def as_dict(self) -> dict[str, Any]:
        return dict(zip(self._columns, self._values, strict=True))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Row):
            return tuple(self._values) == tuple(other._values)
        return isinstance(other, (tuple, list)) and list(self._values) == list(other)

    def __hash__(self) -> int:
        return hash(tuple(self._values))

    def __repr__(self) -> str:
        return f"Row({', '.join(f'{name}={value!r}' for name, value in self.as_dict().items())})"


class Rows(Sequence[Row]):
    """The rows of a statement. ``rowcount`` is the number of rows that an INSERT, UPDATE or DELETE changed, else -1."""

    __slots__ = ("_rows", "columns", "rowcount")

    def __init__(self, columns: tuple[str, ...], values: Sequence[Sequence[Any]], rowcount: int) -> None:
        self.columns = columns
        self.rowcount = rowcount
        self._rows = [Row(columns, row) for row in values]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    @overload
    def __getitem__(self, key: int) -> Row: ...
    @overload
    def __getitem__(self, key: slice) -> Sequence[Row]: ...
    def __getitem__(self, key: int | slice) -> Row | Sequence[Row]:
        return self._rows[key]

    def first(self) -> Row | None:
        return self._rows[0] if self._rows else None

    def one(self) -> Row:
        """Return the only row. Raises ``LookupError`` if there is none, or more than one."""
        if len(self._rows) != 1:
            raise LookupError(f"expected exactly one row, the statement gave {len(self._rows)}")
        return self._rows[0]

    def scalar(self) -> Any:
        """Return the first column of the first row, or None if there is no row."""
        return self._rows[0][0] if self._rows else None

    def __repr__(self) -> str:
        return f"Rows({self._rows!r}, rowcount={self.rowcount})"
