"""One attempt at one claimed envelope: handled, judged, settled.

Read ``StageTransaction`` from top to bottom: that is the whole story, but for how the work, the message and what it
sends come to be one, which is the stage's demarcation mode.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from random import Random

from stagepost.flow.claim import Claim
from stagepost.flow.context import Context, Limits
from stagepost.flow.envelope import Envelope, decode_envelope
from stagepost.flow.errors import (
    ConnectionLost,
    FailureUnwritable,
    IdConflict,
    LeaseLost,
    StoreContention,
    StoreError,
    StoreExhausted,
    StoreUnavailable,
    TimeLimitExceeded,
    Undecodable,
    WrongAddress,
)
from stagepost.flow.inbox import AlreadyHandled
from stagepost.recovery.deadletter import safe_text
from stagepost.recovery.redelivery import Again, Bury
from stagepost.recovery.suspicion import is_death
from stagepost.transaction.batch import Batch
from stagepost.transaction.demarcation import Demarcation
from stagepost.transaction.handling import EventLoop, run_handler
from stagepost.transaction.outcome import (
    Abandoned,
    AnsweredWithFailure,
    Buried,
    Completed,
    Duplicate,
    Lost,
    Outcome,
    Redelivered,
    death,
)
from stagepost.transaction.post import Post
from stagepost.transaction.seams import Patience, Watch
from stagepost.transaction.settling import Settlement
from stagepost.transaction.stage import Stage
from stagepost.transaction.steps import Halt, Step
from stagepost.transaction.workspace import Joined, StageWorkspace, Write

# What a database that answers refuses for this long is a fault somebody must be told of.
UNCOUNTED_SECONDS_MAX = 600.0
PAUSE_SECONDS_FIRST = 0.05
PAUSE_SECONDS_MAX = 2.0

ABANDONED = Abandoned()

logger = logging.getLogger(__name__)

AfterCommit = Callable[[Claim, Sequence[Callable[[], object]]], None]


class StageTransaction:
    """Runs attempts, one at a time, on one session: a worker thread, a Spark task or a simulator each has its own.

    ``running`` tells code that a handler calls which stage's transaction it is in.
    """

    def __init__(
        self,
        stages: Mapping[str, Stage],
        post: Post,
        demarcations: Mapping[str, Demarcation],
        *,
        random: Random,
        limits: Limits,
        watch: Watch,
        patience: Patience,
        after_commit: AfterCommit,
        running: ContextVar[StageWorkspace | None],
        write_apart: Write | None,
    ) -> None:
        self._stages = stages
        self._post = post
        self._demarcations = demarcations
        self._clock = post.clock
        self._random = random
        self._node = post.node
        self._limits = limits
        self._watch = watch
        self._patience = patience
        self._listener = post.listener
        self._after_commit = after_commit
        self._running = running
        self._write_apart = write_apart
        self._loop = EventLoop()
        self._settlement = Settlement(post.session, post.transport, post.clock, post.node, post.listener)

    def run(self, claim: Claim) -> Outcome:
        """Handle the message and settle it. Afterwards no transaction is open, whatever happened."""
        stage = self._stages[claim.stage]
        self._watch.started(claim, stage.time_limit_seconds)
        try:
            outcome = self._attempt(stage, claim)
        except Exception:
            self._demarcations[claim.stage].rollback()
            # It stays on record as running: that the process ends by it is a death of this message.
            self._watch.ended(is_settled=True)
            raise
        except BaseException:
            self._watch.ended(is_settled=False)
            raise
        self._watch.ended(is_settled=outcome is not ABANDONED)
        if isinstance(outcome, Completed):
            self._follow_up(claim, outcome)
        return outcome

    def run_batch(self, claims: Sequence[Claim]) -> Sequence[Outcome]:
        """Handle messages of one stage that may share a transaction, in one; each alone where that comes to nothing."""
        completed = self._attempt_together(self._stages[claims[0].stage], claims)
        if not completed:
            return [self.run(claim) for claim in claims]
        for claim, each in zip(claims, completed, strict=True):
            self._follow_up(claim, each)
        return completed

    def _follow_up(self, claim: Claim, completed: Completed) -> None:
        if completed.callbacks:
            self._after_commit(claim, completed.callbacks)
        self._listener(Step.AFTER_COMMIT, claim)

    def close(self) -> None:
        self._loop.close()
        for each in set(self._demarcations.values()):
            each.close()

    def _attempt_together(self, stage: Stage, claims: Sequence[Claim]) -> list[Completed]:
        """Empty where anything went wrong with any of them: nothing of it is left then."""
        batch = Batch(self._post, claims)
        joined: Joined = set()
        completed: list[Completed] = []
        is_settled = False
        try:
            for claim in claims:
                self._watch.started(claim, stage.time_limit_seconds)
                self._listener(Step.CLAIMED, claim)
                workspace = self._workspace(claim, batch, joined)
                outcome = self._handle(stage, claim, workspace, may_answer_late=True)
                if not isinstance(outcome, Completed):
                    return []
                workspace.complete(outcome)
                completed.append(outcome)
            with self._watch.handling(None):
                batch.session.catch_up()
            batch.commit()
            is_settled = True
        except Exception as error:  # noqa: BLE001 - handled alone, the message that it is of is told
            logger.info("%d messages of %s are handled one by one: %s", len(claims), stage.address, safe_text(error))
            return []
        finally:
            if not is_settled:
                batch.rollback()
            self._watch.ended(is_settled=is_settled)
        return completed

    def _attempt(self, stage: Stage, claim: Claim) -> Outcome:
        """Handle, then settle: again and again, uncounted, while it is the database that says no."""
        begin = self._clock.monotonic()
        pause = 0.0
        lost = 0
        outcome: Outcome | None = None
        refused: Outcome | None
        may_be_handled = claim.is_redelivery
        while True:
            workspace = self._workspace(claim, self._demarcations[claim.stage], set())
            try:
                if outcome is None:
                    self._listener(Step.CLAIMED, claim)
                if may_be_handled and (outcome is None or isinstance(outcome, Completed)):
                    self._demarcations[claim.stage].recognise(claim)
                if outcome is None:
                    outcome = self._handle(stage, claim, workspace)
                return self._settlement.settle(stage, claim, outcome, workspace)
            except Exception as error:  # noqa: BLE001 - what can be said of it is written with the failure
                workspace.rollback()
                lost += isinstance(error, ConnectionLost)
                refused = self._refused(stage, claim, error, outcome, self._clock.monotonic() - begin, lost)
            may_be_handled = True
            if refused is not None:
                outcome = refused
                continue
            if _must_be_handled_again(outcome, workspace):
                outcome = None
            if not self._patience.wait(pause):
                return ABANDONED
            pause = min(max(pause * 2, PAUSE_SECONDS_FIRST), PAUSE_SECONDS_MAX)

    def _refused(
        self, stage: Stage, claim: Claim, error: Exception, outcome: Outcome | None, seconds: float, lost: int
    ) -> Outcome | None:
        """What an attempt comes to that could not be settled as it was; None while waiting helps. ``lost``: how many
        connections have ended without a word under it."""
        failure = outcome if isinstance(outcome, Redelivered | Buried) else None
        if isinstance(error, StoreUnavailable):
            logger.warning("waiting for the database: %s", error, extra={"event": "database-unavailable"})
        match error:
            case AlreadyHandled():
                return Duplicate(error.handled)
            case LeaseLost():
                return Lost()
            case ConnectionLost() if failure is None and is_death(lost, claim.deaths):
                return death(claim, "the server ended its connection without a word under its own statements")
            case StoreContention() | StoreExhausted() if failure is not None or seconds <= UNCOUNTED_SECONDS_MAX:
                return None
            case StoreUnavailable() if not isinstance(error, StoreExhausted):
                return None
        if failure is None:
            return self._failed(stage, claim, error, 0.0)
        if isinstance(failure.error, FailureUnwritable):
            # Not even that can be written, so it is not the failure's text.
            raise error
        unwritable = FailureUnwritable(f"the attempt failed, and its failure cannot be written: {safe_text(error)}")
        return self._failed(stage, claim, unwritable, 0.0)

    def _handle(
        self, stage: Stage, claim: Claim, workspace: StageWorkspace, *, may_answer_late: bool = False
    ) -> Outcome:
        """Run the handlers; whatever they do, say what it came to."""
        contexts: list[Context] = []
        error: BaseException | None = None
        outage: StoreError | None = None
        begin = self._clock.monotonic()
        session = self._demarcations[claim.stage].session
        session.lend(stage.address, workspace.touch, may_answer_late=may_answer_late)
        token = self._running.set(workspace)
        try:
            with self._watch.handling(self._loop.interrupt if stage.is_async else None):
                envelope = decode_addressed(claim)
                for index, message in enumerate(envelope.messages):
                    context = Context(
                        stage.position,
                        envelope,
                        message,
                        index,
                        attempt=claim.attempt,
                        is_redelivery=claim.is_redelivery,
                        workspace=workspace,
                        clock=self._clock,
                        limits=self._limits,
                    )
                    contexts.append(context)
                    run_handler(stage, context, message.body, self._loop)
        except Halt:
            raise
        except BaseException as raised:  # noqa: BLE001 - SystemExit and MemoryError too are just a failed attempt
            error = _told(raised, stage)
        finally:
            workspace.end_forked_child()
            self._watch.handled()
            self._running.reset(token)
            for context in contexts:
                context.close()
            outage = session.take_back()
        if outage is not None and (error is not None or workspace.has_ended):
            # It counts against no message, whatever the handler made of it.
            raise outage from error
        if error is not None and workspace.has_ended:
            _let_go(error)
        ms = (self._clock.monotonic() - begin) * 1000
        return self._judge(stage, claim, workspace, contexts, error, ms)

    def _judge(
        self,
        stage: Stage,
        claim: Claim,
        workspace: StageWorkspace,
        contexts: Sequence[Context],
        error: BaseException | None,
        ms: float,
    ) -> Outcome:
        """First what the database said, for the handler may have caught it; then what the handler decided, for it may
        have caught that too; then what it raised."""
        try:
            workspace.check()
        except LeaseLost:
            return Lost()
        except AlreadyHandled as again:
            return Duplicate(again.handled)
        except IdConflict as conflict:
            return self._failed(stage, claim, conflict, ms)
        except (StoreContention, StoreUnavailable):
            raise
        except Exception as interruption:  # noqa: BLE001 - it becomes the attempt's failure
            error = error or interruption
        for context in contexts:
            if context.refusal is not None:
                return self._failed(stage, claim, context.refusal, ms)
            if context.failure_reply is not None:
                return AnsweredWithFailure(context.failure_reply, ms)
        if error is not None:
            return self._failed(stage, claim, error, ms)
        self._listener(Step.HANDLED, claim)
        return Completed(
            [each for context in contexts for each in context.outgoing],
            [each for context in contexts for each in context.callbacks],
            ms,
        )

    def _failed(self, stage: Stage, claim: Claim, error: BaseException, ms: float) -> Redelivered | Buried:
        match stage.redelivery.decide(claim.failures + 1, error, self._random):
            case Again(after):
                return Redelivered(after, error, ms)
            case Bury(reason):
                return Buried(reason, error, ms)

    def _workspace(self, claim: Claim, demarcation: Demarcation, joined: Joined) -> StageWorkspace:
        place = self._watch, self._listener, self._clock, self._node
        return StageWorkspace(claim, demarcation, *place, self._write_apart, joined)


def _must_be_handled_again(outcome: Outcome | None, workspace: StageWorkspace) -> bool:
    """After the database refused what it came to."""
    if isinstance(outcome, Completed):
        # What the handler wrote is rolled back. One that only computed need not run again.
        return workspace.is_handlers
    # Where there is no room for the failure either, it is not this message's doing.
    return isinstance(outcome, Redelivered | Buried) and isinstance(outcome.error, StoreExhausted)


def _told(error: BaseException, stage: Stage) -> BaseException:
    """Raised in another thread, it could not say whose limit it was."""
    if not isinstance(error, TimeLimitExceeded):
        return error
    told = TimeLimitExceeded(f"the attempt took longer than the time_limit of {stage.time_limit_seconds:g} s")
    return told.with_traceback(error.__traceback__)


def _let_go(error: BaseException) -> None:
    """Free what the handler's frames hold: a name for a connection that it closed, by whatever way, would keep the
    transaction open, and with it the database locked, for as long as the error is kept."""
    chain: list[BaseException | None] = [error]
    seen: set[int] = set()
    while chain:
        each = chain.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            traceback.clear_frames(each.__traceback__)
            chain += [each.__cause__, each.__context__]


def decode_addressed(claim: Claim) -> Envelope:
    envelope = decode_envelope(claim.envelope)
    if envelope.to != claim.stage:
        raise WrongAddress(f"found in the queue of {claim.stage}, but addressed to {envelope.to}")
    if not envelope.messages:
        raise Undecodable("an envelope without a message")
    return envelope
