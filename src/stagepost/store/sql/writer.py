"""Every capability on one connection. Writes are part of the open transaction."""

from __future__ import annotations

from typing import Self

from stagepost.ports.queue import Depth
from stagepost.store.sql.database import SqlDatabase
from stagepost.store.sql.declarations import SqlDeclarations
from stagepost.store.sql.inbox import SqlInbox
from stagepost.store.sql.journal import SqlJournal
from stagepost.store.sql.letters import SqlDeadLetters
from stagepost.store.sql.outbox import SqlOutbox
from stagepost.store.sql.queue import SqlQueue
from stagepost.store.sql.replays import SqlReplays
from stagepost.store.sql.runs import SqlRuns
from stagepost.store.sql.streaks import SqlStreaks
from stagepost.store.sql.subscriptions import SqlSubscriptions


class StoreWriter(SqlJournal, SqlDeadLetters, SqlSubscriptions):
    """``queue`` and ``accept`` are each database's own."""

    queue: SqlQueue

    def __init__(self, database: SqlDatabase) -> None:
        super().__init__(database)
        self.runs = SqlRuns(database)
        self.inbox = SqlInbox(database)
        self.outbox = SqlOutbox(database)
        self.replays = SqlReplays(database)
        self.streaks = SqlStreaks(database)
        self.declarations = SqlDeclarations(database)

    @property
    def reader(self) -> Self:
        return self

    def depths(self) -> list[Depth]:
        return self.queue.depths()
