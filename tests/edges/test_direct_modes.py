"""The modes ``best_effort`` and ``transport``: what is settled directly, and what takes the receiver's way."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest

from stagepost import App, Context
from stagepost.flow.envelope import Frame
from stagepost.flow.errors import BrokerConnectionLost, CommitUnknown
from stagepost.observe.trace import read_trace
from stagepost.ports.broker import is_topic
from stagepost.runtime.back_pressure import BackPressure
from stagepost.runtime.edge import received
from stagepost.transaction.steps import STEPS, Halt, Step
from tests.edges.direct_service import ABROAD, PAY, DirectService, Order, note_effect

Make = Callable[..., DirectService]
on_both_modes = pytest.mark.parametrize("mode", ["best_effort", "transport"])
THREE_DAYS = 3 * 86_400.0
# The store, whether the broker has transactions, and the mode.
THOUSANDS = [("sqlite", True, "best_effort"), ("postgres", False, "transport")]


@on_both_modes
def test_a_fresh_delivery_that_succeeds_never_enters_the_queue(service: Make, mode: str) -> None:
    shop = service(mode)
    shop.arrive("m1", "m2")
    assert shop.turn() == 2
    assert shop.stored() == 0
    assert shop.unsettled() == 0
    assert len(shop.sent()) == 2
    assert sorted(shop.history()) == ["arrived", "committed", "confirmed", "sent"]
    assert shop.effects() == ({"m1": 1, "m2": 1} if mode == "best_effort" else {})


@on_both_modes
def test_each_mode_passes_its_steps_in_order(service: Make, mode: Any) -> None:
    shop = service(mode)
    passed: list[Step] = []
    shop.begin(lambda step, claim: passed.append(step))
    shop.arrive("m1")
    shop.turn()
    assert tuple(passed) == STEPS[mode]


@pytest.mark.parametrize("step", STEPS["best_effort"])
def test_best_effort_killed_at_a_step_does_its_work_at_least_once(service: Make, step: Step) -> None:
    shop = service("best_effort")
    shop.die_of_a_message_at(step)
    shop.finish()
    order = STEPS["best_effort"]
    is_in_doubt = Step.COMMITTED in order[: order.index(step) + 1] and step in (Step.COMMITTED, Step.CONFIRMED)
    # ActiveMQ settles the delivery with the commit of its transaction.
    comes_again = not (shop.broker.is_atomic and step is Step.CONFIRMED)
    assert shop.effects() == {"m1": 2 if is_in_doubt and comes_again else 1}
    assert ("doubted" in shop.history()) is (is_in_doubt and comes_again)
    # Every copy has the id of the first one, so its receiver takes one of them.
    assert len(shop.sent()) == 1
    assert shop.sent().total() == (2 if step is Step.CONFIRMED and comes_again else 1)
    assert shop.stored() == 0
    assert shop.unsettled() == 0


@pytest.mark.parametrize("step", STEPS["transport"])
def test_transport_killed_at_a_step_sends_one_message_in_effect(service: Make, step: Step) -> None:
    shop = service("transport")
    shop.die_of_a_message_at(step)
    shop.finish()
    assert len(shop.sent()) == 1
    # With confirms, a kill between the confirm and the settlement sends a copy with the same id.
    assert shop.sent().total() == (2 if step is Step.CONFIRMED and not shop.broker.is_atomic else 1)
    assert shop.stored() == 0
    assert shop.unsettled() == 0


@on_both_modes
def test_a_failed_delivery_is_counted_stored_and_settled(service: Make, mode: str) -> None:
    def fail(ctx: Context, order: Order) -> None:
        raise ValueError(order.order_id)

    shop = service(mode, fail)
    shop.arrive("m1")
    shop.turn()
    (depth,) = [each for each in shop.session.queue.depths() if each.stage == PAY]
    assert depth.delayed == 1
    assert shop.history() == ["arrived", "failed", "delayed"]
    assert shop.unsettled() == 0
    shop.finish()
    # The redeliveries run from the store, and the policy counts the first failure too.
    (letter,) = shop.harness.dead_letters()
    assert (letter.failures, letter.message_id) == (7, "m1")


@on_both_modes
def test_a_redelivered_message_runs_from_the_store(service: Make, mode: str) -> None:
    shop = service(mode)
    shop.arrive("m1")
    shop.die_at(Step.CLAIMED)
    with pytest.raises(Halt):
        shop.turn()
    shop.restart()
    shop.turn()
    assert (shop.runs, shop.stored()) == ([], 1)
    shop.finish()
    assert shop.runs == ["m1"]
    assert shop.sent().total() == 1


@on_both_modes
def test_every_delivery_is_stored_while_the_broker_takes_no_publications(service: Make, mode: str) -> None:
    shop = service(mode)
    shop.arrive("m1")
    shop.broker.is_blocked = True
    shop.turn()
    assert (shop.runs, shop.stored(), shop.unsettled()) == ([], 1, 0)
    shop.broker.is_blocked = False
    shop.finish()
    assert (shop.runs, shop.sent().total()) == (["m1"], 1)


@on_both_modes
def test_an_alarm_that_begins_during_the_run_sends_the_messages_to_the_outbound_rows(service: Make, mode: str) -> None:
    def begin_alarm(ctx: Context, order: Order) -> None:
        ctx.send(shop.app.remote(ABROAD, Order), order)
        shop.broker.is_blocked = True

    shop = service(mode, begin_alarm)
    shop.arrive("m1")
    shop.turn()
    assert (shop.runs, shop.stored(), shop.unsettled()) == (["m1"], 1, 0)
    shop.broker.is_blocked = False
    shop.dispatch()
    assert shop.sent().total() == 1


@on_both_modes
def test_a_delayed_message_waits_in_the_store(service: Make, mode: str) -> None:
    def send_later(ctx: Context, order: Order) -> None:
        ctx.send(shop.app.remote(ABROAD, Order), order, delay=60)

    shop = service(mode, send_later)
    shop.arrive("m1")
    shop.turn()
    shop.dispatch()
    assert (shop.runs, shop.sent(), shop.unsettled()) == (["m1"], {}, 0)
    shop.clock.advance(61)
    shop.dispatch()
    assert shop.sent().total() == 1


@pytest.mark.more
@pytest.mark.parametrize(("direct_url", "direct_broker", "mode"), THOUSANDS, indirect=["direct_url", "direct_broker"])
def test_a_thousand_messages_delayed_by_three_days_hold_up_no_other(service: Make, mode: str) -> None:
    shop = service(mode)
    late = [f"late{n}" for n in range(1_000)]
    with shop.app.initiate() as out:
        for each in late:
            out.send(shop.pay, Order(each), flow_id=each, delay=THREE_DAYS)
    pressure = BackPressure(shop.session, received(shop.engine, is_direct=True), shop.clock)
    for n in range(50):
        assert PAY in pressure.windows(takes_publications=True)
        shop.arrive(f"m{n}")
        assert shop.turn() == 1
        shop.clock.advance(60)
    assert shop.harness.run_one() is None
    assert shop.runs == [f"m{n}" for n in range(50)]
    shop.clock.advance(THREE_DAYS)
    shop.finish()
    assert sorted(shop.runs[50:]) == sorted(late)
    assert shop.sent().total() == 1_050
    assert (shop.stored(), shop.unsettled()) == (0, 0)


@on_both_modes
def test_a_stage_that_sends_nothing_settles_too(service: Make, mode: str) -> None:
    shop = service(mode, lambda ctx, order: None)
    shop.arrive("m1")
    shop.turn()
    shop.arrive("m1")
    shop.finish()
    assert shop.unsettled() == 0
    assert "doubted" not in shop.history()


def test_a_copy_of_a_handled_message_is_recognised_in_best_effort(service: Make) -> None:
    shop = service("best_effort")
    shop.arrive("m1")
    shop.turn()
    shop.arrive("m1")
    shop.finish()
    assert shop.effects() == {"m1": 1}
    assert shop.history().count("duplicate") == 1
    assert shop.sent().total() == 1
    assert shop.unsettled() == 0


def test_a_run_that_lost_its_delivery_cannot_commit_beside_the_stored_copy(
    service: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process stood still. The broker delivered the message again, and a receiver stored it."""

    def meanwhile(ctx: Context, order: Order) -> None:
        if len(shop.runs) == 1:
            shop.connection.close()
            other = shop.broker.connect(1)
            receiver = shop.consumer._receiver
            assert receiver.turn(other, {PAY: 1}, 0) == 1
            other.close()
            # The run does not know yet.
            monkeypatch.setattr(shop.connection, "is_alive", lambda seconds: True)
        ctx.sql("INSERT INTO effect (order_id) VALUES (:id)", id=order.order_id)

    shop = service("best_effort", meanwhile)
    shop.arrive("m1")
    with pytest.raises(BrokerConnectionLost):
        shop.turn()
    assert shop.effects() == {}
    shop.restart()
    shop.finish()
    assert (shop.effects(), shop.runs) == ({"m1": 1}, ["m1", "m1"])


