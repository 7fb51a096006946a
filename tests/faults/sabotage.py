"""Negative controls: each breaks one guarantee of the library, in the worker processes of one test.

A harness that finds nothing wrong proves little until it is seen to find what is. What is kept by each store in its own
way is broken in both.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import uuid
from collections.abc import Callable, Sequence
from types import SimpleNamespace

from stagepost.flow import ids
from stagepost.flow.claim import Claim
from stagepost.flow.errors import WorkerDied
from stagepost.flow.initiation import Acceptance, Verdict
from stagepost.flow.produced import Produced
from stagepost.liveness import takeover
from stagepost.liveness.detector import FailureDetector, State
from stagepost.ports.liveness import IncarnationRecord
from stagepost.runtime.watchdog import ThreadWatch
from stagepost.store.postgres import forking, lock_row
from stagepost.store.postgres import session as postgres_session
from stagepost.store.postgres.inbox import PostgresInbox
from stagepost.store.postgres.queue import PostgresQueue
from stagepost.store.postgres.session import PostgresSession
from stagepost.store.postgres.statements import Statement
from stagepost.store.postgres.writer import PostgresAccepted, PostgresWriter
from stagepost.store.sql.inbox import SqlInbox
from stagepost.store.sqlite import lock_file
from stagepost.store.sqlite.connection import BEGIN, COMMIT, ConnectionLoan, GuardedConnection
from stagepost.store.sqlite.session import SqliteSession
from stagepost.store.sqlite.writer import SqliteAccepted, SqliteQueue, SqliteWriter
from stagepost.transaction.outbox import InboxOutbox
from stagepost.transaction.outcome import Redelivered
from stagepost.transaction.queue_commit import QueueCommit
from stagepost.transaction.sent_marks import BatchedMarks
from stagepost.transaction.two_phase import InDoubtResolver

REMOVE = Statement(b"DELETE FROM stagepost_ready WHERE id = $1", ("id",))


def _cursor_of(queue: SqliteQueue) -> sqlite3.Cursor:
    database = queue._database
    assert isinstance(database, SqliteWriter)
    return database._cursor


def _wire_of(queue: PostgresQueue) -> PostgresWriter:
    database = queue._database
    assert isinstance(database, PostgresWriter)
    return database


def no_fence() -> None:
    """The first statement takes the message whoever holds it, and whether or not it is there."""

    def remove(self: SqliteQueue, claim: Claim) -> bool:
        _cursor_of(self).execute("DELETE FROM stagepost_ready WHERE id = ?", (claim.row,))
        return True

    def take_there(self: PostgresQueue, *claims: Claim) -> None:
        for claim in claims:
            _wire_of(self).later(REMOVE, (claim.row,))

    def remove_there(self: PostgresQueue, claim: Claim) -> bool:
        take_there(self, claim)
        return True

    SqliteQueue.remove = remove  # type: ignore[method-assign, assignment]
    PostgresQueue.take = take_there  # type: ignore[method-assign]
    PostgresQueue.remove = remove_there  # type: ignore[method-assign, assignment]


def early_acknowledge() -> None:
    """The message is gone from the queue as soon as it is claimed."""
    claim_rows = SqliteQueue.claim

    def claim(self: SqliteQueue, stages: Sequence[str], limit: int, owner: str, now: int) -> list[Claim]:
        claims = claim_rows(self, stages, limit, owner, now)
        for each in claims:
            _cursor_of(self).execute("DELETE FROM stagepost_ready WHERE id = ?", (each.row,))
        return claims

    claim_rows_there = PostgresQueue.claim

    def claim_there(self: PostgresQueue, stages: Sequence[str], limit: int, owner: str, now: int) -> list[Claim]:
        claims = claim_rows_there(self, stages, limit, owner, now)
        for each in claims:
            _wire_of(self).later(REMOVE, (each.row,))
        return claims

    SqliteQueue.claim = claim  # type: ignore[method-assign, assignment]
    SqliteQueue.remove = lambda self, claim: True  # type: ignore[method-assign]
    PostgresQueue.claim = claim_there  # type: ignore[method-assign, assignment]
    PostgresQueue.take = lambda self, *claims: None  # type: ignore[method-assign]
    PostgresQueue.remove = lambda self, claim: True  # type: ignore[method-assign]


def commit_before_recording() -> None:
    """The handler's work commits with its message, and what it produced in a transaction of its own after that."""
    put = QueueCommit.put

    def put_late(self: QueueCommit, claim: Claim, produced: Produced) -> None:
        self.session.commit()
        self.session.begin()
        put(self, claim, produced)

    QueueCommit.put = put_late  # type: ignore[method-assign]


