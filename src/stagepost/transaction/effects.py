"""Call the effects of one claimed message, with the log of effects.

1. The log gets an intent, in a durable commit of its own. The commit refuses a token below the message's highest.
2. The call is made.
3. The log gets the result, in another commit.

A later attempt returns a known result. Where there is an intent and no result, it waits, asks the outside, or calls
again: see ``idempotency.effects``.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

from stagepost.flow import codec
from stagepost.flow.claim import Claim
from stagepost.flow.clock import SECOND, Clock
from stagepost.flow.effects import UNDO_SUFFIX, Effect, EffectId, UndoOrder, UndoRequest
from stagepost.flow.errors import (
    CommitUnknown,
    EffectConflict,
    EffectDeferred,
    IllegalCall,
    LeaseLost,
    NotDone,
    StoreError,
    StoreUnavailable,
    TimeLimitExceeded,
)
from stagepost.flow.initiation import encode_message
from stagepost.idempotency.effects import (
    AskFirst,
    CallDecision,
    CallNow,
    Conflict,
    Doubt,
    Known,
    UndoDecision,
    UndoNow,
    WaitFirst,
    decide_call,
    decide_undo,
)
from stagepost.ports.effects import Effects, Intent, LoggedEffect
from stagepost.ports.session import Session
from stagepost.transaction.attempt_monitor import AttemptMonitor
from stagepost.transaction.steps import Step, StepListener

Fence = tuple[str, str, int]

# An attempt that is this much older than its stage's time limit has ended, or its process was replaced.
OVER_SECONDS = 60.0

logger = logging.getLogger(__name__)


class EffectLog:
    """The log of effects, as all threads of a process use it.

    ``effects``   the declared effects by their names
    ``stages``    those that may call effects
    ``time_limit_seconds``  the longest of the stages. An attempt that is older has ended, or its process has
    ``taken``     lends a session of ``Store.apart``, and ``close`` closes those that are not in use
    ``is_alive``  says whether the process of an owner lives, and is not paused
    ``running``   message, stage and token of each attempt of this process that may call effects
    """

    def __init__(
        self,
        effects: Mapping[str, Effect[Any, Any]],
        stages: Collection[str],
        time_limit_seconds: float,
        taken: Callable[[], AbstractContextManager[Session]],
        close: Callable[[], None],
        clock: Clock,
        is_alive: Callable[[str], bool],
    ) -> None:
        self.effects = effects
        self.stages = stages
        self.time_limit_seconds = time_limit_seconds
        self._taken = taken
        self.close = close
        self.clock = clock
        self.is_alive = is_alive
        self.running: set[Fence] = set()

    @contextmanager
    def committing(self) -> Iterator[Effects]:
        """Open a transaction of the log, and commit it at the end of the block. An exception rolls it back.

        Raises ``StoreError``. A commit whose answer is lost may have taken effect; the log shows it to the next reader.
        """
        with self._taken() as session:
            session.begin()
            try:
                yield session.effects
                session.commit()
            except CommitUnknown as error:
                session.reconnect()
                raise StoreUnavailable(f"the log of effects: {error}") from error
            except BaseException:
                session.rollback()
                raise

    @contextmanager
    def reading(self) -> Iterator[Effects]:
        with self._taken() as session:
            yield session.effects

    def not_kept(self, claim: Claim, token: int) -> list[LoggedEffect]:
        """Return the open effects of a message that ends, before the commit that ends it.

        The token is raised first, so that no other attempt adds an effect afterwards. Raises ``LeaseLost``.
        """
        with self.committing() as effects:
            if not effects.raise_token(claim.message_id, claim.stage, token):
                raise LeaseLost.of(claim.message_id, claim.stage)
            return [each for each in effects.of_message(claim.message_id, claim.stage) if each.is_open]

    def doubt(self, logged: LoggedEffect) -> None:
        """Report an effect that may be done, and that nothing undoes."""
        with self.committing() as effects:
            effects.end(logged.row, "doubted")
        report_doubt(logged.id)

    def end_attempt(self, claim: Claim) -> None:
        """Record that the attempt of a claim has ended, for a process that saw it end. Raises ``StoreError``."""
        with self.committing() as effects:
            effects.end_intents(claim.message_id, claim.stage, claim.deliveries)

    def seconds_since(self, moment: int) -> float:
        return (self.clock.now() - moment) / SECOND


class AttemptEffects:
    """The effects of one claim, for all of its runs."""

    def __init__(
        self,
        log: EffectLog,
        claim: Claim,
        node: str,
        monitor: AttemptMonitor,
        listener: StepListener,
    ) -> None:
        self._log = log
        self._claim = claim
        self._node = node
        self._monitor = monitor
        self._listener = listener
        # Results that the log refused to take, and the intents whose calls ended without a result.
        self._unwritten: dict[int, bytes] = {}
        self._has_unknown = False
        # The rows of this run's results, and all rows that any run has touched.
        self._given_now: set[int] = set()
        self._touched: set[int] = set()
        self._fence = claim.message_id, claim.stage, claim.deliveries
        log.running.add(self._fence)

    @property
    def were_called(self) -> bool:
        """True if any run has called one, or was given its known result."""
        return bool(self._touched)

    def begin_run(self) -> None:
        self._given_now.clear()

    def end_run(self) -> None:
        """Record that this run has ended, so that the next one need not wait for its calls."""
        if not self._has_unknown:
            return
        try:
            self._log.end_attempt(self._claim)
        except StoreError as error:
            # The liveness of this process, and the stage's time limit, tell the next attempt the same, later.
            logger.warning(
                "log of effects unavailable, end of the attempt at %s not recorded: %s",
                self._claim.message_id,
                error,
                extra={"event": "effect-log-unavailable", "message_id": self._claim.message_id},
            )

    def not_kept(self) -> list[LoggedEffect]:
        """Return the effects that the commit of this run does not keep. Raises ``LeaseLost`` and ``StoreError``."""
        if self._claim.deliveries == 1 and self._touched <= self._given_now:
            # No earlier claim can have called anything, so nobody's calls are fenced or read.
            return []
        found = self._log.not_kept(self._claim, self._claim.deliveries)
        return [each for each in found if each.row not in self._given_now]

    def close(self) -> None:
        self._log.running.discard(self._fence)

    def perform(self, effect: Effect[Any, Any], wanted: EffectId, request: Any) -> Any:
        """Return the effect's result. Raises ``LeaseLost``, ``EffectDeferred``, ``EffectConflict`` and ``StoreError``.

        Raises ``IllegalCall`` for a wrong type, and what the user's functions raise.
        """
        declared = self._log.effects.get(effect.name.removesuffix(UNDO_SUFFIX))
        if declared is None or declared.undo_at != effect.undo_at:
            raise IllegalCall(
                f"{wanted.stage} calls the effect {effect.name} of another app ({effect.declared_at}), which alone "
                "could undo it. Declare it with this app too."
            )
        body = _encoded(f"the effect {effect.name}", "takes", effect.request_type, request)
        while True:
            begin = self._log.clock.monotonic()
            with self._log.committing() as effects:
                decision, intent = self._decided(effects, effect, wanted, body)
            match decision:
                case Known(row, result):
                    return self._given(effect, row, result)
                case Conflict(called):
                    raise EffectConflict(
                        f"{wanted.stage} called its effect {wanted.name!r} (number {wanted.ordinal + 1}) before with "
                        f"another request (digest {called[:12]}). An attempt must repeat the calls of the one before "
                        "it: take what differs, such as a time, from the message or from an effect."
                    )
                case WaitFirst(seconds, why):
                    raise EffectDeferred(seconds, why)
                case AskFirst(row, generation, until):
                    found = self._ask(effect, request, wanted.key(generation))
                    if found is not None:
                        return self._given(effect, row, self._kept(effect, row, found))
                    with self._log.committing() as effects:
                        effects.withdraw(row, until)
                case CallNow(row, generation):
                    assert intent is not None, "a call has its intent in the log"
                    assert row is not None, "an intent has its effect"
                    result = self._call(effect, request, wanted.key(generation), intent, begin)
                    return self._given(effect, row, self._kept(effect, row, result))

    def to_undo(self, effect: Effect[Any, Any], order: UndoOrder) -> tuple[int, UndoRequest] | None:
        """Return the row of an effect that is to be undone, and the request of its undo. Returns None for nothing.

        It never calls. Where the result is unknown it waits, and asks. Raises as ``perform`` does.
        """
        while True:
            with self._log.committing() as effects:
                decision = self._decided_undo(effects, effect, order)
            match decision:
                case UndoNow(row, request, result):
                    return row, UndoRequest(request, result)
                case WaitFirst(seconds, why):
                    raise EffectDeferred(seconds, why)
                case AskFirst(row, generation, until):
                    with self._log.reading() as effects:
                        logged = effects.find(order.effect)
                    assert logged is not None, "the decision was about it"
                    request = codec.decode(logged.request, effect.request_type)
                    found = self._ask(effect, request, order.effect.key(generation))
                    if found is not None:
                        self._kept(effect, row, found)
                        continue
                    with self._log.committing() as effects:
                        effects.withdraw(row, until)
                case Doubt() | None:
                    return None

    def _decided_undo(self, effects: Effects, effect: Effect[Any, Any], order: UndoOrder) -> UndoDecision | None:
        logged = effects.find(order.effect)
        if logged is None or logged.generation != order.generation:
            return None
        decision = decide_undo(
            logged,
            can_ask=effect.query is not None,
            can_undo=effect.undo is not None,
            settle_after_seconds=effect.settle_after_seconds,
            seconds_since=self._log.seconds_since,
            is_over=lambda intent: self._is_over(order.effect, intent),
        )
        if isinstance(decision, Doubt):
            effects.end(decision.effect, "doubted")
            report_doubt(order.effect)
        return decision

    def undone(self, row: int) -> None:
        """Record that an effect was undone. A later call of it is another generation."""
        with self._log.committing() as effects:
            effects.end(row, "undone")

    def _decided(
        self, effects: Effects, effect: Effect[Any, Any], wanted: EffectId, body: bytes
    ) -> tuple[CallDecision, int | None]:
        """Decide in the open transaction, and write the intent of a call. Returns the decision, and the intent's row.

        The first statement refuses this claim if another one has written a higher token.
        """
        claim, clock = self._claim, self._log.clock
        if not effects.raise_token(*self._fence):
            raise LeaseLost.of(claim.message_id, claim.stage)
        logged = effects.find(wanted)
        if logged is not None:
            self._touched.add(logged.row)
            if logged.ending == "doubted":
                effects.end(logged.row, None)
        if logged is not None and logged.row in self._unwritten:
            result = self._unwritten[logged.row]
            effects.keep(logged.row, result)
            return Known(logged.row, result), None
        decision = decide_call(
            logged,
            hashlib.sha256(body).hexdigest(),
            can_ask=effect.query is not None,
            settle_after_seconds=effect.settle_after_seconds,
            seconds_since=self._log.seconds_since,
            is_over=lambda intent: self._is_over(wanted, intent),
        )
        if not isinstance(decision, CallNow):
            return decision, None
        row = decision.effect
        if row is None:
            row = effects.add(wanted, claim.flow_id, decision.generation, hashlib.sha256(body).hexdigest(), body)
        self._touched.add(row)
        intent = effects.intend(
            row, claim.deliveries, claim.owner, self._node, clock.now(), is_repeat=decision.is_repeat
        )
        if decision.is_repeat:
            logger.warning(
                "effect %s of %s is called again and possibly repeated: an earlier call has no result, and the effect "
                "has no query",
                effect.name,
                claim.message_id,
                extra={"event": "effect-possibly-repeated", "message_id": claim.message_id, "stage": claim.stage},
            )
        return replace(decision, effect=row), intent

    def _is_over(self, wanted: EffectId, intent: Intent) -> bool:
        claim = self._claim
        fence = wanted.message_id, wanted.stage, intent.token
        if intent.is_over or fence == self._fence:
            return True
        if fence in self._log.running:
            return False
        if self._log.seconds_since(intent.at) > self._log.time_limit_seconds + OVER_SECONDS:
            return True
        return intent.owner == claim.owner or not self._log.is_alive(intent.owner)

    def _ask(self, effect: Effect[Any, Any], request: Any, key: str) -> Any:
        assert effect.query is not None
        with self._limited(effect, "query"):
            return effect.query(request, key=key, timeout=effect.timeout_seconds)

    def _call(self, effect: Effect[Any, Any], request: Any, key: str, intent: int, begin: float) -> Any:
        """Call at once, or not at all: the outside is asked only after the call has had its time."""
        claim, clock = self._claim, self._log.clock
        # A run that ends from here on leaves an intent without a result, unless it is withdrawn.
        self._has_unknown = True
        self._listener(Step.INTENDED, claim)
        if clock.monotonic() - begin > effect.settle_after_seconds - effect.timeout_seconds:
            self._withdraw(intent)
            raise EffectDeferred(0, f"the effect {effect.name} was not called: this process stood still before it")
        try:
            with self._limited(effect, "call"):
                result = effect.call(request, key=key, timeout=effect.timeout_seconds)
        except NotDone:
            self._withdraw(intent)
            raise
        self._listener(Step.CALLED, claim)
        return result

    @contextmanager
    def _limited(self, effect: Effect[Any, Any], what: str) -> Iterator[None]:
        clock = self._log.clock
        begin = clock.monotonic()
        try:
            with self._monitor.limited(effect.timeout_seconds):
                yield
        except TimeLimitExceeded as error:
            if clock.monotonic() - begin < effect.timeout_seconds:
                raise
            raise TimeLimitExceeded(
                f"the {what} of the effect {effect.name} took longer than its timeout of {effect.timeout_seconds:g} s"
            ) from error

    def _withdraw(self, intent: int) -> None:
        with self._log.committing() as effects:
            effects.withdraw_one(intent)

    def _kept(self, effect: Effect[Any, Any], row: int, result: Any) -> bytes:
        """Write the result to the log. If the log refuses it, the next run of this claim writes it."""
        what = f"the effect {effect.name}"
        data = _encoded(what, "returns", effect.result_type, result)
        self._unwritten[row] = data
        with self._log.committing() as effects:
            effects.keep(row, data)
        del self._unwritten[row]
        self._listener(Step.KNOWN, self._claim)
        return data

    def _given(self, effect: Effect[Any, Any], row: int, result: bytes) -> Any:
        self._given_now.add(row)
        return None if effect.result_type is None else codec.decode(result, effect.result_type)


def report_doubt(effect: EffectId) -> None:
    logger.error(
        "effect %s of %s is possibly done, not undone: %s ended without it",
        effect.name,
        effect.message_id,
        effect.stage,
        extra={"event": "effect-doubted", "message_id": effect.message_id, "stage": effect.stage},
    )


def _encoded(place: str, verb: str, expected: type | None, value: Any) -> bytes:
    if expected is None:
        if value is not None:
            raise IllegalCall(f"{place} {verb} None, and its call returned a {type(value).__qualname__}")
        return b"null"
    return bytes(encode_message(place, expected, value, verb).body)
