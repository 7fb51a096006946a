"""Rows that tasks stage, and the batches that were committed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from stagepost.flow.errors import StoreContention
from stagepost.ports.runs import RunCounts
from stagepost.ports.staging import BATCHES_KEPT, SWEPT_MAX, BatchContent, BatchKey, StagedFlows, StagedRow
from stagepost.store.sql.database import SqlPart, only, text_of
from stagepost.store.sql.texts import writable


class SqlStaging(SqlPart):
    """The part of ``ports.staging.Staging`` that both databases share; ``_start_new`` is each one's own."""

    def open(self, token: str, key: BatchKey, now: int) -> None:
        self._run("open_staged", (token, *key, now))

    def add(self, token: str, rows: Sequence[StagedRow]) -> None:
        if self._run("extend_staged", (token,)).rowcount != 1:
            raise StoreContention(
                f"the staged rows of the attempt {token} were deleted while it ran: its batch is committed, or the "
                "attempt began more than seven days ago. Spark runs the task again."
            )
        written = [
            (token, *row[:7], None if row.reason is None else writable(row.reason), writable(row.row)) for row in rows
        ]
        self._database.insert("stage_row", written)

    def discard(self, tokens: Sequence[str]) -> None:
        if tokens:
            # The attempts first: then no task adds rows to them any longer.
            self._database.later("discard_staged", (self._database.array(tokens),))
            self._database.later("discard_staged_rows", (self._database.array(tokens),))

    def enter(self, key: BatchKey, content: BatchContent, now: int) -> BatchContent | None:
        if self._run("enter_batch", (*key, *content, now)).rowcount == 1:
            return None
        rows, digest = only(self._run("find_batch", key))
        return BatchContent(rows, text_of(digest))

    def replace(self, key: BatchKey, content: BatchContent, now: int) -> None:
        self._database.later(
            "replace_batch", {**key._asdict(), "row_count": content.rows, "digest": content.digest, "now": now}
        )

    def start(self, tokens: Sequence[str], flows: StagedFlows, now: int) -> RunCounts:
        staged = {"tokens": self._database.array(tokens), "scope": flows.scope, "run_id": flows.run_id}
        self._run("lock_staged", (staged["tokens"],)).fetchall()
        self._start_new({**staged, "stage": flows.stage, "kind": flows.kind, "node": flows.node, "now": now})
        self._database.later("quarantine_staged", staged)
        rows, started, accepted, refused = only(self._run("count_staged", staged))
        if rows != accepted + refused:
            raise StoreContention(
                f"the keys of {rows - accepted - refused} staged rows to {flows.scope} were accepted before, and that "
                "was deleted in this moment, perhaps by a purge. Run the batch again."
            )
        self._database.notify()
        return RunCounts(rows, started, accepted - started, refused)

    @abstractmethod
    def _start_new(self, parameters: dict[str, Any]) -> None:
        """Accept the new keys, and put their messages into the queue and the journal."""

    def sweep(self, key: BatchKey, before: int) -> None:
        for statement, parameters in (
            ("list_swept_of_query", key),
            ("list_swept_by_age", (before, SWEPT_MAX)),
        ):
            self.discard([text_of(token) for (token,) in self._run(statement, parameters).fetchall()])
        self._database.later("forget_batches", (key.sink, key.query, key.batch - BATCHES_KEPT))
        self._database.later("forget_writes", (before, SWEPT_MAX))
