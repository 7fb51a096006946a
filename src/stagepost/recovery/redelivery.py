"""Decide whether a failed message is tried again. The decision is pure: the caller carries it out."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from random import Random

from stagepost.flow.clock import SECONDS_MAX, is_span, microseconds
from stagepost.flow.errors import (
    DeclarationError,
    DeliveryFailed,
    EffectConflict,
    HandlerError,
    IdConflict,
    KeyConflict,
    KeyDuplicate,
    MaybeDelivered,
    Refuse,
    Undecodable,
    WrongAddress,
)
from stagepost.ports.dead_letters import DeathReason

# Another attempt of the same code on the same bytes fails again.
ALWAYS_HOPELESS: tuple[type[BaseException], ...] = (Refuse, HandlerError, WrongAddress, IdConflict, EffectConflict)

# Delays that grow more slowly than this are counted as if they had reached the cap.
GROWING_MAX = 10_000

UNTIL = f"and at most {SECONDS_MAX:.0f}, ten years"


@dataclass(frozen=True, slots=True)
class Again:
    """Redeliver the message ``after`` microseconds from now."""

    after: int


@dataclass(frozen=True, slots=True)
class Bury:
    """Make the message a dead letter."""

    reason: DeathReason


@dataclass(frozen=True, slots=True)
class Redelivery:
    """A policy: how often, and after which delays, a failed message is tried again before it becomes a dead letter.

    The default is one attempt and six redeliveries: 250 ms, 500 ms, 1 s, 2 s, 4 s, 8 s. A waiting message delays no
    other message. ``jitter`` lengthens each delay by up to that fraction of it, so that messages that failed
    together do not come back together. It never shortens a delay.

    ``hopeless`` names exception types that another attempt cannot help: such a message is dead-lettered at once.

    ``blocking`` keeps a failed message on its thread, which runs no other message until this one succeeds or is a dead
    letter. A pause of the stage ends that, and so does a message whose process died: see docs/blocking.md.
    """

    redeliveries: int = 6
    first_seconds: float = 0.25
    factor: float = 2.0
    cap_seconds: float = 60.0
    jitter: float = 0.15
    hopeless: tuple[type[BaseException], ...] = ()
    blocking: bool = False

    def __post_init__(self) -> None:
        whole = isinstance(self.redeliveries, int) and not isinstance(self.redeliveries, bool)
        _check("redeliveries", self.redeliveries, whole and self.redeliveries >= 0, "a whole number, 0 or more")
        _check("first_seconds", self.first_seconds, is_span(self.first_seconds), f"0 or more, {UNTIL}")
        _check("factor", self.factor, _is_number(self.factor) and 1 <= self.factor < math.inf, "1 or more")
        at_least_first = is_span(self.cap_seconds) and self.first_seconds <= self.cap_seconds
        _check("cap_seconds", self.cap_seconds, at_least_first, f"first_seconds or more, {UNTIL}")
        _check("jitter", self.jitter, _is_number(self.jitter) and 0 <= self.jitter <= 1, "between 0 and 1")
        _check("blocking", self.blocking, isinstance(self.blocking, bool), "True or False")
        for each in self.hopeless if isinstance(self.hopeless, tuple) else [self.hopeless]:
            if not (isinstance(self.hopeless, tuple) and isinstance(each, type) and issubclass(each, BaseException)):
                raise DeclarationError(f"Redelivery.hopeless takes exception types, in a tuple, not {each!r}")

    @classmethod
    def exponential(
        cls,
        redeliveries: int = 6,
        *,
        first_seconds: float = 0.25,
        factor: float = 2.0,
        cap_seconds: float = 60.0,
        blocking: bool = False,
    ) -> Redelivery:
        return cls(redeliveries, first_seconds, factor, cap_seconds, blocking=blocking)

    @classmethod
    def fixed(cls, *, every_seconds: float = 60.0, times: int = 100, blocking: bool = False) -> Redelivery:
        return cls(times, every_seconds, 1.0, every_seconds, blocking=blocking)

    @classmethod
    def none(cls) -> Redelivery:
        """Return the policy of one attempt, then a dead letter."""
        return cls(redeliveries=0)

    def with_hopeless(self, *types: type[BaseException]) -> Redelivery:
        return replace(self, hopeless=(*self.hopeless, *types))

    def decide(self, failures: int, error: BaseException, random: Random) -> Again | Bury:
        """Decide what follows a failed attempt. ``failures`` includes this one."""
        if isinstance(error, Refuse):
            return Bury("refused")
        if isinstance(error, KeyConflict):
            return Bury("conflict")
        if isinstance(error, KeyDuplicate):
            return Bury("duplicate")
        if isinstance(error, (*ALWAYS_HOPELESS, *self.hopeless)):
            return Bury("hopeless")
        if isinstance(error, Undecodable):
            return Bury("undecodable")
        if isinstance(error, MaybeDelivered) and (failures > self.redeliveries or not error.may_retry):
            return Bury("maybe-delivered")
        if failures > self.redeliveries:
            return Bury("exhausted")
        seconds = self._delay(failures) * (1 + self.jitter * random.random())
        wanted = error.wait_seconds if isinstance(error, DeliveryFailed) else 0.0
        return Again(microseconds(max(seconds, wanted)))

    def horizon_seconds(self, time_limit_seconds: float) -> float:
        """Return the longest time from the first attempt to the end of the last one, without pauses and outages."""
        delays = 0.0
        for failures in range(1, self.redeliveries + 1):
            delay = self._delay(failures)
            if delay in (0, self.cap_seconds) or failures == GROWING_MAX:
                delays += (self.redeliveries - failures + 1) * (self.cap_seconds if delay else 0)
                break
            delays += delay
        return delays * (1 + self.jitter) + (self.redeliveries + 1) * time_limit_seconds

    def _delay(self, failures: int) -> float:
        """Return the delay after ``failures``, in seconds, without the jitter.

        It compares logarithms, because powers overflow.
        """
        if self.first_seconds == 0:
            return 0.0
        growth = (failures - 1) * math.log(self.factor)
        if growth >= math.log(self.cap_seconds / self.first_seconds):
            return self.cap_seconds
        return min(self.first_seconds * self.factor ** (failures - 1), self.cap_seconds)


def check_redelivery(value: object) -> Redelivery:
    if not isinstance(value, Redelivery):
        raise DeclarationError(f"redelivery must be a Redelivery, such as Redelivery.exponential(6), not {value!r}")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check(name: str, value: object, holds: bool, rule: str) -> None:
    if not holds:
        raise DeclarationError(f"Redelivery.{name} must be {rule}, not {value!r}")
