"""Two services with a store each talk over a broker, and all of their parts are killed at every step."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from stagepost import App, Context
from stagepost.app.app import engine_of
from stagepost.broker.memory import MemoryBroker
from stagepost.flow.clock import Clock
from stagepost.flow.errors import BrokerConnectionLost
from stagepost.flow.initiation import Acceptance, Verdict
from stagepost.ports.broker import BrokerConnection, Delivery
from stagepost.runtime.assembly import queue_commit_of
from stagepost.runtime.edge import entrances_of, prepare
from stagepost.testing.clock import ManualClock
from stagepost.testing.contract.givens import NOW
from stagepost.testing.harness import Harness
from stagepost.transaction.dispatcher import Dispatcher
from stagepost.transaction.receiver import Receiver
from stagepost.transaction.steps import EdgeStep, Halt
from tests.edges.service import SECONDS

ACCOUNTS = 3
START = 1_000
ROUNDS_MAX = 400


@dataclass
class Transfer:
    transfer_id: str
    account: int
    amount: int


@dataclass
class Booked:
    transfer_id: str


def payments(url: str, clock: Clock, broker: str = "memory:tests") -> App:
    """Takes money from an account, and asks the ledger to book it."""
    app = App("payments", database=url, broker=broker, clock=clock, random=Random(1))
    book = app.remote("ledger.book", Transfer, Booked)
    pay = app.staged("payments.pay")

    @pay.stage
    def take(ctx: Context, transfer: Transfer) -> None:
        ctx.sql(
            "INSERT INTO effect (transfer_id, amount) VALUES (:id, :n)", id=transfer.transfer_id, n=-transfer.amount
        )
        ctx.request(book, transfer)

    @pay.stage
    def booked(ctx: Context, answer: Booked) -> None:
        ctx.sql("INSERT INTO effect (transfer_id, amount) VALUES (:id, 0)", id=f"answer {answer.transfer_id}")

    return app


def ledger(url: str, clock: ManualClock) -> App:
    """Gives the money to an account."""
    app = App("ledger", database=url, broker="memory:tests", clock=clock, random=Random(2))

    @app.endpoint("ledger.book")
    def book(ctx: Context, transfer: Transfer) -> Booked:
        ctx.sql("INSERT INTO effect (transfer_id, amount) VALUES (:id, :n)", id=transfer.transfer_id, n=transfer.amount)
        return Booked(transfer.transfer_id)

    return app


MakeApp = Callable[[str, ManualClock], App]


class Service:
    """One app with its parts. A part that dies at a step is replaced, as its process would be."""

    def __init__(
        self,
        make: MakeApp,
        path: Path,
        clock: ManualClock,
        broker: MemoryBroker,
        random: Random,
        kill_chance: float,
        receiver: type[Receiver],
    ) -> None:
        self.path = path
        self.app = app = make(f"sqlite:///{path}", clock)
        self._make = receiver
        self.engine = engine_of(app)
        self._broker = broker
        self._random = random
        self._kill_chance = kill_chance
        self.kills: dict[EdgeStep, int] = dict.fromkeys(EdgeStep, 0)
        self.harness = Harness(app)
        self.session = self.harness.access.session
        self._incarnations = 0
        self._make_dispatcher()
        self._make_receiver()

    def turn(self) -> int:
        """Run each part once. Returns how much they did."""
        self.harness.run_one()
        return self._dispatch() + self._receive()

    def _listen(self, step: EdgeStep, message_ids: object) -> None:
        if self._random.random() < self._kill_chance:
            self.kills[step] += 1
            raise Halt

    def _dispatch(self) -> int:
        try:
            return self._dispatcher.turn(self._dispatching)
        except (Halt, BrokerConnectionLost):
            self._dispatching.close()
            self.session.rollback()
            self.harness.access.claimer.release(self.session.queue.owned(self._owner), self.harness.node)
            self._make_dispatcher()
            return 1

    def _receive(self) -> int:
        windows = {each.address: 10 for each in self._entrances}
        try:
            return self._receiver.turn(self._receiving, windows, 0)
        except (Halt, BrokerConnectionLost):
            self._receiving.close()
            self.session.rollback()
            self._make_receiver()
            return 1

    def _make_dispatcher(self) -> None:
        self._incarnations += 1
        self._owner = f"{self.app.name}/{self._incarnations}"
        queue_commit = queue_commit_of(self.engine, self.harness.access, "dispatcher")
        self._dispatcher = Dispatcher(queue_commit, self._owner, self._random, self._listen)
        self._dispatching = self._broker.connect(SECONDS)

    def _make_receiver(self) -> None:
        queue_commit = queue_commit_of(self.engine, self.harness.access, "receiver")
        self._entrances = entrances_of(self.engine)
        store = self.engine.store_uuid
        self._receiver = self._make(queue_commit, self._entrances, store, _cannot_set_aside, self._listen)
        self._receiving = self._broker.connect(SECONDS)
        prepare(self._receiving, self._entrances, store)

    def effects(self) -> list[tuple[str, int]]:
        with closing(sqlite3.connect(self.path)) as connection:
            return connection.execute("SELECT transfer_id, amount FROM effect").fetchall()

    def close(self) -> None:
        self.harness.close()


def _cannot_set_aside(delivery: Delivery) -> bool:
    raise AssertionError(f"nothing is refused here, and {delivery} was")


class World:
    """Two services, the broker between them, and a seed that decides which faults they meet.

    ``receiver``  the class of their receivers; the negative controls give a wrong one
    """

    def __init__(self, folder: Path, *, seed: int, kill_chance: float, receiver: type[Receiver] = Receiver) -> None:
        self.broker = MemoryBroker()
        self.clock = ManualClock(NOW)
        random = Random(seed)
        self.services: list[Service] = []
        for name, make in (("payments", payments), ("ledger", ledger)):
            path = folder / f"{name}.db"
            with closing(sqlite3.connect(path)) as connection:
                # No unique key: an effect that happens twice is two rows.
                connection.execute("CREATE TABLE effect (transfer_id TEXT NOT NULL, amount INTEGER NOT NULL)")
            self.services.append(Service(make, path, self.clock, self.broker, random, kill_chance, receiver))
        self._random = random

    def run(self, transfers: int) -> None:
        """Start the transfers, and run all parts until nothing is left."""
        app = self.services[0].app
        pay = app.target("payments.pay")
        for n in range(transfers):
            app.start(pay, Transfer(f"t{n}", n % ACCOUNTS, 1 + n), flow_id=f"t{n}")
        idle = 0
        for _ in range(ROUNDS_MAX):
            if self.services[0]._kill_chance and self._random.random() < 0.2:
                self._random.choice([self.broker.cut, self._double, self._cut_soon])()
            idle = 0 if sum(each.turn() for each in self.services) or self._waiting() else idle + 1
            self.clock.advance(1)
            if idle > 3:
                return
        raise AssertionError(f"not drained: {self._waiting()}")

    def _double(self) -> None:
        self.broker.doubling = 1

    def _cut_soon(self) -> None:
        self.broker.cut_after = self._random.randrange(3)

    def _waiting(self) -> int:
        return sum(
            each.ready + each.claimed + each.delayed + each.suspect
            for service in self.services
            for each in service.session.queue.depths()
        )

    def close(self) -> None:
        for each in self.services:
            each.close()


def check_books(world: World, transfers: int) -> None:
    """Each effect happened once, money is conserved, and nothing is dead."""
    paid, booked = (sorted(each.effects()) for each in world.services)
    amounts = [1 + n for n in range(transfers)]
    assert sorted(amount for _, amount in booked) == amounts
    assert sorted(-amount for _, amount in paid if amount) == amounts
    assert sum(amount for _, amount in [*paid, *booked]) == 0
    assert sorted(each for each, amount in paid if not amount) == sorted(f"answer t{n}" for n in range(transfers))
    for service in world.services:
        assert service.harness.dead_letters() == []


def test_two_services_talk_over_a_broker(tmp_path: Path) -> None:
    with closing(World(tmp_path, seed=0, kill_chance=0)) as world:
        world.run(10)
        check_books(world, 10)
        history = [(each.waypoint, each.stage) for each in world.services[0].session.journal.history("t0")]
        assert ("confirmed", "@out/ledger.book") in history
        assert ("arrived", "payments.pay.booked") in history
        theirs = [each.waypoint for each in world.services[1].session.journal.history("t0")]
        assert theirs == ["arrived", "received", "committed", "sent", "confirmed"]


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.more) for seed in range(2, 8))])
def test_money_is_conserved_while_every_part_is_killed_at_every_step(tmp_path: Path, seed: int) -> None:
    with closing(World(tmp_path, seed=seed, kill_chance=0.12)) as world:
        world.run(12)
        check_books(world, 12)
        assert sum(sum(each.kills.values()) for each in world.services) > 10


class SettlesBeforeCommit(Receiver):
    """A wrong receiver: the broker forgets a message before the store has it."""

    def _store_window(self, connection: BrokerConnection, deliveries: Sequence[Delivery]) -> int:
        connection.settle(deliveries)
        return super()._store_window(connection, deliveries)


class AcceptsEverything(Receiver):
    """A wrong receiver: it recognises no message that arrived before."""

    def _accept(self, acceptances: Sequence[Acceptance]) -> list[Verdict]:
        return [Verdict("started", each.digest) for each in acceptances]


@pytest.mark.more
@pytest.mark.parametrize("wrong", [SettlesBeforeCommit, AcceptsEverything])
def test_the_books_catch_a_wrong_receiver(tmp_path: Path, wrong: type[Receiver]) -> None:
    with closing(World(tmp_path, seed=1, kill_chance=0.12, receiver=wrong)) as world:
        world.run(12)
        with pytest.raises(AssertionError):
            check_books(world, 12)
