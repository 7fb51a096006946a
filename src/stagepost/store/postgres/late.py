"""The rows of a statement that is executed later: the first look at them executes all statements that wait.

So the statements of a batch of messages share a round trip if their handlers do not look at the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stagepost.flow.rows import Rows
from stagepost.store.postgres.statement_pipeline import Result

# This many statements are sent ahead together. The server executes them while the handlers continue.
AHEAD = 8
# The most statements in a pipeline. With more, both sides could block on full socket buffers.
LATE_MAX = 100


class Late:
    """The place for a result that is delivered later."""

    result: Result | None = None

    def deliver(self, result: Result) -> None:
        self.result = result


class LateRows(Rows):
    __slots__ = ("_fetch", "_late")

    def __init__(self, late: Late, fetch: Callable[[], None]) -> None:
        self._late = late
        self._fetch = fetch

    def __getattr__(self, name: str) -> Any:
        """Execute the statement on the first access to an attribute: Python calls this while the attribute is unset."""
        if name not in Rows.__slots__:
            raise AttributeError(name)
        if self._late.result is None:
            self._fetch()
        assert self._late.result is not None, "the pipeline delivers each result, or raises"
        super().__init__(*contents_of(self._late.result))
        return getattr(self, name)


def contents_of(result: Result) -> tuple[tuple[str, ...], list[tuple[Any, ...]], int]:
    """Return the arguments of ``Rows``: columns, rows and the row count."""
    columns = result.columns
    return ((), [], result.rowcount) if columns is None else (columns, result.fetchall(), result.rowcount)
