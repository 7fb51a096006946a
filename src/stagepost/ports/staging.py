"""Capability: rows that tasks stage, and the transaction of a driver that starts flows for them as one batch.

Each attempt at a task stages its rows under a token of its own, in as many commits as it likes. The driver knows which
attempts count. Its one transaction enters the batch by its key, starts the flows, and deletes the staged rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from stagepost.flow.clock import SECOND
from stagepost.ports.runs import RunCounts

# Staged rows of a batch that was never committed are deleted when they are so old.
EXPIRY = 7 * 24 * 3600 * SECOND
# How many tokens of other queries one batch sweeps, so that its transaction stays short.
SWEPT_MAX = 100
# A query keeps the keys of so many batches. Rows of an earlier batch that comes again are known by their ids.
BATCHES_KEPT = 1_000


# The number of a write that is no batch of a streaming query.
ALONE = -1


class BatchKey(NamedTuple):
    """The key of a batch: the target of its rows, the id of the query that writes them, and its number there.

    A write that is no batch of a streaming query has an id of its own for the query's, and the number ``ALONE``.
    """

    sink: str
    query: str
    batch: int = ALONE

    @property
    def run_id(self) -> str:
        """The run id of the batch, under which its rows are counted and quarantined."""
        return self.query if self.batch == ALONE else f"{self.query}:{self.batch}"

    @property
    def name(self) -> str:
        """The batch's name for people."""
        if self.batch == ALONE:
            return f"the write {self.query}"
        return f"batch {self.batch} of the streaming query {self.query}"


class BatchContent(NamedTuple):
    """The number of a batch's rows, and a digest of their ids and bodies that does not depend on their order."""

    rows: int
    digest: str


class StagedRow(NamedTuple):
    """A row that is staged. Either it starts a flow, or it has a ``reason`` why it cannot.

    ``place``       its number within the attempt, from 1 on
    ``address``     its address in the quarantine: a digest of its content
    ``message_id``  None with a reason, as are ``digest`` and ``envelope``
    ``row``         the row as JSON
    """

    place: int
    address: str
    message_id: str | None
    flow_id: str | None
    digest: str | None
    origin_at: int
    envelope: bytes | None
    reason: str | None
    row: str


@dataclass(frozen=True, slots=True)
class StagedFlows:
    """All that the started flows of a batch have in common.

    ``scope``  the target's address
    ``stage``  the stage of their queue rows
    ``kind``   the kind of their envelopes
    ``node``   the writer of their journal lines
    """

    scope: str
    stage: str
    kind: str
    node: str
    run_id: str


class Staging(Protocol):
    """The staging's part of a session. Writes happen in its open transaction."""

    def open(self, token: str, key: BatchKey, now: int) -> None:
        """Add an attempt at a task."""

    def add(self, token: str, rows: Sequence[StagedRow]) -> None:
        """Stage rows of an attempt. Raises ``StoreContention`` if it was discarded or swept meanwhile."""

    def discard(self, tokens: Sequence[str]) -> None:
        """Delete attempts with their rows. Unknown tokens are left out."""

    def enter(self, key: BatchKey, content: BatchContent, now: int) -> BatchContent | None:
        """Enter a batch. Return None if its key is new, else the content with which it was committed before.

        Waits for an open transaction that enters the same key.
        """

    def replace(self, key: BatchKey, content: BatchContent, now: int) -> None:
        """Replace the content of a batch that was entered before."""

    def start(self, tokens: Sequence[str], flows: StagedFlows, now: int) -> RunCounts:
        """Accept the key of each staged row once, and put the messages of the new ones into the queue and the journal.

        Of rows with one key, the one with the least digest wins. The others are repeated, or quarantined if their
        content differs, or differs from what was accepted before. Rows with a reason are quarantined too.

        Returns the counts of the run. A key that was accepted under this run's id counts as one started. ``rows_in``
        is the number of the rows that are staged under the tokens. Raises ``StoreContention`` as ``Accepted.accept``.
        """

    def sweep(self, key: BatchKey, before: int) -> None:
        """Delete attempts at this batch of the query and at earlier ones, and some that are older than ``before``.

        Forget the query's batches but the latest ``BATCHES_KEPT``, and some writes ``ALONE`` from before ``before``.
        """
