"""Capability: the export, which reads whole tables for Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from stagepost.ports.journal import Bounds, Span


class Export(Protocol):
    """A value that Spark pickles for its tasks. It holds no connection, and its ``repr`` no password.

    Its methods raise ``StoreError``.
    """

    def journal_bounds(self, span: Span) -> Bounds:
        """Return the bounds of the journal within the span, as a snapshot of now sees it."""

    def read_rows(self, table: str, bounds: Bounds | None, span: Span) -> Iterator[list[Sequence[Any]]]:
        """Yield the rows of ``journal``, ``queue``, ``dead_letters`` or ``places`` in batches, all of one moment.

        ``bounds`` and ``span`` limit the journal; every other table is read whole.
        """
