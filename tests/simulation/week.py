"""A week of traffic on a real store with an injected clock, and a model of what its purges may remove.

The model counts hours like the store and is told what was started, so it knows which ids must still be recognised and
which lines must still be there. ``violations`` says where the store does otherwise.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from random import Random

from stagepost import App, Context, Redelivery
from stagepost.flow.clock import HOUR
from stagepost.ports.dead_letters import Selection
from stagepost.ports.journal import Position, Span
from stagepost.ports.registry import driver_of
from stagepost.runtime.purge_service import count_hour, purge_all
from stagepost.testing import Harness, ManualClock
from stagepost.transaction.purge_batches import OF_A_BATCH
from stagepost.transaction.queue_commit import committing
from stagepost.transaction.retention import Rules
from tests.store.exported import exported
from tests.waiting import PATIENCE_SECONDS

DAY = 24
WEEK = 7 * DAY
OUTAGE = 8 * DAY
READER = "warehouse"
TOGETHER = 100

# A purge of its own process, which kills itself at a passing of a step.
VICTIM = """
import json, os, signal, sys
from stagepost.flow.clock import SystemClock
from stagepost.ports.registry import driver_of
from stagepost.runtime.access import Access
from stagepost.runtime.purge_service import purge_all
from stagepost.transaction import purge_batches
from stagepost.transaction.retention import Rules

url, rules, wanted, number = sys.argv[1:]
purge_batches.BATCH = 20
passed = 0

def listen(step):
    global passed
    passed += step.value == wanted
    if passed == int(number):
        os.kill(os.getpid(), signal.SIGKILL)

