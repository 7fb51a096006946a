"""Whatever happens, each order leaves its effects exactly once, and the dead letters are exactly the poison."""

from __future__ import annotations

import os
from collections import Counter
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from stagepost.app.app import engine_of
from stagepost.flow.initiation import Started
from stagepost.transaction.inbox_guard import LEASE
from tests.simulation.flows import EXPECTED_REASON, Order, expected_ledger, make_app
from tests.simulation.world import World
from tests.toy_store.store import ToyStore

HISTORIES = int(os.environ.get("STAGEPOST_HISTORIES", "200"))


def a_few_orders(random: Random) -> list[Order]:
    poisons = ["", "", "", "", "refuse", "fail", "kill"]
    return [
        Order(number, random.randrange(1, 1000), random.choice([0, 0, 0, 1, 2]), random.choice(poisons))
        for number in range(random.randrange(1, 6))
    ]


def run_history(
    seed: int, *, steps: int = 150, fault_rate: float = 0.05, crash_rate: float = 0.05, queue: str | None = None
) -> World:
    """One history: orders started (some of them twice), anything may happen, then all is healed and drained."""
    random = Random(seed)
    app = make_app(seed, {}, queue=queue)
    world = World(app, seed, fault_rate=fault_rate, crash_rate=crash_rate)
    orders = a_few_orders(random)
    for _ in range(steps):
        if random.random() < 0.1:
            start(world, random.choice(orders))
        world.act()
    for order in orders:
        start(world, order)
    world.heal()
    check(world, orders)
    return world


def start(world: World, order: Order) -> Started:
    return world.app.start(
        world.app.target("pay"), order, flow_id=f"order:{order.number}", reply_to=world.app.target("done")
    )


def check(world: World, orders: list[Order]) -> None:
    engine = engine_of(world.app)
    tables = engine.store.tables  # type: ignore[attr-defined]  # a toy store
    work = (engine.databases.business or engine.store).tables  # type: ignore[attr-defined]  # another one, or the same
    ledger = sorted(work.ledger.values())
    assert ledger == sorted(entry for order in orders for entry in expected_ledger(order))
    dead = {letter.flow_id: letter.reason for letter in world.dead_letters()}
    assert dead == {f"order:{order.number}": EXPECTED_REASON[order.poison] for order in orders if order.poison}
    assert len(world.dead_letters()) == len(dead)
    assert not len(tables.ready)
    assert not len(tables.delayed)
    assert not len(tables.suspect)
    commits = Counter((each.stage, each.message_id) for each in tables.journal.values() if each.waypoint == "committed")
    assert set(commits.values()) <= {1}
    sent = {each.message_id for each in tables.journal.values() if each.waypoint in ("sent", "accepted")}
    settled = {each.message_id for each in tables.journal.values() if each.waypoint in ("committed", "dead")}
    assert sent == settled
    assert not len(work.outbox)


@pytest.mark.parametrize("part", range(4))
def test_any_history_leaves_each_effect_once(part: int) -> None:
    for seed in range(part, HISTORIES, 4):
        try:
            run_history(seed)
        except Exception as error:
            raise AssertionError(f"history {seed} went wrong: run_history({seed}) replays it") from error


@pytest.mark.parametrize("part", range(4))
def test_any_history_between_two_databases_leaves_each_effect_once(part: int) -> None:
    for seed in range(part, HISTORIES // 2, 4):
        try:
            world = run_history(seed, queue="toy:")
            everything_is_marked(world)
        except Exception as error:
            again = f'run_history({seed}, queue="toy:")'
            raise AssertionError(f"history {seed} went wrong: {again} replays it") from error


def everything_is_marked(world: World) -> None:
    """By the sweep, when whoever died has had his time."""
    world.clock.advance_to(world.clock.now() + LEASE)
    worker = world.spawn()
    assert worker.relay is not None
    worker.relay.turn()
    assert worker.access.work.inbox.backlog().size == 0


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    steps=st.integers(0, 300),
    fault_rate=st.floats(0, 0.3),
    crash_rate=st.floats(0, 0.3),
)
def test_at_any_rate_of_faults_and_crashes(seed: int, steps: int, fault_rate: float, crash_rate: float) -> None:
    run_history(seed, steps=steps, fault_rate=fault_rate, crash_rate=crash_rate)


def test_a_seed_replays_its_history() -> None:
    first, second = run_history(7), run_history(7)

    def journal(world: World) -> list[object]:
        store = engine_of(world.app).store
        assert isinstance(store, ToyStore)
        return [structs.replace(each, node="") for each in store.tables.journal.values()]

    assert journal(first) == journal(second)
