"""When a failed message is tried again, and when not. A pure decision: the caller carries it out."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from stagepost.flow.clock import microseconds
from stagepost.flow.errors import DeclarationError, HandlerError, IdConflict, Refuse, Undecodable

# Another attempt at the same bytes by the same code ends the same way.
ALWAYS_HOPELESS: tuple[type[BaseException], ...] = (Refuse, HandlerError, Undecodable, IdConflict)

DeathReason = Literal["refused", "hopeless", "exhausted", "worker-died"]


@dataclass(frozen=True, slots=True)
class Again:
    """Another attempt, ``after`` microseconds from now."""

    after: int


@dataclass(frozen=True, slots=True)
class Bury:
    reason: DeathReason


@dataclass(frozen=True, slots=True)
class Redelivery:
    """How often, and how far apart, a failed message is attempted again, before it becomes a dead letter.

    The default is one attempt and six redeliveries: 250 ms, 500 ms, 1 s, 2 s, 4 s, 8 s. A message that waits holds up
    nobody. ``jitter`` lengthens each delay by up to that share of it, and never shortens it, so that what failed
    together does not come back together.

    ``hopeless`` names exception types that another attempt cannot help: such a message is dead-lettered at once.
    """

    redeliveries: int = 6
    first_seconds: float = 0.25
    factor: float = 2.0
    cap_seconds: float = 60.0
    jitter: float = 0.15
    hopeless: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        _check("redeliveries", self.redeliveries, self.redeliveries >= 0, "0 or more")
        _check("first_seconds", self.first_seconds, 0 <= self.first_seconds < math.inf, "0 or more")
        _check("factor", self.factor, 1 <= self.factor < math.inf, "1 or more")
        _check(
            "cap_seconds", self.cap_seconds, self.first_seconds <= self.cap_seconds < math.inf, "first_seconds or more"
        )
        _check("jitter", self.jitter, 0 <= self.jitter <= 1, "between 0 and 1")
        for each in self.hopeless:
            if not (isinstance(each, type) and issubclass(each, BaseException)):
                raise DeclarationError(f"Redelivery.hopeless takes exception types, not {each!r}")

    @classmethod
    def exponential(
        cls, redeliveries: int = 6, *, first_seconds: float = 0.25, factor: float = 2.0, cap_seconds: float = 60.0
    ) -> Redelivery:
        return cls(redeliveries=redeliveries, first_seconds=first_seconds, factor=factor, cap_seconds=cap_seconds)

    @classmethod
    def fixed(cls, *, every_seconds: float = 60.0, times: int = 100) -> Redelivery:
        return cls(redeliveries=times, first_seconds=every_seconds, factor=1.0, cap_seconds=every_seconds)

    @classmethod
    def none(cls) -> Redelivery:
        """One attempt, then a dead letter."""
        return cls(redeliveries=0)

    def with_hopeless(self, *types: type[BaseException]) -> Redelivery:
        return replace(self, hopeless=(*self.hopeless, *types))

    def decide(self, failures: int, error: BaseException, random: Random) -> Again | Bury:
        """``failures`` counts this one."""
        if isinstance(error, Refuse):
            return Bury("refused")
        if isinstance(error, (*ALWAYS_HOPELESS, *self.hopeless)):
            return Bury("hopeless")
        if failures > self.redeliveries:
            return Bury("exhausted")
        # The exponent is capped too: 2.0 ** 1100 is an OverflowError, and a policy may ask for that many.
        exponent = min(failures - 1, 64)
        delay = min(self.first_seconds * self.factor**exponent, self.cap_seconds)
        return Again(microseconds(delay * (1 + self.jitter * random.random())))

    def horizon_seconds(self) -> float:
        """The longest time between a message's first attempt and its last, not counting the attempts."""
        delays = (
            min(self.first_seconds * self.factor ** min(n, 64), self.cap_seconds) for n in range(self.redeliveries)
        )
        return sum(delays) * (1 + self.jitter)


def _check(name: str, value: object, holds: bool, rule: str) -> None:
    if not holds:
        raise DeclarationError(f"Redelivery.{name} must be {rule}, not {value!r}")
