"""One campaign: start transfers, inject faults, wait until all is done, and compare the books."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import psycopg

from stagepost import App, Target
from tests.quiet_logs import unquiet_lines
from tests.soak.brokers.books import Books
from tests.soak.brokers.copies import CopyingSender
from tests.soak.brokers.fleet import Fleet
from tests.soak.brokers.injector import KILLS, Injector, Rates
from tests.soak.brokers.memory import MemoryWatch
from tests.soak.brokers.services import DEATHS, Transfer
from tests.soak.brokers.targets import BrokerTarget
from tests.waiting import PATIENCE_SECONDS, last_of, last_while_moving, wait_until

# Transfers under way at a time, and those that are started together.
UNDER_WAY_MAX = 200
STARTED_TOGETHER = 20
COPIES_MAX = 3
TURN_SECONDS = 0.05
COUNT_SECONDS = 0.5
TELL_SECONDS = 60.0
STAGES = (
    "payments.pay", "payments.close", "ledger.route", "ledger.book", "ledger.enter", "ledger.check",
)  # fmt: skip
STANDSTILL_SECONDS = 120.0
DRAIN_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """
    ``seconds``      how long transfers are started and faults injected
    ``rates``        of the faults
    ``copied``       the share of the transfers that another program sends, each several times
    ``raises``       the share of the attempts that fail
    ``steps``        at which processes die
    ``commands``     the commands of ``fleet.COMMANDS`` that run
    ``sabotage``     what is broken in all processes
    ``standstill_seconds``  after so long without a transaction, what is not done is lost
    ``drain_seconds``  the time that all transfers may take after the last fault
    ``meanwhile``    is called once, after a while
    ``bounds_copies``  without faults no message arrives twice
    """

    seconds: float
    rates: Rates = field(default_factory=Rates)
    copied: float = 0.0
    raises: float = 0.0
    steps: tuple[str, ...] = tuple(DEATHS)
    commands: tuple[str, ...] = ("payments", "ledger", "spared")
    sabotage: str = ""
    standstill_seconds: float = STANDSTILL_SECONDS
    drain_seconds: float = DRAIN_SECONDS
    meanwhile: Callable[[Soak], None] | None = None
    bounds_copies: bool = False
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    name: str
    transfers: int
    transactions: int
    faults: Counter[str]
    doubted: int
    seconds: float
    memory: dict[str, tuple[float, float]]
    problems: list[str]
    logs: dict[str, str]

    @property
    def is_clean(self) -> bool:
        return not self.problems

    def lines(self) -> list[str]:
        hour = 3600 / self.seconds
        total = self.faults.total()
        ours = sum(self.faults[each] for each in KILLS)
        broker = self.faults["broker_kills"]
        kinds = ", ".join(f"{count:,} {kind.replace('_', ' ')}" for kind, count in sorted(self.faults.items()))
        lost, doubled = (sum(each.startswith(kind) for each in self.problems) for kind in ("lost:", "doubled:"))
        return [
            f"{self.name}: {self.transfers:,} transfers in {self.seconds:.0f} s",
            f"  {self.transactions:,} stage transactions ({self.transactions * hour:,.0f} an hour)",
            f"  {total:,} faults ({total * hour:,.0f} an hour): {kinds}",
            f"  {ours:,} SIGKILLs of ours ({ours * hour:,.0f} an hour), {broker} of the broker ({broker * hour:,.0f})",
            f"  {self.doubted} runs of best_effort were repeated, and the journal says so",
            *(
                f"  memory of the {name}: {second:.1f} MiB in the second quarter, {last:.1f} MiB in the last one"
                for name, (second, last) in self.memory.items()
            ),
            *(f"  {each}" for each in self.problems),
            f"  lost {lost}, doubled {doubled}: {'clean' if self.is_clean else 'BROKEN'}",
        ]


class Soak:
    """The campaign while it runs. ``started`` has the amount of each transfer."""

    def __init__(self, plan: Plan, target: BrokerTarget, books: Books, folder: Path) -> None:
        self.plan = plan
        self.target = target
        self.books = books
        self.random = Random(plan.seed)
        self.fleet = Fleet(books, target, folder, raises=plan.raises, sabotage=plan.sabotage)
        self.app = App(f"{target.prefix}payments", database=books.payments.url, broker=target.url, local=False)
        self.sender = CopyingSender(target, f"{target.prefix}payments.pay")
        self.started: dict[str, int] = {}
        self._injector = Injector(plan.rates, self.fleet, target, self.random, plan.steps)

    def run(self, tell: Callable[[str], None] = lambda line: None) -> Report:
        """Run the campaign to its end. Raises nothing for what the services did wrong: the report names it."""
        with closing(self.app), closing(self.sender):
            try:
                return self._run(tell)
            finally:
                self.fleet.kill_all()

    def _run(self, tell: Callable[[str], None]) -> Report:
        for store in self.books.stores:
            store.prepare()
        for each in self.plan.commands:
            self.fleet.start(each)
        watch = MemoryWatch(self.fleet.spared() if "spared" in self.plan.commands else {})
        self._wait_until_ready()
        begin = time.monotonic()
        self._work(begin, watch, tell)
        seconds = time.monotonic() - begin
        self._injector.finish()
        # They were published before the faults ended.
        last_while_moving(self.sender.flush, lambda: None, self.plan.standstill_seconds)
        deadline = time.monotonic() + self.plan.drain_seconds
        last_while_moving(
            lambda: self._is_over() or time.monotonic() > deadline, self._progress, self.plan.standstill_seconds
        )
        problems = [*watch.problems(), *self._problems()]
        faults = Counter(self._injector.counts)
        faults["copies"] = self.sender.copies
        faults["raises"] = self.books.raised()
        return Report(
            name=f"{type(self.target).__name__.removesuffix('Target')}, seed {self.plan.seed}",
            transfers=len(self.started),
            transactions=self.books.transactions(),
            faults=+faults,
            doubted=self.books.doubted().total(),
            seconds=seconds,
            memory=watch.growth(),
            problems=problems,
            logs=self.fleet.logs(),
        )

    def start(self, count: int) -> None:
        """Start transfers. A share of them is sent by another program."""
        numbers = range(len(self.started), len(self.started) + count)
        transfers = [Transfer(f"t{number:07}", self.random.randint(1, 1000)) for number in numbers]
        copied = [each for each in transfers if self.random.random() < self.plan.copied]
        pay: Target[Transfer, Any] = self.app.remote(f"{self.target.prefix}payments.pay", Transfer)
        with self.app.initiate() as out:
            for each in transfers:
                if each not in copied:
                    out.send(pay, each, flow_id=each.transfer_id)
        for each in copied:
            self.sender.send(each.transfer_id, each.amount, self.random.randint(1, COPIES_MAX))
        self.started |= {each.transfer_id: each.amount for each in transfers}

    def _wait_until_ready(self) -> None:
        """Run one transfer through all stages, before anything fails. It declares all queues."""
        wait_until(lambda: self._declared() == len(STAGES), "all stages are declared")
        self.start(1)
        is_closed = last_of(lambda: self.sender.flush() and self.books.closed() > 0, self.plan.standstill_seconds)
        # What is broken on purpose may lose the first one.
        assert is_closed or self.plan.sabotage, "the first transfer was not closed"

    def _declared(self) -> int:
        try:
            return sum(each.count("SELECT count(*) FROM stagepost_declaration") for each in self.books.stores)
        except (sqlite3.OperationalError, psycopg.errors.UndefinedTable):
            # A worker makes the tables.
            return 0

    def _work(self, begin: float, watch: MemoryWatch, tell: Callable[[str], None]) -> None:
        counted_at, told_at, closed = 0.0, begin, 0
        meanwhile = self.plan.meanwhile
        while (now := time.monotonic()) - begin < self.plan.seconds:
            if now - counted_at > COUNT_SECONDS:
                counted_at, closed = now, self.books.closed()
            if len(self.started) - closed < UNDER_WAY_MAX:
                self.start(STARTED_TOGETHER)
            self.sender.flush()
            self._injector.turn()
            watch.look()
            if meanwhile is not None and now - begin > self.plan.seconds / 4:
                meanwhile(self)
                meanwhile = None
            if now - told_at > TELL_SECONDS:
                told_at = now
                tell(f"{now - begin:.0f} s: {closed:,} transfers closed, {dict(self._injector.counts)}")
            time.sleep(TURN_SECONDS)

    def _is_over(self) -> bool:
        time.sleep(COUNT_SECONDS)
        return self.books.is_idle(self.started)

    def _progress(self) -> object:
        return self.books.transactions()

    def _problems(self) -> list[str]:
        codes = self.fleet.stop()
        problems = [f"ended: {name} by {code}" for name, code in codes.items() if code != 0]
        problems += self.books.problems(self.started)
        depths = self._depths()
        problems += [f"left: {count} messages wait at {name}" for name, count in depths.items() if count]
        open_transfers = len(self.started) - len(self.books.closed_ids())
        waiting = self.books.waiting() + sum(depths.values())
        if open_transfers > waiting:
            problems.append(f"vanished: {open_transfers} transfers are open, and {waiting} messages wait anywhere")
        if self.plan.bounds_copies and (copies := self.books.copies()):
            problems.append(f"copies: {copies} messages arrived again, and nothing had failed")
        for name, log in self.fleet.logs().items():
            problems += [f"log: {name} says {line:.300}" for line in unquiet_lines(log)]
        return problems

    def _depths(self) -> dict[str, int]:
        """Return how many messages wait at each address of the broker."""
        with closing(self.target.direct().connect(PATIENCE_SECONDS)) as connection:
            return {each: connection.depth(f"{self.target.prefix}{each}") or 0 for each in STAGES}
