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
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

from stagepost.flow import codec
from stagepost.flow.claim import Claim
from stagepost.flow.clock import SECOND, Clock
from stagepost.flow.effects import Effect, EffectId
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
from stagepost.idempotency.effects import AskFirst, CallDecision, CallNow, Conflict, Known, WaitFirst, decide_call
from stagepost.ports.effects import Effects, Intent
from stagepost.ports.session import Session
from stagepost.transaction.attempt_monitor import AttemptMonitor
from stagepost.transaction.steps import Step, StepListener

Fence = tuple[str, str, int]

# An attempt that is this much older than its stage's time limit has ended, or its process was replaced.
OVER_SECONDS = 60.0

logger = logging.getLogger(__name__)


class EffectLog:
    """The log of effects, as all threads of a process use it.

    ``taken``     lends a session of ``Store.apart``, and ``close`` closes those that are not in use
    ``is_alive``  says whether the process of an owner lives, and is not paused
    ``running``   message, stage and token of each attempt of this process that may call effects
    """

    def __init__(
        self,
        taken: Callable[[], AbstractContextManager[Session]],
        close: Callable[[], None],
        clock: Clock,
        is_alive: Callable[[str], bool],
    ) -> None:
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

    def check(self) -> None:
        """Open the log. Raises ``StoreError``."""
        with self._taken():
            pass

    def end_attempt(self, claim: Claim) -> None:
        """Record that the attempt of a claim has ended, for a process that saw it end. Raises ``StoreError``."""
        with self.committing() as effects:
            effects.end_intents(claim.message_id, claim.stage, claim.deliveries)

    def seconds_since(self, moment: int) -> float:
        return (self.clock.now() - moment) / SECOND


class AttemptEffects:
    """The effects of one claim, for all of its runs. ``given`` has the rows of the results that this run was given.

    ``time_limit_seconds`` is that of the stage. An attempt that is older has ended, or its process has.
    """

    def __init__(
        self,
        log: EffectLog,
        claim: Claim,
        node: str,
        monitor: AttemptMonitor,
        listener: StepListener,
        time_limit_seconds: float,
    ) -> None:
        self._log = log
        self._claim = claim
        self._node = node
        self._monitor = monitor
        self._listener = listener
        self._time_limit_seconds = time_limit_seconds
        # Results that the log refused to take, and the intents whose calls ended without a result.
        self._unwritten: dict[int, bytes] = {}
        self._has_unknown = False
        self.given: set[int] = set()
        self._fence = claim.message_id, claim.stage, claim.deliveries
        log.running.add(self._fence)

    def begin_run(self) -> None:
        self.given.clear()

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

    def close(self) -> None:
        self._log.running.discard(self._fence)

    def perform(self, effect: Effect[Any, Any], wanted: EffectId, request: Any) -> Any:
        """Return the effect's result. Raises ``LeaseLost``, ``EffectDeferred``, ``EffectConflict`` and ``StoreError``.

        Raises ``IllegalCall`` for a wrong type, and what the user's functions raise.
        """
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
            is_over=self._is_over,
        )
        if not isinstance(decision, CallNow):
            return decision, None
        row = decision.effect
        if row is None:
            row = effects.add(wanted, claim.flow_id, decision.generation, hashlib.sha256(body).hexdigest(), body)
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

    def _is_over(self, intent: Intent) -> bool:
        claim = self._claim
        if intent.is_over or intent.token == claim.deliveries:
            return True
        if (claim.message_id, claim.stage, intent.token) in self._log.running:
            return False
        if self._log.seconds_since(intent.at) > self._time_limit_seconds + OVER_SECONDS:
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
        self.given.add(row)
        return None if effect.result_type is None else codec.decode(result, effect.result_type)


def _encoded(place: str, verb: str, expected: type | None, value: Any) -> bytes:
    if expected is None:
        if value is not None:
            raise IllegalCall(f"{place} {verb} None, and its call returned a {type(value).__qualname__}")
        return b"null"
    return bytes(encode_message(place, expected, value, verb).body)