def test_a_run_whose_delivery_is_lost_before_the_commit_is_abandoned_uncounted(service: Make) -> None:
    def lose(ctx: Context, order: Order) -> None:
        ctx.sql("INSERT INTO effect (order_id) VALUES (:id)", id=order.order_id)
        if len(shop.runs) == 1:
            shop.broker.cut()

    shop = service("best_effort", lose)
    shop.arrive("m1")
    with pytest.raises(BrokerConnectionLost):
        shop.turn()
    assert (shop.effects(), shop.history()) == ({}, [])
    shop.restart()
    shop.finish()
    assert shop.effects() == {"m1": 1}
    assert "failed" not in shop.history()


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_commit_without_an_answer_is_decided_by_the_redelivery(
    service: Make, monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    shop = service("best_effort")
    commit = shop.session.commit

    def fail() -> None:
        monkeypatch.setattr(shop.session, "commit", commit)
        if is_committed:
            commit()
        shop.session.rollback()
        raise CommitUnknown("the answer was lost")

    shop.arrive("m1")
    monkeypatch.setattr(shop.session, "commit", fail)
    with pytest.raises(BrokerConnectionLost):
        shop.turn()
    shop.restart()
    shop.finish()
    # The database has it, and the broker may lack what it sent: so it runs again.
    assert shop.effects() == {"m1": 2 if is_committed else 1}
    assert ("doubted" in shop.history()) is is_committed
    assert shop.sent().total() == 1


def test_what_the_broker_refuses_after_the_commit_is_sent_by_the_stored_copy(service: Make) -> None:
    shop = service("best_effort")
    shop.broker.refusing = {ABROAD}
    shop.arrive("m1")
    with pytest.raises(BrokerConnectionLost):
        shop.turn()
    shop.broker.refusing = set()
    shop.restart()
    shop.finish()
    assert shop.effects() == {"m1": 2}
    assert (shop.sent().total(), shop.unsettled()) == (1, 0)


def test_what_the_broker_refuses_in_transport_is_sent_by_the_dispatcher(service: Make) -> None:
    shop = service("transport")
    shop.broker.refusing = {ABROAD}
    shop.arrive("m1")
    shop.turn()
    assert (shop.runs, shop.stored(), shop.unsettled()) == (["m1"], 1, 0)
    shop.broker.refusing = set()
    shop.dispatch()
    assert shop.sent().total() == 1


@pytest.mark.parametrize("outcome", ["committed", "rolled back"])
@on_both_modes
def test_a_commit_of_the_broker_without_an_answer_is_decided_by_the_redelivery(
    service: Make, mode: str, outcome: Any
) -> None:
    shop = service(mode)
    if not shop.broker.is_atomic:
        pytest.skip("a broker without transactions has no commit")
    shop.broker.cut_commit = outcome
    shop.arrive("m1")
    with pytest.raises(BrokerConnectionLost):
        shop.turn()
    shop.restart()
    shop.finish()
    assert len(shop.sent()) == 1
    assert shop.sent().total() == 1
    assert len(shop.runs) == (1 if outcome == "committed" else 2)
    assert shop.unsettled() == 0


@pytest.mark.parametrize("use", ["sql", "connection", "session", "initiate"])
def test_transport_refuses_the_database_also_to_a_stored_copy(service: Make, use: str) -> None:
    def misuse(ctx: Context, order: Order) -> None:
        if use == "sql":
            ctx.sql("INSERT INTO effect (order_id) VALUES (:id)", id=order.order_id)
        elif use == "connection":
            ctx.connection.execute("DELETE FROM effect")
        elif use == "session":
            ctx.session.connection()
        else:
            with ctx.initiate() as out:
                out.send(shop.app.remote(ABROAD, Order), order, flow_id="other")

    shop = service("transport", misuse)
    shop.arrive("m1")
    shop.turn()
    shop.arrive("m2")
    shop.broker.is_blocked = True
    shop.turn()
    shop.harness.drain()
    first, second = shop.harness.dead_letters()
    assert {first.message_id, second.message_id} == {"m1", "m2"}
    for each in (first, second):
        assert "mode='transport' and used its database" in each.summary
        assert "Use mode='best_effort'" in each.summary
    assert shop.effects() == {}


@on_both_modes
def test_a_refused_delivery_is_a_dead_letter_at_once(service: Make, mode: str) -> None:
    def refuse(ctx: Context, order: Order) -> None:
        ctx.refuse("no such order")

    shop = service(mode, refuse)
    shop.arrive("m1")
    shop.turn()
    (letter,) = shop.harness.dead_letters()
    assert (letter.reason, shop.unsettled(), shop.stored()) == ("refused", 0, 0)


@on_both_modes
def test_a_reply_with_a_failure_undoes_the_work_and_leaves_by_the_dispatcher(service: Make, mode: Any) -> None:
    def declare(app: App) -> None:
        @app.endpoint("shop.ask", mode=mode)
        def ask(ctx: Context, order: Order) -> Order:
            if mode == "best_effort":
                note_effect(ctx, "failed")
            ctx.fail_with(Order("failed"))

    shop = service(mode, None, declare)
    caller = Frame(to=ABROAD, state=msgspec.Raw(b"null"))
    shop.arrive("m1", address="shop.ask", kind="request", stack=(caller,))
    shop.turn()
    shop.dispatch()
    (reply,) = shop.broker.waiting(ABROAD)
    assert b'"failed"' in reply.body
    assert (shop.effects(), shop.stored(), shop.unsettled()) == ({}, 0, 0)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.more) for seed in range(1, 6))])
