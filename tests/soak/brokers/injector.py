"""Inject faults at random, each kind at its own rate, and count them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from random import Random

from tests.soak.brokers.fleet import Fleet
from tests.soak.brokers.network import SPOILINGS
from tests.soak.brokers.services import DEATHS
from tests.soak.brokers.targets import BrokerTarget

# Two heart-beats and a little more: a suspended process loses its deliveries.
SUSPENDED_SECONDS_MAX = 10.0
AWAY_SECONDS_MAX = 2.0
STALLED_SECONDS_MAX = 6.0
# A broker that has just come back is left alone for this time, so that it does some work.
SPARED_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The faults of a second, by kind.

    ``step_kills``        a process dies at one of its named steps
    ``kills``             a worker process or a broker process is killed at any moment
    ``supervisor_kills``  a supervisor is killed
    ``suspensions``       a process stands still for some seconds
    ``spoilings``         a connection is cut, cut in mid-frame, loses an answer, or falls silent
    ``broker_kills``      the broker is killed, and comes back at the same or at its other address
    ``broker_stalls``     the broker stands still, or the network passes nothing, for some seconds
    """

    step_kills: float = 0.0
    kills: float = 0.0
    supervisor_kills: float = 0.0
    suspensions: float = 0.0
    spoilings: float = 0.0
    broker_kills: float = 0.0
    broker_stalls: float = 0.0


# The kinds that end one of our processes.
KILLS = ("step_kills", "kills", "supervisor_kills")
# At most one of these happens at a time.
OF_THE_BROKER = ("broker_kills", "broker_stalls")


class Injector:
    """``counts`` has the injected faults by kind. ``steps`` are the steps at which processes die."""

    def __init__(
        self,
        rates: Rates,
        fleet: Fleet,
        target: BrokerTarget,
        random: Random,
        steps: tuple[str, ...] = tuple(DEATHS),
    ) -> None:
        self._rates = {each.name: float(getattr(rates, each.name)) for each in fields(rates)}
        self._fleet = fleet
        self._target = target
        self._random = random
        self._steps = steps
        self._suspended: dict[int, float] = {}
        self._pool = ThreadPoolExecutor(1)
        self._broker_fault: Future[None] | None = None
        self._broker_free_at = 0.0
        self.counts: Counter[str] = Counter()
        self._inject: dict[str, Callable[[], bool]] = {
            "step_kills": self._die_at_a_step,
            "kills": lambda: fleet.kill_one(random),
            "supervisor_kills": self._kill_supervisor,
            "suspensions": self._suspend,
            "spoilings": lambda: target.network.spoil(random.choice(SPOILINGS), random),
            "broker_kills": self._replace_broker,
            "broker_stalls": self._stall_broker,
        }
        self._last = time.monotonic()

    def turn(self) -> None:
        """Inject the faults that are due since the last turn."""
        now = time.monotonic()
        passed, self._last = now - self._last, now
        for pid, until in list(self._suspended.items()):
            if now >= until:
                del self._suspended[pid]
                self._fleet.resume(pid)
        if self._broker_fault is not None and self._broker_fault.done():
            self._broker_fault.result()
            self._broker_fault, self._broker_free_at = None, now + SPARED_SECONDS
        for kind, rate in self._rates.items():
            is_due = self._random.random() < rate * passed
            if is_due and self._inject[kind]():
                self.counts[kind] += 1

    def finish(self) -> None:
        """End all faults. What has not happened yet does not count."""
        for pid in self._suspended:
            self._fleet.resume(pid)
        if self._broker_fault is not None:
            self._broker_fault.result()
        self._pool.shutdown()
        for each in self._fleet.left_tickets():
            (self._fleet.tickets / each).unlink(missing_ok=True)
            self.counts["step_kills"] -= 1

    def _die_at_a_step(self) -> bool:
        ticket = self._fleet.tickets / self._random.choice(self._steps)
        if ticket.exists():
            return False
        ticket.touch()
        return True

    def _kill_supervisor(self) -> bool:
        self._fleet.kill_supervisor(self._random)
        return True

    def _suspend(self) -> bool:
        pid = self._fleet.suspend(self._random)
        if pid is None:
            return False
        self._suspended[pid] = time.monotonic() + self._random.uniform(1.0, SUSPENDED_SECONDS_MAX)
        return True

    def _replace_broker(self) -> bool:
        away = self._random.uniform(0.0, AWAY_SECONDS_MAX)
        elsewhere = self._random.random() < 0.5
        return self._at_the_broker(lambda: self._target.replace(away, elsewhere=elsewhere))

    def _stall_broker(self) -> bool:
        seconds = self._random.uniform(1.0, STALLED_SECONDS_MAX)
        stall = self._random.choice([self._target.frozen, self._target.silent])
        return self._at_the_broker(lambda: stall(seconds))

    def _at_the_broker(self, fault: Callable[[], None]) -> bool:
        if self._broker_fault is not None or time.monotonic() < self._broker_free_at:
            return False
        self._broker_fault = self._pool.submit(fault)
        return True
