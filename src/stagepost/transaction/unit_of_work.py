"""The stage's transaction as its handler sees it. The handler's first use of the database begins it.

So a handler that first calls other services, and writes last, holds the database only while it writes.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from stagepost.flow.claim import Claim
from stagepost.flow.effects import Effect, EffectId, UndoOrder, UndoRequest
from stagepost.flow.errors import (
    DocumentFull,
    EffectConflict,
    EffectDeferred,
    IdConflict,
    IllegalCall,
    LeaseLost,
    StagepostError,
    StoreError,
    StoreExhausted,
)
from stagepost.flow.initiation import Acceptance, Initiation, Verdict
from stagepost.flow.produced import Produced
from stagepost.flow.rows import Rows
from stagepost.ports.inbox import AlreadyHandled, Handled
from stagepost.transaction.attempt_monitor import AttemptMonitor
from stagepost.transaction.departures import stamp
from stagepost.transaction.documents import DocumentMode
from stagepost.transaction.effects import AttemptEffects
from stagepost.transaction.forks import forks
from stagepost.transaction.mode import TransactionMode
from stagepost.transaction.outcome import Buried, Completed, Outcome, Redelivered
from stagepost.transaction.queue_commit import QueueCommit
from stagepost.transaction.scopes import Scope
from stagepost.transaction.sinks import SinkChain
from stagepost.transaction.stage import without_effects
from stagepost.transaction.steps import Step
from stagepost.transaction.user_sessions import UserSession, UserSessions

T = TypeVar("T")

# Writes acceptances and commits them, independently of the stage.
Write = Callable[[Sequence[Acceptance]], Sequence[Verdict]]
# Scope and key of each flow that was started in the open transaction.
StartedKeys = set[tuple[str, str]]

# The exit code EX_SOFTWARE.
EXIT_FORKED = 70

logger = logging.getLogger(__name__)


class UnitOfWork:
    """The transaction of one attempt.

    ``session``       the one that the handlers work on
    ``is_handlers``   whether the handler opened the transaction, so that a rollback undoes its work
    ``effects``       the effects of the claim; None for a stage that may call none
    ``scope``         the services of the envelope, opened by the outermost sink; None for an app without scopes
    ``sinks``         the sinks around the handlers; None for an app without sinks
    ``has_document``  whether the handler used the message's document
    ``interruption``  the error that ended the transaction, even if the handler caught it
    ``has_departed``, ``has_departure_ended``  whether the message may have left, and whether its end is known
    """

    def __init__(
        self,
        claim: Claim,
        mode: TransactionMode,
        monitor: AttemptMonitor,
        queue_commit: QueueCommit,
        write_apart: Write | None,
        joined: StartedKeys,
        user_sessions: UserSessions,
    ) -> None:
        self._claim = claim
        self._mode = mode
        self.session = mode.session
        self._monitor = monitor
        self._queue_commit = queue_commit
        self._write_apart = write_apart
        self._joined = joined
        self._user_sessions = user_sessions
        self._user_session: UserSession | None = None
        self._forks = forks.count
        self._thread = threading.get_ident()
        self._is_begun = False
        self._produced: Produced | None = None
        self.is_handlers = False
        self.has_document = False
        self.effects: AttemptEffects | None = None
        self.sinks: SinkChain | None = None
        self.scope: Scope | None = None
        self.interruption: StagepostError | None = None
        self.has_departed = False
        self.has_departure_ended = False

    def begin(self) -> None:
        """Open the transaction and admit the message, once."""
        if self._is_begun:
            return
        with self._monitor.waiting():
            self._mode.begin(self._claim)
            self._is_begun = self.session.is_begun
        if not self._is_begun:
            # The mode has no transaction of a database.
            return
        self._queue_commit.listener(Step.BEGUN, self._claim)
        self._queue_commit.listener(Step.ADMITTED, self._claim)

    def check_caller(self, call: str) -> None:
        if forks.count != self._forks:
            raise IllegalCall(
                f"a process forked by the handler of {self._claim.stage} used {call}, which is its parent's. "
                "Fork no process in a handler, or give it work that needs neither ctx nor the app; start flows from "
                "what it returns."
            )
        if threading.get_ident() != self._thread:
            raise IllegalCall(
                f"{call} of {self._claim.stage} was used in another thread than its handler's: a run, its ids and its "
                "transaction belong to one. Collect in the thread; write and send in the handler."
            )

    def touch(self) -> None:
        """Begin the transaction, or check that it is still open. Each statement of the handler calls this first."""
        self.check_caller("its transaction")
        self._check_has_database()
        if self.interruption is not None:
            raise self.interruption
        if isinstance(self._mode, DocumentMode):
            raise IllegalCall(
                f"{self._claim.stage} has a document, and used the database: a crash between the two writes would lose "
                "the database's. Send a message to a stage that writes there."
            )
        if self._is_begun:
            self._check_open()
            return
        try:
            self.begin()
        except (StoreError, LeaseLost, AlreadyHandled, IdConflict) as error:
            self.interruption = error
            raise
        self.is_handlers = True

    def mark_sent(self, stage: str, message_id: str) -> None:
        """Mark an inbox row as sent, in the open transaction."""
        self.touch()
        self.session.inbox.mark(stage, message_id)

    @property
    def connection(self) -> Any:
        """The session's connection. Reading it begins the transaction, because not every use of it can be seen."""
        self.touch()
        return self.session.connection

    def execute(self, statement: str, parameters: dict[str, Any]) -> Rows:
        return self.session.execute(statement, parameters)

    def effect(self, effect: Effect[Any, Any], index: int, handler: str, ordinal: int, request: Any) -> Any:
        """Return the result of an effect: see ``AttemptEffects.perform``. An error of the log ends the attempt."""
        wanted = EffectId(self._claim.message_id, self._claim.stage, index, handler, effect.name, ordinal)
        with self._logging() as effects:
            return effects.perform(effect, wanted, request)

    def effect_to_undo(self, effect: Effect[Any, Any], order: UndoOrder) -> tuple[int, UndoRequest] | None:
        with self._logging() as effects:
            return effects.to_undo(effect, order)

    def effect_undone(self, row: int) -> None:
        with self._logging() as effects:
            effects.undone(row)

    @contextmanager
    def _logging(self) -> Iterator[AttemptEffects]:
        """Lend the claim's effects. An error of the log ends the attempt, even if the handler catches it."""
        if isinstance(self._mode, DocumentMode):
            raise IllegalCall(
                f"{self._claim.stage} has a document, and called an effect: a message that its document recognises "
                "runs no handler that could be given the result. Call the effect in a stage of its own."
            )
        if self.effects is None:
            raise IllegalCall(without_effects(self._claim.stage))
        if self.interruption is not None:
            raise self.interruption
        try:
            yield self.effects
        except (StoreError, LeaseLost, EffectDeferred, EffectConflict) as error:
            self.interruption = error
            raise

    @property
    def user_session(self) -> Any:
        """The user's own session, made at the first use. Its first statement begins the transaction."""
        self.check_caller("ctx.session")
        self._check_has_database()
        return self.open_user_session().handle

    def open_user_session(self) -> UserSession:
        if self._user_session is None:
            self._user_session = self._user_sessions.open(self.session.connection, self._claim.stage)
        return self._user_session

    def _check_has_database(self) -> None:
        if not self._mode.has_database:
            raise IllegalCall(
                f"{self._claim.stage} has mode='transport' and used its database: the broker's transaction commits "
                "messages alone. Use mode='best_effort', or leave mode= out."
            )

    @property
    def has_user_session(self) -> bool:
        return self._user_session is not None

    def flush_user_session(self) -> Sequence[Callable[[], object]]:
        """Write the pending changes of the user's session. Returns its callbacks. Raises its errors."""
        return () if self._user_session is None else self._user_session.flush()

    def end_user_session(self) -> None:
        if self._user_session is not None:
            self._user_session.end()

    @property
    def document(self) -> dict[str, Any]:
        """The message's document. An error of its store ends the attempt, even if the handler catches it."""
        self.check_caller("ctx.document")
        if self.interruption is not None:
            raise self.interruption
        if not isinstance(self._mode, DocumentMode):
            raise IllegalCall(
                f"{self._claim.stage} used ctx.document, and its handlers have no document: put @in_document above one."
            )
        try:
            document = self._mode.open(self._claim)
        except (StoreError, LeaseLost, DocumentFull) as error:
            self.interruption = error
            raise
        self.has_document = True
        return document

    def service(self, wanted: Any) -> Any:
        """Return the scope's service of a type. Raises ``IllegalCall``, and the scope's own errors."""
        if self.scope is None:
            raise IllegalCall(
                f"{self._claim.stage} called ctx.get, and its app has no scopes to get a service from. Give it some: "
                "App(…, scopes=…)."
            )
        return self.scope.get(wanted)

    def guarded(self, statements: Callable[[], T]) -> T:
        """Run statements of the stage's guard in its transaction, which this begins. Raises ``StoreError``."""
        self.touch()
        try:
            return statements()
        except StoreError as error:
            self.interruption = error
            raise

    def enter(self, scope: Scope) -> None:
        self.scope = scope

    def initiate(self, *, independent: bool) -> Initiation:
        if independent and self._write_apart is None:
            raise IllegalCall(
                f"{self._claim.stage} cannot use initiate(independent=True): this store allows one writer at a time, "
                "and has no place for commits apart from it. Use SQLite or PostgreSQL, or start the flow in a stage of "
                "its own."
            )
        write = self._write_independently if independent else self._write
        return Initiation(self._queue_commit.node, self._queue_commit.clock, write)

    def depart(self) -> int | None:
        self.check_caller("a departure")
        if self._is_begun or self.session is not self._queue_commit.session:
            raise IllegalCall(
                f"{self._claim.stage} lets its message depart inside its transaction, or in a mode of two databases. "
                "Let it depart first, in the mode single."
            )
        self.has_departed = True
        with self._monitor.waiting():
            return stamp(self._queue_commit, self._claim)

    def end_departure(self) -> None:
        self.has_departure_ended = True

    def check(self) -> None:
        """Check that the run can commit. Raises the error that prevents it."""
        if self.interruption is not None:
            raise self.interruption
        if self._is_begun:
            self._check_open()

    @property
    def has_ended(self) -> bool:
        """Say whether the transaction was begun and is no longer open."""
        return self._is_begun and self.session.ending(self._claim.stage) is not None

    def end_forked_child(self) -> None:
        """End this process if a handler or sink forked it, because it would settle the message a second time."""
        if forks.count != self._forks:
            logger.critical(
                "process forked by a handler or sink of %s ended, because it returned from there: use os._exit()",
                self._claim.stage,
                extra={"event": "forked-child"},
            )
            os._exit(EXIT_FORKED)

    def complete(self, completed: Completed) -> None:
        """Commit the work. In a batch, the commit of the batch follows."""
        self.begin()
        if self.has_departure_ended:
            self.session.edge.clear([self._claim])
        self._produced = self._mode.complete(self._claim, completed)

    def deliver(self) -> None:
        """Do what follows the commit of the work: the sinks learn of it first."""
        assert self._produced is not None, "only committed work is delivered"
        if self.sinks is not None:
            self.sinks.end(is_committed=True)
        self._mode.deliver(self._claim, self._produced)

    def conclude(self, handled: Handled) -> None:
        self._mode.conclude(self._claim, handled)

    def rollback(self, error: BaseException | None = None) -> None:
        """Roll back, and tell the sinks of it, with the ``error`` that caused it. Committed work stays committed."""
        # These say that another attempt handles the message. Nothing failed.
        failed = None if isinstance(error, AlreadyHandled | LeaseLost) else error
        try:
            self._mode.rollback()
        finally:
            if self.sinks is not None:
                self.sinks.end(is_committed=False, error=failed)

    def must_be_handled_again(self, outcome: Outcome | None) -> bool:
        """Say whether the handlers must run again after the database refused their outcome."""
        if isinstance(outcome, Completed):
            # Their statements are rolled back. Handlers that used nothing need not run again.
            used = self.is_handlers or self.has_user_session or self.has_document
            return used or self.sinks is not None or (self.effects is not None and self.effects.were_called)
        # The database has no room for the failure either, so the message is not at fault.
        return isinstance(outcome, Redelivered | Buried) and isinstance(outcome.error, StoreExhausted)

    def _check_open(self) -> None:
        ending = self.session.ending(self._claim.stage)
        if ending is not None:
            self.interruption = ending
            raise ending

    def _write_independently(self, acceptances: Sequence[Acceptance]) -> Sequence[Verdict]:
        """Write on a connection outside the stages' own, because stages that wait for those would deadlock."""
        assert self._write_apart is not None
        for each in acceptances:
            if (each.scope, each.key) in self._joined:
                raise IllegalCall(
                    f"{self._claim.stage} starts {each.scope} twice under one id ({each.key}), with its own "
                    "transaction and independently of it, so the second start would wait for the first. Use another "
                    "flow_id."
                )
        return self._write_apart(acceptances)

    def _write(self, acceptances: Sequence[Acceptance]) -> Sequence[Verdict]:
        self.touch()
        self._joined.update((each.scope, each.key) for each in acceptances)
        try:
            with self.session.atomic():
                return self._mode.accept(acceptances)
        except (StoreError, LeaseLost) as error:
            self.interruption = error
            raise
