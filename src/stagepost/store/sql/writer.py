"""The parts of a session that both databases share. Writes are part of the open transaction."""

from __future__ import annotations

from stagepost.store.sql.archives import SqlArchives
from stagepost.store.sql.audits import SqlAudits
from stagepost.store.sql.circuits import SqlCircuits
from stagepost.store.sql.cursors import SqlCursors
from stagepost.store.sql.database import SqlDatabase
from stagepost.store.sql.edge import SqlEdge
from stagepost.store.sql.effects import SqlEffects
from stagepost.store.sql.journal import SqlJournal
from stagepost.store.sql.letters import SqlDeadLetters
from stagepost.store.sql.outbox import SqlOutbox
from stagepost.store.sql.queue import SqlQueue
from stagepost.store.sql.replays import SqlReplays
from stagepost.store.sql.runs import SqlRuns
from stagepost.store.sql.subscriptions import SqlSubscriptions


class StoreWriter(SqlDatabase):
    """Each database adds its own ``accepted``, ``inbox``, ``declarations`` and ``retention``."""

    def __init__(self, queue: SqlQueue) -> None:
        self.journal = SqlJournal(self)
        self.dead_letters = SqlDeadLetters(self)
        self.subscriptions = SqlSubscriptions(self)
        self.outbox = SqlOutbox(self)
        self.replays = SqlReplays(self)
        self.circuits = SqlCircuits(self, queue)
        self.runs = SqlRuns(self)
        self.cursors = SqlCursors(self)
        self.audits = SqlAudits(self)
        self.archives = SqlArchives(self)
        self.edge = SqlEdge(self)
        self.effects = SqlEffects(self)