access = Access(driver_of(url).open_existing(url, "here").session(), SystemClock())
list(purge_all(access, rules=Rules(json.loads(rules)), listener=listen))
"""


@dataclass(frozen=True)
class Plan:
    """The size of a week. ``early_hours`` makes the purge break its promise by so much."""

    messages: int
    duplicates: int
    purges: int
    kills: int
    ids_hours: int = 3 * DAY
    journal_hours: int = 2 * DAY
    early_hours: int = 0


@dataclass
class Order:
    number: int
    is_lost: bool


@dataclass
class Sent:
    """A started flow. ``hour`` is the number of hours that were counted then."""

    number: int
    hour: int
    is_lost: bool


class LeapingClock(ManualClock):
    def leap_to(self, moment: int) -> None:
        self._now = moment


@dataclass
class Week:
    url: str
    plan: Plan
    random: Random
    violations: list[str] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    executed_again: int = 0
    recognised: int = 0
    purged: int = 0
    killed: int = 0
    read: int = 0

    def __post_init__(self) -> None:
        self.clock = LeapingClock()
        self.app = App("week", database=self.url, clock=self.clock, random=self.random)

        @self.app.endpoint("pay", redelivery=Redelivery.none(), pause_after=0)
        def pay(ctx: Context, order: Order) -> None:
            if order.is_lost:
                ctx.refuse("lost")

        self.pay = pay
        self.hours: set[int] = set()
        early = self.plan.early_hours
        self.rules = {"@initiations": self.plan.ids_hours - early, "@journal": self.plan.journal_hours - early}

    def run(self) -> None:
        with closing(Harness(self.app)) as self.harness:
            self.access = self.harness.access
            self._add_reader(self.access.session.journal.position())
            for hour in self._hours():
                self._work(hour)
            self._check_letters()
            self._read()
        if self.read != len(self.sent) + self.executed_again:
            self.violations.append(f"the reader saw {self.read} ends of {len(self.sent)} and {self.executed_again}")

    def _hours(self) -> Iterator[int]:
        """The hours of the week, with a leap of the clock and an outage in it."""
        for hour in range(WEEK):
            self.clock.advance(3600)
            if hour == 2 * DAY:
                now = self.clock.now()
                self.clock.leap_to(now + 40 * DAY * HOUR)
                self._count()
                self._purge(1)
                self.clock.leap_to(now)
            if hour == 5 * DAY:
                self.clock.advance(OUTAGE * 3600)
            yield hour

    def _work(self, hour: int) -> None:
        self._count()
        due = self.plan.messages * (hour + 1) // WEEK - len(self.sent)
        for _ in range(0, due, TOGETHER):
            self._start(min(TOGETHER, self.plan.messages * (hour + 1) // WEEK - len(self.sent)))
        self.harness.drain()
        self._repeat(self.plan.duplicates * (hour + 1) // WEEK - self.plan.duplicates * hour // WEEK)
        self.harness.drain()
        self._purge(self.plan.purges * (hour + 1) // WEEK - self.plan.purges * hour // WEEK)
        if hour % 20 == 19:
            self._read()

    def _count(self) -> None:
        count_hour(self.access, self.clock)
        self.hours.add(self.clock.now() // HOUR)

    def _start(self, count: int) -> None:
        numbers = range(len(self.sent), len(self.sent) + count)
        new = [Sent(number, len(self.hours), self.random.random() < 0.002) for number in numbers]
        with self.app.initiate() as out:
            for each in new:
                out.send(self.pay, Order(each.number, each.is_lost), flow_id=f"order:{each.number}")
        self.sent += new

    def _repeat(self, count: int) -> None:
        """Send some ids again. Within their retention, or while their dead letter lives, they are recognised."""
        for each in self.random.sample(self.sent, min(count, len(self.sent))):
            started = self.app.start(self.pay, Order(each.number, each.is_lost), flow_id=f"order:{each.number}")
            age = len(self.hours) - each.hour
            if not started.is_new:
                self.recognised += 1
                continue
            self.executed_again += 1
            if age <= self.plan.ids_hours or each.is_lost:
                self.violations.append(f"order:{each.number} started again after {age} hours")
            each.hour = len(self.hours)

    def _purge(self, count: int) -> None:
        for _ in range(count):
            self.purged += 1
            if self.killed < self.plan.kills * self.purged // max(self.plan.purges, 1):
                self._purge_and_kill()
            else:
                list(purge_all(self.access, rules=Rules(self.rules)))

    def _purge_and_kill(self) -> None:
        step, number = self.random.choice(OF_A_BATCH).value, str(self.random.randint(1, 3))
        victim = [sys.executable, "-c", VICTIM, self.url, json.dumps(self.rules), step, number]
        self.killed += subprocess.run(victim, timeout=PATIENCE_SECONDS).returncode != 0

    def _add_reader(self, position: Position) -> None:
        with committing(self.access.session):
            self.access.session.cursors.add(READER, position, self.clock.now())

    def _read(self) -> None:
        """Read on where the reader has stopped, as a stream does. A gap is a mark behind its position."""
        session = self.access.session
        cursor = session.cursors.find(READER)
        assert cursor is not None
        export = driver_of(self.url).export(self.url)
        mark = export.purged_until()
        if mark is not None and mark > cursor.position:
            self.violations.append(f"the journal was purged up to {mark}, and its reader is at {cursor.position}")
        end = session.journal.position()
        span = Span(cursor.position, end)
        rows = exported(export, "journal", export.journal_bounds(span), span)
        self.read += sum(row[1] in ("committed", "dead") for row in rows)
        with committing(session):
            session.cursors.advance(READER, end, self.clock.now())

    def _check_letters(self) -> None:
        """No dead letter has lost a line of its history."""
        letters = {each.letter.flow_id for each in self.access.session.dead_letters.select(Selection("all"))}
        lost = {f"order:{each.number}" for each in self.sent if each.is_lost}
        if letters != lost:
            self.violations.append(f"{len(letters)} dead letters of {len(lost)}")
        for flow in letters:
            names = [each.waypoint for each in self.access.session.journal.history(flow)]
            if names != ["accepted", "received", "failed", "dead"]:
                self.violations.append(f"{flow} has the history {names}")