@on_both_modes
def test_whatever_fails_each_message_is_sent_once_in_effect(service: Make, mode: str, seed: int) -> None:
    """Runs die at any step, connections are lost, the broker refuses, and copies arrive."""
    shop = service(mode)
    names = shop.run_among_faults(Random(seed))
    assert len(shop.sent()) == len(names)
    assert (shop.stored(), shop.unsettled(), shop.harness.dead_letters()) == (0, 0, [])
    if mode == "best_effort":
        doubted = {each: shop.history(each).count("doubted") for each in names}
        assert {each: shop.effects()[each] - doubted[each] for each in names} == dict.fromkeys(names, 1)


@on_both_modes
def test_a_publication_of_a_direct_stage_writes_no_rows_for_this_store(service: Make, mode: str) -> None:
    def publish(ctx: Context, order: Order) -> None:
        ctx.publish(shop.app.topic("prices", Order), order)

    def declare(app: App) -> None:
        @app.subscribe(app.topic("prices", Order), "shop.watch")
        def watch(ctx: Context, order: Order) -> None: ...

    shop = service(mode, publish, declare)
    shop.arrive("m1")
    shop.turn()
    assert shop.stored() == 0
    (waiting,) = shop.broker.waiting("shop.watch@prices")
    assert is_topic(waiting.address)