def no_transaction() -> None:
    """Every statement commits by itself."""
    cross = GuardedConnection.cross

    def cross_none(self: GuardedConnection, boundary: str) -> None:
        if boundary not in (BEGIN, COMMIT):
            cross(self, boundary)

    nothing = Statement(b"SELECT 'COMMIT'", ())
    vars(postgres_session).update(BEGIN=nothing, COMMIT=nothing)
    PostgresSession.is_open = property(lambda self: self._is_begun)  # type: ignore[method-assign, assignment]
    PostgresSession.commit = execute_all  # type: ignore[method-assign, assignment]
    GuardedConnection.cross = cross_none  # type: ignore[method-assign]
    GuardedConnection.authorize = lambda self, action, *details: 0  # type: ignore[method-assign]
    SqliteSession.is_open = property(lambda self: True)  # type: ignore[method-assign, assignment]


def random_ids() -> None:
    """What a stage sends gets another id each time."""
    ids.derived = lambda *place: str(uuid.uuid4())


def nothing_accepted() -> None:
    """Whatever comes from outside is new."""

    def accept(
        self: SqliteAccepted | PostgresAccepted, acceptances: Sequence[Acceptance], *, is_patient: bool = True
    ) -> list[Verdict]:
        return [Verdict("started", each.digest) for each in acceptances]

    for each in (SqliteAccepted, PostgresAccepted):
        each.accept = accept  # type: ignore[method-assign]


def deaths_are_failures() -> None:
    """Whoever was there when a process died is counted as having failed."""
    vars(takeover)["Died"] = lambda after, how: Redelivered(after, WorkerDied(how))


def time_limits_are_deaths() -> None:
    """A process that is replaced says nothing of why."""
    ThreadWatch.mark_timed_out = lambda self: None  # type: ignore[method-assign]
    abandoned_are_deaths()


def abandoned_are_deaths() -> None:
    """A worker that gives up what runs does not say that it was told to."""
    lock_file.LockFile.abandon = lambda self: None  # type: ignore[method-assign]
    lock_row.LockRow.abandon = lambda self: None  # type: ignore[method-assign]


def living_look_dead() -> None:
    """The lock is not looked at."""
    state_of = FailureDetector._state

    def state(self: FailureDetector, record: IncarnationRecord) -> State:
        return "dead" if record.process != os.getpid() else state_of(self, record)

    FailureDetector._state = state  # type: ignore[method-assign]


def dead_look_alive() -> None:
    """The lock is one that forked children inherit, or they keep the connection that has it."""
    inherited = SimpleNamespace(lockf=fcntl.flock, LOCK_EX=fcntl.LOCK_EX, LOCK_NB=fcntl.LOCK_NB)
    lock_file.fcntl = inherited  # type: ignore[assignment, attr-defined]
    forking.Forking.opened = lambda self, connection: None  # type: ignore[method-assign]


def no_guard() -> None:
    """The handler's connection is the driver's, and nobody asks whether the transaction is still ours."""
    ConnectionLoan.check = lambda self, statement: self.touch()  # type: ignore[method-assign]
    GuardedConnection.authorize = lambda self, action, *details: 0  # type: ignore[method-assign]
    SqliteSession.is_open = property(lambda self: True)  # type: ignore[method-assign, assignment]
    SqliteSession.commit = commit_whatever_is_open  # type: ignore[method-assign, assignment]


def no_inbox() -> None:
    """What was handled is not remembered."""
    for each in (SqlInbox, PostgresInbox):
        each.admit = lambda self, row: True  # type: ignore[method-assign]
        each.find = lambda self, stage, message_id: None  # type: ignore[method-assign]


def queue_before_data() -> None:
    """What was produced is sent, and the message taken, before the work is committed."""
    InboxOutbox._commit = lambda self, claim: None  # type: ignore[method-assign]
    BatchedMarks.sent = lambda self, claim: self._work.commit()  # type: ignore[method-assign]


def no_decision() -> None:
    """Whoever finds a prepared transaction commits it."""
    InDoubtResolver._decided = lambda self, gid: True  # type: ignore[method-assign]


def nobody_settles() -> None:
    """What is in doubt stays so."""
    InDoubtResolver.settle_old = lambda self, seconds=None: 0  # type: ignore[method-assign]
    InDoubtResolver.settle_attempts_at = lambda self, claim: False  # type: ignore[method-assign]


def execute_all(session: PostgresSession) -> None:
    """What waits is written, each by itself."""
    session._pipeline.add(Statement(b"SELECT 1", ()), ())
    session._execute_pipeline()
    session._is_begun = False


def commit_whatever_is_open(session: SqliteSession) -> None:
    if session._connection.in_transaction:
        session._connection.cross(COMMIT)
    session._leave()


SABOTAGES: dict[str, Callable[[], None]] = {
    each.__name__.replace("_", "-"): each
    for each in (
        no_fence,
        early_acknowledge,
        commit_before_recording,
        no_transaction,
        random_ids,
        nothing_accepted,
        deaths_are_failures,
        time_limits_are_deaths,
        abandoned_are_deaths,
        living_look_dead,
        dead_look_alive,
        no_guard,
        no_inbox,
        queue_before_data,
        no_decision,
        nobody_settles,
    )
}


def apply(name: str) -> None:
    SABOTAGES[name]()
