"""The rows of a statement that has not been run yet: it is, with all that waits beside it, once one looks at them.

So the statements of a batch of messages go in one round trip, where their handlers do not ask for the answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stagepost.flow.rows import Rows
from stagepost.store.postgres.statement_pipeline import Result

# So many go ahead at a time, for the server to work on while the handlers go on.
AHEAD = 8
# Not so many that either side waits for the other in turn.
LATE_MAX = 100


class Late:
    """Where the answer will be."""

    result: Result | None = None

    def deliver(self, result: Result) -> None:
        self.result = result


class LateRows(Rows):
    __slots__ = ("_fetch", "_late")

    def __init__(self, late: Late, fetch: Callable[[], None]) -> None:
        self._late = late
        self._fetch = fetch

    def __getattr__(self, name: str) -> Any:
        """Called for what is not there yet."""
        if name not in Rows.__slots__:
            raise AttributeError(name)
        if self._late.result is None:
            self._fetch()
        assert self._late.result is not None, "what was flown has landed, or has raised"
        super().__init__(*contents_of(self._late.result))
        return getattr(self, name)


def contents_of(result: Result) -> tuple[tuple[str, ...], list[tuple[Any, ...]], int]:
    """What ``Rows`` are made of."""
    columns = result.columns
    return ((), [], result.rowcount) if columns is None else (columns, result.fetchall(), result.rowcount)
