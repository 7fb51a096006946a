"""Run attempts at claimed messages: call the handlers, judge the result, and settle it.

``AttemptRunner`` has all of these steps, in order. The stage's transaction mode decides how the work, the message and
the messages it sends commit together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from contextvars import ContextVar
from functools import partial, update_wrapper
from random import Random

from stagepost.flow.claim import Claim
from stagepost.flow.codec import decode, decode_addressed
from stagepost.flow.context import Context, finish, reply_again
from stagepost.flow.envelope import Envelope
from stagepost.flow.errors import (
    ConnectionLost,
    StoreError,
    StoreUnavailable,
)
from stagepost.flow.run import HandlerResult, Limits, MessageRun
from stagepost.transaction.attempt_monitor import AttemptMonitor
from stagepost.transaction.batches import BatchAttempt
from stagepost.transaction.database_wait import StopSignal, log_unavailable
from stagepost.transaction.effects import AttemptEffects
from stagepost.transaction.enqueueing import attempt_of
from stagepost.transaction.event_loop import EventLoop
from stagepost.transaction.guards import KeyGuard, KeyTaken
from stagepost.transaction.handler_errors import clear_frames, with_limit
from stagepost.transaction.mode import TransactionMode
from stagepost.transaction.outcome import (
    Abandoned,
    AnsweredWithFailure,
    Buried,
    Completed,
    Duplicate,
    Lost,
    Outcome,
    Redelivered,
    Returned,
    failure,
)
from stagepost.transaction.queue_commit import QueueCommit
from stagepost.transaction.refusal import outcome_of_interruption, outcome_of_refusal
from stagepost.transaction.scopes import Scopes, ScopeSink
from stagepost.transaction.settling import Settlement
from stagepost.transaction.sinks import SinkChain, SinkFactory
from stagepost.transaction.stage import Guard, Handler, Stage
from stagepost.transaction.steps import Halt, Step
from stagepost.transaction.unit_of_work import StartedKeys, UnitOfWork, Write
from stagepost.transaction.user_sessions import DefaultSessions, UserSessions

PAUSE_SECONDS_FIRST = 0.05
PAUSE_SECONDS_MAX = 2.0

ABANDONED = Abandoned()

logger = logging.getLogger(__name__)

AfterCommit = Callable[[Claim, Sequence[Callable[[], object]]], None]


class AttemptRunner:
    """Runs attempts, one at a time, on one session. Each worker thread, Spark task or simulator has its own.

    ``running`` holds the unit of work of the handler that runs, for code that this handler calls. ``sinks`` make the
    sinks around the handlers of each envelope, the outermost first. ``scopes`` opens the services of each envelope,
    ``user_sessions`` the sessions of its handlers.
    """

    def __init__(
        self,
        stages: Mapping[str, Stage],
        queue_commit: QueueCommit,
        modes: Mapping[str, TransactionMode],
        *,
        random: Random,
        limits: Limits,
        monitor: AttemptMonitor,
        stop: StopSignal,
        after_commit: AfterCommit,
        running: ContextVar[UnitOfWork | None],
        write_apart: Write | None,
        sinks: Sequence[SinkFactory] = (),
        scopes: Scopes | None = None,
        user_sessions: UserSessions | None = None,
    ) -> None:
        self._stages = stages
        self._queue_commit = queue_commit
        self._modes = modes
        self._clock = queue_commit.clock
        self._random = random
        self._monitor = monitor
        self._stop = stop
        self._listener = queue_commit.listener
        self._after_commit = after_commit
        self._running = running
        self._write_apart = write_apart
        self._sinks = sinks
        self._scopes = scopes
        self._limits = limits
        self._user_sessions = user_sessions or DefaultSessions()
        self._loop = EventLoop()
        self._settlement = Settlement(queue_commit)

    def run(self, claim: Claim) -> Outcome:
        """Handle the message and settle it. Afterwards no transaction is open, even after an error."""
        stage = self._stages[claim.stage]
        self._monitor.started(claim, stage.time_limit_seconds)
        try:
            outcome = self._attempt(stage, claim)
        except Exception:
            self._modes[claim.stage].rollback()
            # The message stays recorded as running: if this error ends the process, that is a death of the message.
            self._monitor.ended(is_settled=True)
            raise
        except BaseException:
            self._monitor.ended(is_settled=False)
            raise
        self._monitor.ended(is_settled=outcome is not ABANDONED)
        if isinstance(outcome, Completed):
            self._follow_up(claim, outcome)
        return outcome

    def run_batch(self, claims: Sequence[Claim]) -> Sequence[Outcome]:
        """Handle messages of one stage in one transaction. If that fails, handle each of them alone.

        There are fewer outcomes than claims if the last outcome's message is kept: the others did not run.
        """
        stage = self._stages[claims[0].stage]
        completed = BatchAttempt(self._queue_commit, self._monitor, claims).run(
            self._unit_of_work,
            lambda claim, unit: self._handle(stage, claim, unit, may_answer_late=True),
            stage.time_limit_seconds,
        )
        if not completed:
            return self._run_each(claims)
        for claim, each in zip(claims, completed, strict=True):
            self._follow_up(claim, each)
        return completed

    def put_off(self, claim: Claim, after: int, why: str) -> None:
        """Give a message back that does not run, uncounted. It comes again ``after`` microseconds."""
        self._settlement.settle(self._stages[claim.stage], claim, Returned(after, why))

    def _run_each(self, claims: Sequence[Claim]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for claim in claims:
            outcome = self.run(claim)
            outcomes.append(outcome)
            if isinstance(outcome, Redelivered) and outcome.kept is not None:
                break
        return outcomes

    def _follow_up(self, claim: Claim, completed: Completed) -> None:
        if completed.callbacks:
            self._after_commit(claim, completed.callbacks)
        self._listener(Step.AFTER_COMMIT, claim)

    def idle(self) -> None:
        """Let the modes do what they put off: the thread has no message at hand."""
        for each in set(self._modes.values()):
            each.idle()

    def close(self) -> None:
        self._loop.close()
        for each in set(self._modes.values()):
            each.close()

    def _attempt(self, stage: Stage, claim: Claim) -> Outcome:
        """Handle the message, then settle it. Repeat this, uncounted, while the database refuses."""
        effects = self._effects_of(claim)
        with nullcontext() if effects is None else closing(effects):
            return self._attempt_with(stage, claim, effects)

    def _attempt_with(self, stage: Stage, claim: Claim, effects: AttemptEffects | None) -> Outcome:
        begin = self._clock.monotonic()
        pause = 0.0
        lost = 0
        outcome: Outcome | None = None
        refused: Outcome | None
        may_be_handled = claim.deliveries > 1 or self._modes[claim.stage].looks_first
        while True:
            unit_of_work = self._unit_of_work(claim, self._modes[claim.stage], set())
            unit_of_work.effects = effects
            try:
                if outcome is None:
                    self._listener(Step.CLAIMED, claim)
                if may_be_handled and (outcome is None or isinstance(outcome, Completed)):
                    self._modes[claim.stage].recognise(claim)
                if outcome is None:
                    outcome = self._handle_guarded(stage, claim, unit_of_work, may_be_handled)
                    if outcome is None:
                        may_be_handled = True
                        continue
                return self._settlement.settle(stage, claim, outcome, unit_of_work)
            except (KeyboardInterrupt, SystemExit) as stopped:
                # The process goes on to end, and may use the session until then.
                unit_of_work.rollback(stopped)
                raise
            except Exception as error:  # noqa: BLE001 - the failure that is written names it
                unit_of_work.rollback(error)
                lost += isinstance(error, ConnectionLost)
                seconds = self._clock.monotonic() - begin
                refused = outcome_of_refusal(stage, claim, error, outcome, seconds, lost, self._random)
                if refused is None and isinstance(error, StoreUnavailable):
                    log_unavailable(logger, error, pause)
            may_be_handled = True
            if refused is not None:
                outcome = refused
                continue
            if unit_of_work.must_be_handled_again(outcome):
                outcome = None
            if not self._stop.wait(pause):
                return ABANDONED
            pause = min(max(pause * 2, PAUSE_SECONDS_FIRST), PAUSE_SECONDS_MAX)

    def _handle_guarded(
        self, stage: Stage, claim: Claim, unit_of_work: UnitOfWork, may_be_handled: bool
    ) -> Outcome | None:
        """Handle the message. Returns None if its guard found an earlier one at the end, and must now look first."""
        is_guarded = may_be_handled or _guard_of(stage, claim) != "reactive"
        try:
            outcome = self._handle(stage, claim, unit_of_work, is_guarded=is_guarded)
        except KeyTaken as taken:
            unit_of_work.rollback(taken)
            return None
        if is_guarded or isinstance(outcome, Completed | Duplicate | Lost | Returned):
            return outcome
        # The failure may come from a duplicate, whose own unique key may have fired.
        unit_of_work.rollback(outcome.error if isinstance(outcome, Redelivered | Buried) else None)
        self._modes[claim.stage].recognise(claim)
        is_readable = not (isinstance(outcome, Buried) and outcome.reason == "undecodable")
        keys = self._keys_of(stage, claim, decode_addressed(claim), unit_of_work) if is_readable else None
        return None if keys is not None and keys.look() else outcome

    def _handle(
        self,
        stage: Stage,
        claim: Claim,
        unit_of_work: UnitOfWork,
        *,
        may_answer_late: bool = False,
        is_guarded: bool = True,
    ) -> Outcome:
        """Run the handlers inside their sinks, and return the outcome, also after any exception of theirs."""
        handle = partial(self._handle_here, stage, claim, unit_of_work, may_answer_late, is_guarded)
        return handle() if unit_of_work.sinks is None else unit_of_work.sinks.context.run(handle)

    def _handle_here(
        self, stage: Stage, claim: Claim, unit_of_work: UnitOfWork, may_answer_late: bool, is_guarded: bool
    ) -> Outcome:
        result = HandlerResult()
        sinks = unit_of_work.sinks
        error: BaseException | None = None
        outage: StoreError | None = None
        begin = self._clock.monotonic()
        session = self._modes[claim.stage].session
        effects = unit_of_work.effects
        if effects is not None:
            effects.begin_run()
        session.lend(claim.stage, unit_of_work.touch, may_answer_late=may_answer_late)
        token = self._running.set(unit_of_work)
        try:
            envelope = decode_addressed(claim)
            if self._user_sessions.is_ambient:
                unit_of_work.open_user_session()
            if sinks is not None:
                sinks.initialize(envelope)
            if stage.is_async:
                self._loop.begin_attempt()
            with self._monitor.handling(self._loop.interrupt if stage.is_async else None):
                self._handle_messages(stage, claim, envelope, unit_of_work, result, is_guarded=is_guarded)
            if sinks is not None and result.is_to_commit:
                unit_of_work.check()
                sinks.before_commit(result.outgoing)
        except Halt:
            raise
        except BaseException as raised:  # noqa: BLE001 - SystemExit and MemoryError are failed attempts too
            error = with_limit(raised, stage)
        finally:
            unit_of_work.end_forked_child()
            self._monitor.handled()
            self._running.reset(token)
            result.is_closed = True
            try:
                unit_of_work.end_user_session()
            finally:
                outage = session.take_back()
        if effects is not None:
            effects.end_run()
        if outage is not None and (error is not None or unit_of_work.has_ended):
            # An outage counts against no message, even if the handler answered it with another error.
            raise outage from error
        if error is not None and unit_of_work.has_ended:
            clear_frames(error)
        ms = (self._clock.monotonic() - begin) * 1000
        return self._judge(stage, claim, unit_of_work, result, error, ms)

    def _handle_messages(
        self,
        stage: Stage,
        claim: Claim,
        envelope: Envelope,
        unit_of_work: UnitOfWork,
        result: HandlerResult,
        *,
        is_guarded: bool,
    ) -> None:
        """Run the handlers of each message, but not of duplicates by the business key.

        ``is_guarded``  the keys are admitted before the handlers run, and not after them
        """
        if _guard_of(stage, claim) == "proactive":
            unit_of_work.touch()
        keys = self._keys_of(stage, claim, envelope, unit_of_work)
        if keys is not None and is_guarded:
            unit_of_work.guarded(keys.admit)
        for index, message in enumerate(envelope.messages):
            run = MessageRun()
            is_duplicate = keys is not None and keys.is_duplicate(index)
            for handler in stage.handlers if stage.by_type is None else stage.handlers_of(message):
                context = Context(
                    handler.position,
                    envelope,
                    message,
                    index,
                    attempt=attempt_of(claim),
                    is_redelivery=claim.deliveries > 1,
                    unit_of_work=unit_of_work,
                    result=result,
                    clock=self._clock,
                    limits=self._limits,
                    run=run,
                )
                if keys is not None and is_duplicate:
                    reply_again(context, keys.stored_reply(index))
                    break
                self._call(handler, context, message.body, is_async=stage.is_async)
                result.callbacks += unit_of_work.flush_user_session()
            if keys is not None and not is_duplicate:
                keys.note_reply(index, run.reply)
        if keys is not None:
            unit_of_work.guarded(keys.keep if is_guarded else keys.admit_late)
            result.detail = keys.detail or result.detail

    def _keys_of(self, stage: Stage, claim: Claim, envelope: Envelope, unit_of_work: UnitOfWork) -> KeyGuard | None:
        """Return the guard of the envelope's single messages; None where it has nothing to do."""
        has_ids = self._modes[claim.stage].has_inbox and any(each.id is not None for each in envelope.messages)
        if not stage.keys and not has_ids:
            return None
        return KeyGuard(stage, envelope, unit_of_work.session, self._clock.now(), has_ids=has_ids)

    def _call(self, handler: Handler, context: Context, body: bytes, *, is_async: bool) -> None:
        """Call a handler, plain or ``async def``, on one message."""
        message = decode(body, handler.message_type)
        arguments = (context, context.state, message) if handler.takes_state else (context, message)
        function = handler.function
        if handler.services:
            services = {name: context.get(wanted) for name, wanted in handler.services.items()}
            function = update_wrapper(partial(function, **services), function)
        returned = self._loop.run(function, arguments) if is_async else function(*arguments)
        finish(context, returned)

    def _judge(
        self,
        stage: Stage,
        claim: Claim,
        unit_of_work: UnitOfWork,
        result: HandlerResult,
        error: BaseException | None,
        ms: float,
    ) -> Outcome:
        """Return the outcome of the handlers.

        The database's error comes first, and then the handler's own decision, because the handler may have caught
        either. The raised error comes last.
        """
        try:
            unit_of_work.check()
        except Exception as interruption:  # noqa: BLE001 - the error becomes the attempt's outcome
            outcome = outcome_of_interruption(stage, claim, interruption, self._random, ms)
            if outcome is not None:
                return outcome
            error = error or interruption
        if result.refusal is not None:
            return Buried("refused", result.refusal, ms, result.report)
        if result.failure_reply is not None:
            return AnsweredWithFailure(result.failure_reply, ms)
        if error is not None:
            return failure(stage, claim, error, self._random, ms)
        self._listener(Step.HANDLED, claim)
        detail = result.detail if result.amount is None else result.detail_with_amount
        return Completed(result.outgoing, result.callbacks, ms, detail)

    def _effects_of(self, claim: Claim) -> AttemptEffects | None:
        log = self._queue_commit.effects
        if log is None or claim.stage not in log.stages:
            return None
        return AttemptEffects(log, claim, self._queue_commit.node, self._monitor, self._listener)

    def _unit_of_work(self, claim: Claim, mode: TransactionMode, joined: StartedKeys) -> UnitOfWork:
        unit = UnitOfWork(
            claim, mode, self._monitor, self._queue_commit, self._write_apart, joined, self._user_sessions
        )
        factories = self._sinks
        if self._scopes is not None:
            factories = (partial(ScopeSink, self._scopes, unit.enter), *factories)
        if factories:
            unit.sinks = SinkChain(factories, claim, self._monitor, unit.end_forked_child)
        return unit


def _guard_of(stage: Stage, claim: Claim) -> Guard | None:
    # Most stages have none, and then this costs nothing.
    return stage.guard_of(claim) if stage.guards else None