@on_both_modes
def test_a_stored_copy_sends_over_the_broker_as_the_first_run_did(service: Make, mode: str) -> None:
    def send_to_the_neighbour(ctx: Context, order: Order) -> None:
        ctx.send(shop.app.target("shop.note"), order)

    def declare(app: App) -> None:
        @app.endpoint("shop.note")
        def note(ctx: Context, order: Order) -> None: ...

    shop = service(mode, send_to_the_neighbour, declare)
    shop.arrive("m1")
    shop.turn()
    shop.arrive("m2")
    shop.broker.is_blocked = True
    shop.turn()
    shop.broker.is_blocked = False
    shop.finish()
    assert len(shop.broker.waiting("shop.note")) == 2


def test_stages_of_different_modes_stand_in_one_app(service: Make) -> None:
    shop = service("best_effort")

    @shop.app.endpoint("shop.route", mode="transport")
    def route(ctx: Context, order: Order) -> None:
        ctx.send(shop.app.target(PAY), order)

    @shop.app.endpoint("shop.note")
    def note(ctx: Context, order: Order) -> None: ...

    assert shop.engine.modes() == {PAY: "best_effort", "shop.route": "transport", "shop.note": "single"}


def test_trace_shows_a_doubted_message_as_waiting(service: Make) -> None:
    shop = service("best_effort")
    shop.die_of_a_message_at(Step.COMMITTED)
    shop.turn()
    trace = read_trace(shop.session.journal, "flow-m1")
    assert trace is not None
    assert trace.messages["m1"].standing == "waiting"
    shop.finish()
    trace = read_trace(shop.session.journal, "flow-m1")
    assert trace is not None
    assert trace.messages["m1"].standing == "committed"


@pytest.mark.parametrize("has_check", [False, True], ids=["wrong", "cured"])
def test_best_effort_needs_a_stage_that_is_idempotent(service: Make, has_check: bool) -> None:
    """A kill between the two commits runs the stage again. Its second INSERT meets the key of the first one."""

    def insert(ctx: Context, order: Order) -> None:
        if not (has_check and ctx.sql("SELECT 1 FROM paid WHERE order_id = :id", id=order.order_id)):
            ctx.sql("INSERT INTO paid (order_id) VALUES (:id)", id=order.order_id)
        # The check jumps over the work, and not over the message, which may not have left.
        ctx.send(shop.app.remote(ABROAD, Order), order)

    shop = service("best_effort", insert)
    shop.change("CREATE TABLE paid (order_id VARCHAR(20) PRIMARY KEY)")
    shop.die_of_a_message_at(Step.COMMITTED)
    shop.finish()
    if has_check:
        assert shop.sent().total() == 1
        assert shop.harness.dead_letters() == []
    else:
        # The flow has stopped: its next message was never sent.
        assert shop.sent() == {}
        (letter,) = shop.harness.dead_letters()
        assert "unique" in letter.summary.lower()
    assert shop.unsettled() == 0
