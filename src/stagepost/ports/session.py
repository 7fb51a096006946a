"""A session: one connection to a store, used by one thread, with the transaction that is open on it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from stagepost.flow.errors import CapabilityMissing, StagepostError, StoreError, TransactionEnded
from stagepost.flow.rows import Rows
from stagepost.ports.accepted import Accepted
from stagepost.ports.archives import Archives
from stagepost.ports.audits import Audits
from stagepost.ports.business_keys import BusinessKeys
from stagepost.ports.circuits import Circuits
from stagepost.ports.cursors import Cursors
from stagepost.ports.dead_letters import DeadLetters
from stagepost.ports.decisions import Decisions, Prepared
from stagepost.ports.declarations import Declarations
from stagepost.ports.edge import Edge
from stagepost.ports.effects import Effects
from stagepost.ports.inbox import Inbox
from stagepost.ports.journal import Journal
from stagepost.ports.outbox import NO_BACKLOG, Outbox
from stagepost.ports.queue import Queue
from stagepost.ports.replays import Replays
from stagepost.ports.retention import Retention
from stagepost.ports.runs import Runs
from stagepost.ports.staging import Staging
from stagepost.ports.subscriptions import Subscriptions


class Absent:
    """Stands in a session for a capability that its store lacks. ``answers`` are those of its methods that only look.

    Every other attribute raises ``CapabilityMissing``.
    """

    def __init__(self, capability: str, **answers: object) -> None:
        self._capability = capability
        self._answers = answers

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in self._answers:
            raise CapabilityMissing(self._capability)
        return lambda *_: self._answers[name]


def ended_under(stage: str, how: str, cause: Exception | None) -> TransactionEnded:
    """Return the error of a transaction that ended under its handler; ``how`` says how a handler can end one."""
    ended = TransactionEnded(f"the transaction of {stage} ended while its handler ran: {how}")
    ended.__cause__ = cause
    return ended


class JoinedSession(Protocol):
    """A caller's own connection, on which flows are started in the caller's transaction."""

    @property
    def queue(self) -> Queue: ...

    @property
    def journal(self) -> Journal: ...

    @property
    def accepted(self) -> Accepted: ...

    # Capabilities. A subclass overrides those that its store has.

    @property
    def subscriptions(self) -> Subscriptions:
        raise CapabilityMissing("subscriptions", "Publishing and @app.subscribe need it: send to endpoints instead.")

    @property
    def outbox(self) -> Outbox:
        return Absent("outbox", backlog=NO_BACKLOG, next_at=None)

    @property
    def declarations(self) -> Declarations:
        return Absent("declarations", lock=None, listed=[], put=None, undeclared=[])


class Session(JoinedSession, Protocol):
    """One connection to a store."""

    @property
    def dead_letters(self) -> DeadLetters: ...

    # Capabilities. A subclass overrides those that its store has.

    @property
    def inbox(self) -> Inbox:
        return Absent("inbox", backlog=NO_BACKLOG)

    @property
    def business_keys(self) -> BusinessKeys:
        raise CapabilityMissing("business_keys", "A stage with key= needs it: leave key= out.")

    @property
    def replays(self) -> Replays:
        raise CapabilityMissing("replays")

    @property
    def circuits(self) -> Circuits:
        return Absent("circuits", paused=[])

    @property
    def runs(self) -> Runs:
        raise CapabilityMissing("runs")

    @property
    def staging(self) -> Staging:
        raise CapabilityMissing("staging", "Spark's sink needs it.")

    @property
    def audits(self) -> Audits:
        raise CapabilityMissing("audits")

    @property
    def archives(self) -> Archives:
        return Absent("archives", archive=None, manifests=[], effects_held=None)

    @property
    def cursors(self) -> Cursors:
        raise CapabilityMissing("cursors")

    @property
    def edge(self) -> Edge:
        return Absent("edge", count_death=0, views=[])

    @property
    def effects(self) -> Effects:
        raise CapabilityMissing("effects")

    @property
    def retention(self) -> Retention:
        raise CapabilityMissing("retention")

    @property
    def decisions(self) -> Decisions:
        raise CapabilityMissing("decisions")

    @property
    def prepared(self) -> Prepared:
        raise CapabilityMissing("prepare")

    def begin(self, *, is_durable: bool = True) -> None:
        """Open a write transaction; waits for other writers. Raises ``StoreContention`` and ``StoreUnavailable``.

        A transaction that is not durable may be lost as a whole in a power failure, and in no other way.
        """

    def commit(self) -> None:
        """Commit. Raises ``StoreError`` when nothing was committed, ``CommitUnknown`` when that cannot be told."""

    def rollback(self) -> None:
        """End the open transaction, if there is one, in whatever state it is."""

    def reconnect(self) -> None:
        """Close the connection, with its open transaction, and open another."""

    def close(self) -> None:
        """Close the connection."""

    @property
    def is_begun(self) -> bool:
        """Says that a transaction was begun and has not ended. Any thread may ask."""

    def ending(self, stage: str) -> StagepostError | None:
        """Return why the transaction that ``begin`` opened is no longer open; None while it is open.

        The error is that of Stagepost's own statement that ended it. Else it is a ``TransactionEnded`` that names the
        stage and the remedy, and its cause is the error of the handler's statement that ended it, if one did.
        """

    def atomic(self) -> AbstractContextManager[None]:
        """Undo the writes of the block, and no others, when it raises. The transaction stays open."""

    def lend(self, place: str, touch: Callable[[], None], *, may_answer_late: bool = False) -> None:
        """Let a handler use ``connection`` and ``execute``; calls ``touch`` before each of its statements.

        With ``may_answer_late`` a statement may run when its rows are read; its error may then be raised by another
        statement. Raises ``StoreUnavailable``.
        """

    def catch_up(self) -> None:
        """Run the statements that may answer late. Raises ``StoreError`` and ``LeaseLost``."""

    def take_back(self) -> StoreError | None:
        """Close the handler's cursors, and refuse its further use of the connection.

        Returns the outage that its statements met, if any; an outage counts against no message.
        """

    @property
    def connection(self) -> Any:
        """The driver's connection, as a handler may use it while it is lent."""

    def execute(self, statement: str, parameters: dict[str, Any]) -> Rows:
        """Run a handler's statement with named parameters, ``:name``."""

    def interrupt(self) -> None:
        """Break off the running statement, from another thread."""
