"""A guard in the mode ``best_effort``: the work happens once, and what it sent is sent from its stored bytes.

The broker is one of memory, which settles by confirms or in transactions of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from stagepost import App, Context
from stagepost.app.app import engine_of
from stagepost.broker.memory import MemoryBroker
from stagepost.flow.claim import Claim
from stagepost.flow.codec import decode_envelope
from stagepost.flow.envelope import Frame, Message
from stagepost.flow.errors import BrokerConnectionLost, WorkerDied
from stagepost.observe.status import read_status
from stagepost.observe.trace import TracedMessage, read_trace
from stagepost.ports.broker import Publication
from stagepost.ports.dead_letters import Selection
from stagepost.runtime.assembly import queue_commit_of, relay_of
from stagepost.runtime.edge_services import DispatcherService
from stagepost.runtime.purge_service import count_hour, purge_all
from stagepost.runtime.service import NeverStops
from stagepost.testing.harness import Harness
from stagepost.transaction.inbox_guard import LEASE
from stagepost.transaction.outcome import Buried, Completed, Duplicate
from stagepost.transaction.replaying import freeze, run_replay
from stagepost.transaction.settling import Settlement
from stagepost.transaction.steps import EdgeStep, Halt, Step, unobserved_edge
from stagepost.transaction.stored_copies import InboxSweep
from tests.edges.direct_service import ABROAD, PAY, SECONDS, DirectService, Order
from tests.edges.test_receiving import an_envelope
from tests.waiting import PATIENCE_SECONDS, wait_until

Make = Callable[..., DirectService]
PROACTIVE = {"guard": "proactive"}
REACTIVE = {"guard": "reactive"}
on_both_guards = pytest.mark.parametrize("guard", ["proactive", "reactive"])
IN_DOUBT = (Step.COMMITTED, Step.CONFIRMED)


@pytest.mark.parametrize(
    ("guard", "step"),
    [
        *(("proactive", step) for step in (Step.COMMITTING, *IN_DOUBT, Step.MARKED)),
        *(("reactive", each) for each in IN_DOUBT),
    ],
)
def test_a_guarded_run_that_is_killed_at_a_step_does_its_work_once_and_sends_all(
    service: Make, guard: str, step: Step
) -> None:
    shop = service("best_effort", terms={"guard": guard})
    shop.die_of_a_message_at(step)
    shop.finish()
    assert shop.effects() == {"m1": 1}
    # A copy of what it sent has the same id.
    assert len(shop.sent()) == 1
    assert shop.sent().total() == (2 if step is Step.CONFIRMED and not shop.broker.is_atomic else 1)
    assert (shop.stored(), shop.unsettled()) == (0, 0)
    assert shop.session.inbox.backlog().size == (1 if step is Step.CONFIRMED and shop.broker.is_atomic else 0)
    history = shop.history()
    assert history.count("committed") == 1
    comes_again = step is Step.COMMITTED or (step is Step.CONFIRMED and not shop.broker.is_atomic)
    # A redelivery after the mark is recognised by the receiver.
    is_duplicate = comes_again or (step is Step.MARKED and not shop.broker.is_atomic)
    assert ("doubted" in history, "duplicate" in history) == (comes_again, is_duplicate)
    message = traced(shop)
    assert message.standing == "committed"
    # Nobody knows yet that the broker has it: a sweep will send a copy.
    is_unknown = step is Step.CONFIRMED and shop.broker.is_atomic
    assert [each.standing for each in message.caused] == ["waiting" if is_unknown else "confirmed"]


def traced(shop: DirectService) -> TracedMessage:
    trace = read_trace(shop.session.journal, "flow-m1")
    assert trace is not None
    (message,) = trace.roots
    return message


@on_both_guards
def test_a_copy_of_what_the_store_ran_for_the_stage_runs_nothing_or_is_abandoned(service: Make, guard: str) -> None:
    shop = service("best_effort", terms={"guard": guard})
    shop.app.start(shop.pay, Order("m1"), flow_id="flow-m1", message_id="m1")
    assert [type(each) for each in shop.harness.drain()] == [Completed]
    shop.arrive("m1")
    shop.finish()
    # A reactive run meets the row at its end, and is abandoned.
    assert len(shop.runs) == (1 if guard == "proactive" else 2)
    assert (shop.effects(), shop.sent().total(), shop.unsettled()) == ({"m1": 1}, 1, 0)
    assert shop.harness.dead_letters() == []
    assert traced(shop).standing == "committed"


@on_both_guards
def test_a_message_that_the_store_runs_after_a_direct_run_is_recognised_first(service: Make, guard: str) -> None:
    shop = service("best_effort", terms={"guard": guard})
    shop.arrive("m1")
    shop.turn()
    shop.app.start(shop.pay, Order("m1"), flow_id="flow-m1", message_id="m1")
    assert [type(each) for each in shop.harness.drain()] == [Duplicate]
    shop.dispatch()
    assert (shop.runs, shop.effects(), shop.sent().total()) == (["m1"], {"m1": 1}, 1)


@on_both_guards
def test_a_copy_with_other_content_under_an_id_that_was_chosen_is_a_dead_letter(service: Make, guard: str) -> None:
    shop = service("best_effort", terms={"guard": guard})
    shop.arrive("m1")
    shop.turn()
    shop.app.start(shop.pay, Order("other"), flow_id="flow-m1", message_id="m1")
    shop.harness.drain()
    (letter,) = shop.harness.dead_letters()
    assert "with other content" in letter.summary
    assert shop.effects() == {"m1": 1}


def test_a_unique_key_of_the_users_own_that_fires_first_makes_no_failure(service: Make) -> None:
    shop = service("best_effort", terms=REACTIVE)
    shop.change("CREATE UNIQUE INDEX one_effect ON effect (order_id)")
    shop.app.start(shop.pay, Order("m1"), flow_id="flow-m1", message_id="m1")
    shop.harness.drain()
    shop.arrive("m1")
    shop.finish()
    assert (shop.runs, shop.effects(), shop.sent().total()) == (["m1", "m1"], {"m1": 1}, 1)
    assert (shop.harness.dead_letters(), shop.stored(), shop.unsettled()) == ([], 0, 0)
    assert "failed" not in shop.history()


@on_both_guards
def test_a_stage_that_produces_nothing_is_remembered_too(service: Make, guard: str) -> None:
    def work(ctx: Context, order: Order) -> None:
        ctx.sql("INSERT INTO effect (order_id) VALUES (:id)", id=order.order_id)

    shop = service("best_effort", work, terms={"guard": guard})
    shop.die_of_a_message_at(Step.COMMITTED)
    shop.finish()
    assert (shop.effects(), shop.session.inbox.backlog().size) == ({"m1": 1}, 0)
    assert "doubted" not in shop.history()
    shop.app.start(shop.pay, Order("m1"), flow_id="flow-m1", message_id="m1")
    assert [type(each) for each in shop.harness.drain()] == [Duplicate]
    assert (shop.effects(), shop.sent()) == ({"m1": 1}, {})


@on_both_guards
def test_of_two_copies_at_once_one_does_the_work(direct_url: str, direct_broker: MemoryBroker, guard: str) -> None:
    started = threading.Barrier(2)
    is_over = threading.Event()

    def consume(number: int) -> None:
        def work(ctx: Context, order: Order) -> None:
            if guard == "reactive" and not is_over.is_set():
                # Both run before either has begun its transaction.
                started.wait(PATIENCE_SECONDS)
            ctx.sql("INSERT INTO effect (order_id) VALUES (:id)", id=order.order_id)
            ctx.send(shop.app.remote(ABROAD, Order), order)

        with closing(DirectService(direct_url, direct_broker, "best_effort", work, terms={"guard": guard})) as shop:
            shop.arrive("m1")
            arrived.wait(PATIENCE_SECONDS)
            with suppress(BrokerConnectionLost):
                # The other one may have the database for too long.
                shop.consumer.turn(shop.connection, {PAY: 1}, SECONDS)
            arrived.wait(PATIENCE_SECONDS)
            is_over.set()
            if number == 0:
                shop.restart()
                shop.finish()
                assert (shop.effects(), len(shop.sent()), shop.stored()) == ({"m1": 1}, 1, 0)
                assert (shop.harness.dead_letters(), shop.unsettled()) == ([], 0)

    arrived = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(consume, range(2)))


def test_a_delayed_message_of_a_guarded_stage_waits_in_the_store_and_its_row_is_marked(service: Make) -> None:
    def send_later(ctx: Context, order: Order) -> None:
        ctx.send(shop.app.remote(ABROAD, Order), order, delay=60)

    shop = service("best_effort", send_later, terms=PROACTIVE)
    shop.arrive("m1")
    shop.turn()
    assert (shop.stored(), shop.session.inbox.backlog().size) == (1, 0)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.more) for seed in (1, 2))])
@on_both_guards
def test_whatever_fails_each_message_is_handled_once(service: Make, guard: str, seed: int) -> None:
    shop = service("best_effort", terms={"guard": guard})
    names = shop.run_among_faults(Random(seed))
    for each in names[::6]:
        # The store runs copies too.
        shop.app.start(shop.pay, Order(each), flow_id=f"flow-{each}", message_id=each)
    shop.finish()
    assert shop.effects() == dict.fromkeys(names, 1)
    assert len(shop.sent()) == len(names)
    assert (shop.stored(), shop.unsettled(), shop.harness.dead_letters()) == (0, 0, [])
    assert sum("doubted" in shop.history(each) for each in names) > 0


# The sweep


def die_and_lose_the_delivery(shop: DirectService, step: Step) -> None:
    """Let a run end at a step. The broker loses its message."""
    shop.die_of_a_message_at(step)
    shop.connection.subscribe({PAY: 10})
    shop.connection.settle(shop.connection_deliveries())
    shop.restart()


def sweep_of(shop: DirectService, listener: Any = unobserved_edge) -> InboxSweep:
    return InboxSweep(queue_commit_of(shop.engine, shop.harness.access, "edge"), listener)


@pytest.mark.parametrize("step", IN_DOUBT)
def test_bytes_whose_lease_has_ended_are_sent_by_the_sweep_once(service: Make, step: Step) -> None:
    shop = service("best_effort", terms=PROACTIVE)
    die_and_lose_the_delivery(shop, step)
    ran_at = shop.clock.now()
    assert sweep_of(shop).turn() == 0
    shop.clock.advance(LEASE / 1_000_000 + 1)
    assert sweep_of(shop).turn() == 1
    assert sweep_of(shop).turn() == 0
    (row,) = shop.session.queue.claim([f"@out/{ABROAD}"], 10, "test", shop.clock.now())
    assert shop.session.edge.left_at([row]) == {row.message_id: ran_at}
    shop.session.rollback()
    assert shop.session.inbox.backlog().size == 0
    assert shop.effects() == {"m1": 1}


def test_the_relay_of_another_app_in_the_database_leaves_the_row_to_the_sweep(
    service: Make, direct_url: str, tmp_path: Path
) -> None:
    shop = service("best_effort", terms=PROACTIVE)
    die_and_lose_the_delivery(shop, Step.COMMITTED)
    shop.clock.advance(LEASE / 1_000_000 + 1)
    other = App("other", database=direct_url, queue=f"sqlite:///{tmp_path / 'queue.db'}", clock=shop.clock)
    with closing(Harness(other)) as harness:
        relay = relay_of(engine_of(other), harness.access, "relay")
        assert relay is not None
        assert relay.turn() == 0
    other.close()
    assert sweep_of(shop).turn() == 1


def test_the_thread_of_the_dispatcher_sweeps(service: Make) -> None:
    shop = service("best_effort", terms=PROACTIVE)
    die_and_lose_the_delivery(shop, Step.COMMITTED)
    shop.clock.advance(LEASE / 1_000_000 + 1)
    thread = DispatcherService(shop.engine, shop.broker, "shop/edge", "edge")
    thread.start()
    try:
        wait_until(lambda: shop.sent().total() == 1, "the stored bytes are sent")
    finally:
        thread.stop()
        assert thread.join(PATIENCE_SECONDS)
    assert thread.error is None


@pytest.mark.parametrize("step", [EdgeStep.RESENDING, EdgeStep.RESENT])
def test_a_sweep_that_is_killed_at_a_step_sends_the_bytes_once(service: Make, step: EdgeStep) -> None:
    def halt(passed: EdgeStep, message_ids: Any) -> None:
        if passed is step:
            raise Halt

    shop = service("best_effort", terms=PROACTIVE)
    die_and_lose_the_delivery(shop, Step.COMMITTED)
    shop.clock.advance(LEASE / 1_000_000 + 1)
    with pytest.raises(Halt):
        sweep_of(shop, halt).turn()
    shop.session.rollback()
    sweep_of(shop).turn()
    shop.dispatch()
    assert shop.sent().total() == 1


@pytest.mark.parametrize("step", [Step.CLAIMED, Step.RECORDED, Step.COMMITTING, Step.COMMITTED])
def test_a_stored_copy_that_is_killed_at_a_step_sends_the_bytes_once(service: Make, step: Step) -> None:
    def halt(passed: Step, claim: Claim) -> None:
        if passed is step and claim.row:
            raise Halt

    shop = service("best_effort", terms=PROACTIVE)
    shop.die_of_a_message_at(Step.COMMITTED)
    shop.turn()
    shop.engine.listener = halt
    copy = shop.harness.claim_one()
    assert copy is not None
    queue_commit = shop.harness.transaction._queue_commit
    shop.harness.transaction._listener = queue_commit.listener = halt
    with pytest.raises(Halt):
        shop.harness.transaction.run(copy)
    shop.session.rollback()
    shop.harness.transaction._listener = queue_commit.listener = lambda step, claim: None
    if step is not Step.COMMITTED:
        assert isinstance(shop.harness.transaction.run(copy), Duplicate)
    shop.finish()
    assert (shop.effects(), shop.sent().total(), shop.stored()) == ({"m1": 1}, 1, 0)


def test_a_replay_of_a_killed_run_sends_its_bytes_and_runs_nothing(service: Make) -> None:
    shop = service("best_effort", terms=PROACTIVE)
    shop.die_of_a_message_at(Step.COMMITTED)
    shop.turn()
    copy = shop.harness.claim_one()
    assert copy is not None
    queue_commit = queue_commit_of(shop.engine, shop.harness.access, "test")
    Settlement(queue_commit).settle(shop.engine.stages()[PAY], copy, Buried("worker-died", WorkerDied("killed")))
    wanted = [Selection("all")]
    replay = freeze(shop.session, wanted, clock=shop.clock, who="ada")
    assert replay is not None
    list(run_replay(queue_commit, replay, stop=NeverStops(), who="ada"))
    shop.finish()
    assert (shop.runs, shop.effects(), shop.sent().total()) == (["m1"], {"m1": 1}, 1)
    assert (shop.harness.dead_letters(), shop.stored(), shop.session.inbox.backlog().size) == ([], 0, 0)


def test_a_row_that_waits_for_its_confirmation_is_shown_and_stays_and_the_others_are_purged(service: Make) -> None:
    shop = service("best_effort", terms=PROACTIVE)
    die_and_lose_the_delivery(shop, Step.COMMITTED)
    shop.arrive("m2")
    shop.turn()
    access = shop.harness.access
    status = read_status(shop.engine.store, access, shop.clock)
    assert (status.unmarked.size, status.is_drained) == (1, True)
    for _ in range(24 * 7 + 2):
        shop.clock.advance(3600)
        count_hour(access, shop.clock)
    removed = {each.what: each.rows for each in purge_all(access)}
    assert removed[f"inbox of {PAY}"] == 1
    inbox = shop.session.inbox
    assert (inbox.find(PAY, "m1") is None, inbox.find(PAY, "m2") is None) == (False, True)


# Business keys, and several messages in one envelope


def test_a_key_sends_nothing_again_and_answers_the_caller_of_the_duplicate(service: Make) -> None:
    def work(ctx: Context, order: Order) -> None:
        ctx.sql("INSERT INTO effect (order_id) VALUES (:id)", id=order.order_id)
        ctx.send(shop.app.remote(ABROAD, Order), order)

    shop = service("best_effort", work, terms={"key": ("order_id",)})
    shop.arrive("m1")
    shop.turn()
    arrive_for(shop, "m2", "m1")
    arrive_for(shop, "m3", "m1", stack=(Frame(to=ABROAD),))
    shop.finish()
    assert (shop.effects(), shop.sent().total()) == ({"m1": 1}, 1)
    # The stage itself gave no reply, so the caller is told.
    (letter,) = shop.harness.dead_letters()
    assert (letter.message_id, letter.reason) == ("m3", "duplicate")
    (line,) = [each for each in shop.session.journal.history("flow-m2") if each.waypoint == "committed"]
    assert line.detail == 'duplicate of ["Order","m1"]'
    assert shop.unsettled() == 0


@on_both_guards
def test_the_caller_of_a_duplicate_by_key_gets_the_stored_reply_over_the_broker(service: Make, guard: Any) -> None:
    def declare(app: App) -> None:
        @app.endpoint("shop.ask", mode="best_effort", key=("order_id",), guard=guard)
        def ask(ctx: Context, order: Order) -> Order:
            return Order(f"answer to {order.order_id}")

    shop = service("best_effort", None, declare)
    caller = Frame(to=ABROAD, state=msgspec.Raw(b"null"))
    for name in ("q1", "q2"):
        arrive_for(shop, name, "same", address="shop.ask", kind="request", stack=(caller,))
        shop.finish()
    replies = [decode_envelope(each.body) for each in shop.broker.waiting(ABROAD)]
    assert [bytes(each.messages[0].body) for each in replies] == [b'{"order_id":"answer to same"}'] * 2
    assert [each.cause_id for each in replies] == ["q1", "q2"]
    assert shop.harness.dead_letters() == []


@pytest.mark.parametrize("step", IN_DOUBT)
@pytest.mark.parametrize("guard", [None, "reactive"])
def test_a_run_with_a_key_that_is_killed_is_no_duplicate_of_itself(service: Make, guard: Any, step: Step) -> None:
    shop = service("best_effort", terms={"key": ("order_id",), "guard": guard})
    shop.die_of_a_message_at(step)
    shop.finish()
    assert (shop.effects(), len(shop.sent())) == ({"m1": 1}, 1)
    assert (shop.stored(), shop.unsettled(), shop.harness.dead_letters()) == (0, 0, [])


@on_both_guards
def test_of_a_done_and_a_new_message_in_one_envelope_the_new_one_runs(service: Make, guard: str) -> None:
    shop = service("best_effort", terms={"guard": guard})
    arrive_for(shop, "first", "a", "b")
    arrive_for(shop, "second", "b", "c")
    shop.finish()
    assert (shop.effects(), shop.sent().total()) == ({"a": 1, "b": 1, "c": 1}, 3)
    # What the store runs decides in the same way.
    with shop.app.initiate() as out:
        out.together(shop.pay, [Order("c"), Order("d")], flow_id="third", message_ids=["c", "d"])
    shop.finish()
    assert (shop.effects(), shop.sent().total()) == ({"a": 1, "b": 1, "c": 1, "d": 1}, 4)
    assert (shop.harness.dead_letters(), shop.unsettled()) == ([], 0)


def arrive_for(shop: DirectService, message_id: str, *orders: str, address: str = PAY, **fields: Any) -> None:
    """Let an envelope with several orders arrive, each with its own id."""
    messages = tuple(
        Message("Order", msgspec.Raw(b'{"order_id":"%s"}' % each.encode()), id=each if len(orders) > 1 else None)
        for each in orders
    )
    body = an_envelope(message_id, to=address, messages=messages, **fields)
    with closing(shop.broker.connect(SECONDS)) as connection:
        connection.publish([Publication(address, message_id, body, {})], SECONDS)
