"""The dispatcher: outbound rows leave once, and each answer of the broker counts against whatever caused it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from stagepost import App, Context, DeclarationError, IllegalCall
from stagepost.broker.memory import MemoryBroker
from stagepost.broker.memory.queue import BODY_BYTES_MAX
from stagepost.flow.clock import SECOND, SystemClock
from stagepost.flow.errors import BrokerConnectionLost
from stagepost.flow.target import Target
from stagepost.ports.broker import BrokerConnection, Publication, PublishResult
from stagepost.recovery.outbound import COPY_HORIZON, LOSSES_MAX
from stagepost.testing import Harness
from stagepost.testing.contract.givens import committed
from stagepost.transaction import dispatcher
from stagepost.transaction.dispatcher import WINDOW
from stagepost.transaction.publication import BARE, CAUSE_HEADER, FLOW_HEADER, MESSAGE_HEADER, publication_at
from stagepost.transaction.steps import EdgeStep, Halt
from tests.edges.service import ABROAD, OUT, Order, Sender, flows_of, prepared

OTHER = "ledger.settle"
HOUR = 3600.0


@dataclass
class Packing:
    is_bare: bool


@pytest.fixture
def sender(tmp_path: Path) -> Iterator[Sender]:
    with closing(Sender(f"sqlite:///{tmp_path / 'shop.db'}")) as sender:
        yield sender


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


def lost(sender: Sender, broker: MemoryBroker) -> None:
    """Take one turn over a connection that is lost after its first message was stored."""
    broker.cut_after = 0
    with pytest.raises(BrokerConnectionLost):
        sender.dispatcher.turn(broker.connect(1))


def published_by(connection: BrokerConnection) -> list[int]:
    """Return a list that gets the number of publications of each window from now on."""
    published: list[int] = []
    publish = connection.publish

    def counted(publications: Sequence[Publication], seconds: float) -> list[PublishResult]:
        published.append(len(publications))
        return publish(publications, seconds)

    connection.publish = counted  # type: ignore[method-assign]
    return published


def test_a_confirmed_message_is_removed_and_journalled(sender: Sender, broker: MemoryBroker) -> None:
    connection = prepared(broker, ABROAD)
    sender.send("f1", "f2")
    assert sender.dispatcher.turn(connection) == 2
    assert sorted(flows_of(broker.waiting(ABROAD))) == ["f1", "f2"]
    assert sender.waiting() == {}
    assert sender.history("f1") == [("accepted", OUT), ("confirmed", OUT)]
    assert sender.dispatcher.turn(connection) == 0


def test_a_service_without_an_envelope_gets_the_body_and_the_ids(sender: Sender, broker: MemoryBroker) -> None:
    connection = prepared(broker, ABROAD, OTHER)
    bare: Target[Order, None] = sender.app.remote(ABROAD, Order, envelope=False)
    whole: Target[Packing, None] = sender.app.remote(OTHER, Packing)
    with sender.app.initiate() as out:
        started = out.send(bare, Order("o1"), flow_id="f1")
    with sender.app.initiate() as out:
        # This body has the bytes that mark an envelope of the other kind.
        out.send(whole, Packing(is_bare=True), flow_id="f2")
    assert sender.dispatcher.turn(connection) == 2
    (sent,) = broker.waiting(ABROAD)
    assert (sent.body, sent.headers[FLOW_HEADER]) == (b'{"order_id":"o1","text":""}', "f1")
    assert (sent.message_id, sent.headers[MESSAGE_HEADER]) == (started.message_id, started.message_id)
    (sent,) = broker.waiting(OTHER)
    assert BARE in sent.body
    assert msgspec.json.decode(sent.body)["flow_id"] == "f2"


def test_a_stage_sends_a_body_without_its_envelope(tmp_path: Path) -> None:
    app = App("shop", database=f"sqlite:///{tmp_path / 'shop.db'}", broker="memory:tests")
    bare: Target[Order, None] = app.remote(ABROAD, Order, envelope=False)

    @app.endpoint("shop.order")
    def order(ctx: Context, order: Order) -> None:
        ctx.send(bare, order)

    started = app.start(order, Order("o1"), flow_id="f1")
    with closing(app), closing(Harness(app)) as worker:
        worker.drain()
        with committed(worker.access.session):
            (claim,) = worker.access.session.queue.claim([OUT], 1, "shop/1", SystemClock().now())
    sent = publication_at(claim.stage, claim.message_id, claim.flow_id, claim.envelope)
    assert (sent.address, sent.body) == (ABROAD, b'{"order_id":"o1","text":""}')
    assert (sent.headers[FLOW_HEADER], sent.headers[CAUSE_HEADER]) == ("f1", started.message_id)


def test_a_service_without_an_envelope_cannot_reply_and_takes_one_message_at_a_time(sender: Sender) -> None:
    with pytest.raises(DeclarationError, match="Leave the reply out"):
        sender.app.remote("erp.order", Order, Order, envelope=False)
    bare: Target[Order, None] = sender.app.remote("erp.order", Order, envelope=False)
    with pytest.raises(IllegalCall, match="Send each of them alone"), sender.app.initiate() as out:
        out.together(bare, [Order("o1"), Order("o2")], flow_id="f1")


def test_destinations_with_nothing_due_leave_their_shares_to_the_busy_one(sender: Sender, broker: MemoryBroker) -> None:
    connection = prepared(broker, ABROAD)
    for number in range(9):
        sender.send(f"later{number}", to=f"ledger.later{number}", delay=HOUR)
    sender.send(*(f"f{number}" for number in range(WINDOW)))
    assert sender.dispatcher.turn(connection) == WINDOW


def test_nothing_is_claimed_while_the_broker_takes_no_publications(sender: Sender, broker: MemoryBroker) -> None:
    connection = prepared(broker, ABROAD)
    sender.send("f1")
    broker.is_blocked = True
    assert sender.dispatcher.turn(connection) == 0
    assert (sender.claimed(), sender.paused()) == (0, [])
    broker.is_blocked = False
    assert sender.dispatcher.turn(connection) == 1


def test_a_refusal_pauses_its_destination_and_no_other(sender: Sender, broker: MemoryBroker) -> None:
    connection = prepared(broker, ABROAD, OTHER)
    broker.refusing = {ABROAD}
    sender.send("f1", "f2")
    sender.send("f3", to=OTHER)
    assert sender.dispatcher.turn(connection) == 1
    assert sender.paused() == [OUT]
    assert (sender.waiting(), sender.claimed()) == ({OUT: 2}, 0)
    sender.send("f4", to=OTHER)
    assert sender.dispatcher.turn(connection) == 1
    assert flows_of(broker.waiting(OTHER)) == ["f3", "f4"]
    assert sender.letters() == []


def test_a_probe_that_is_confirmed_ends_the_pause(sender: Sender, broker: MemoryBroker) -> None:
    connection = prepared(broker, ABROAD)
    broker.refusing = {ABROAD}
    sender.send("f1", "f2", "f3")
    for _ in range(3):
        sender.dispatcher.turn(connection)
        sender.clock.advance(60)
    assert sender.session.circuits.paused()[0].pause.probes == 2  # type: ignore[union-attr]
    broker.refusing = set()
    assert sender.dispatcher.turn(connection) == 1
    assert sender.paused() == []
    assert sender.dispatcher.turn(connection) == 2


def test_an_unroutable_message_waits_for_its_queue(sender: Sender, broker: MemoryBroker) -> None:
    connection = broker.connect(1)
    sender.send("f1")
    assert sender.dispatcher.turn(connection) == 0
    assert (sender.paused(), sender.waiting()) == ([OUT], {OUT: 1})
    prepared(broker, ABROAD)
    sender.clock.advance(2)
    assert sender.dispatcher.turn(connection) == 1


def test_an_oversized_message_dies_and_its_neighbours_go(sender: Sender, broker: MemoryBroker) -> None:
    connection = prepared(broker, ABROAD)
    sender.send("f1", "f2")
    sender.send("huge", text="x" * BODY_BYTES_MAX)
    assert sender.dispatcher.turn(connection) == 3
    assert sorted(flows_of(broker.waiting(ABROAD))) == ["f1", "f2"]
    (letter,) = sender.letters()
    assert (letter.flow_id, letter.reason, letter.stage) == ("huge", "oversized", OUT)
    assert (sender.paused(), sender.waiting()) == ([], {})


def test_a_missing_confirm_pauses_its_destination_and_counts_against_no_message(
    sender: Sender, broker: MemoryBroker
) -> None:
    connection = prepared(broker, ABROAD, OTHER)
    broker.silent = {ABROAD}
    sender.send("f1")
    sender.send("f2", to=OTHER)
    with pytest.raises(BrokerConnectionLost):
        sender.dispatcher.turn(connection)
    assert sender.paused() == [OUT]
    assert flows_of(broker.waiting(OTHER)) == ["f2"]
    assert (sender.waiting(), sender.claimed()) == ({OUT: 1}, 0)
    for _ in range(2 * LOSSES_MAX):
        sender.clock.advance(70)
        with pytest.raises(BrokerConnectionLost):
            sender.dispatcher.turn(broker.connect(1))
    assert sender.letters() == []
    broker.silent = set()
    sender.clock.advance(70)
    assert sender.dispatcher.turn(broker.connect(1)) == 1


@pytest.mark.parametrize("how", ["refusing", "missing", "silent"])
def test_a_destination_that_is_away_for_an_hour_holds_up_no_neighbour(
    sender: Sender, broker: MemoryBroker, how: str
) -> None:
    prepared(broker, OTHER)
    if how != "missing":
        prepared(broker, ABROAD)
        setattr(broker, how, {ABROAD})

    def turn() -> None:
        # A missing confirm costs the connection. The neighbour's next turn has another one.
        for _ in range(2):
            with suppress(BrokerConnectionLost):
                sender.dispatcher.turn(broker.connect(1))

    for minute in range(60):
        sender.send(f"away{minute}")
        sender.send(f"healthy{minute}", to=OTHER)
        turn()
        assert len(broker.waiting(OTHER)) == minute + 1
        sender.clock.advance(60)
    assert (sender.waiting(), sender.paused(), sender.letters()) == ({OUT: 60}, [OUT], [])
    broker.refusing = broker.silent = set()
    prepared(broker, ABROAD)
    sender.clock.advance(HOUR)
    while sender.waiting():
        turn()
    assert {*flows_of(broker.waiting(ABROAD))} == {f"away{minute}" for minute in range(60)}
    assert sender.letters() == []


def test_after_a_lost_connection_its_messages_go_one_by_one(sender: Sender, broker: MemoryBroker) -> None:
    prepared(broker, ABROAD)
    sender.send("f1", "f2", "f3")
    lost(sender, broker)
    assert (sender.waiting(), sender.claimed()) == ({OUT: 3}, 0)
    published = published_by(connection := broker.connect(1))
    sender.send("f4", "f5")
    assert sender.dispatcher.turn(connection) == 5
    assert published == [2, 1, 1, 1]
    assert {*flows_of(broker.waiting(ABROAD))} == {"f1", "f2", "f3", "f4", "f5"}


def test_a_dispatcher_whose_messages_leave_by_another_one_remembers_a_bounded_number(
    sender: Sender, broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "ALONE_MAX", 6)
    prepared(broker, ABROAD)
    other = sender.made("shop/2")
    for number in range(5):
        sender.send(*(f"f{number}-{n}" for n in range(4)))
        lost(sender, broker)
        # A window may come on top of the limit.
        assert len(sender.dispatcher._alone) <= 6 + 4
        while sender.waiting():
            other.turn(broker.connect(1))
    sender.send("f1", "f2")
    lost(sender, broker)
    published = published_by(connection := broker.connect(1))
    assert (sender.dispatcher.turn(connection), published) == (2, [1, 1])


def test_a_message_that_loses_ten_connections_alone_is_a_dead_letter(sender: Sender, broker: MemoryBroker) -> None:
    prepared(broker, ABROAD)
    sender.send("f1")
    for losses in range(1, LOSSES_MAX):
        lost(sender, broker)
        assert sender.waiting() == {OUT: 1}, losses
        # It waits, and a neighbour goes first.
        assert sender.dispatcher.turn(broker.connect(1)) == 0
        sender.clock.advance(70)
    lost(sender, broker)
    assert sender.waiting() == {}
    (letter,) = sender.letters()
    assert (letter.reason, letter.failures) == ("maybe-sent", LOSSES_MAX)


def test_the_broker_that_takes_every_connection_down_costs_a_neighbour_nothing(
    sender: Sender, broker: MemoryBroker
) -> None:
    prepared(broker, ABROAD)
    sender.send("f1")
    lost(sender, broker)
    sender.send("f2")
    assert sender.dispatcher.turn(broker.connect(1)) == 1
    assert flows_of(broker.waiting(ABROAD)) == ["f1", "f2"]


def test_a_row_that_left_long_ago_is_not_published_again(sender: Sender, broker: MemoryBroker) -> None:
    prepared(broker, ABROAD)
    sender.send("f1")
    lost(sender, broker)
    sender.clock.advance(COPY_HORIZON / SECOND + HOUR)
    assert sender.dispatcher.turn(broker.connect(1)) == 1
    assert [each.reason for each in sender.letters()] == ["maybe-sent"]
    assert flows_of(broker.waiting(ABROAD)) == ["f1"]


@pytest.mark.parametrize("how", ["refused", "never claimed"])
def test_a_row_that_never_left_is_published_however_old_it_is(sender: Sender, broker: MemoryBroker, how: str) -> None:
    connection = prepared(broker, ABROAD)
    sender.send("f1")
    if how == "refused":
        broker.refusing = {ABROAD}
        assert sender.dispatcher.turn(connection) == 0
        broker.refusing = set()
    sender.clock.advance(COPY_HORIZON / SECOND + HOUR)
    assert sender.dispatcher.turn(connection) == 1
    assert flows_of(broker.waiting(ABROAD)) == ["f1"]


def test_a_delayed_message_leaves_when_it_is_due(sender: Sender, broker: MemoryBroker) -> None:
    connection = prepared(broker, ABROAD)
    sender.send("f1", delay=60)
    assert sender.dispatcher.turn(connection) == 0
    sender.clock.advance(61)
    assert sender.dispatcher.turn(connection) == 1


def test_a_busy_destination_leaves_room_in_the_window_for_others(sender: Sender, broker: MemoryBroker) -> None:
    connection = prepared(broker, ABROAD, OTHER)
    sender.send(*(f"busy-{n}" for n in range(WINDOW + 20)))
    sender.send("f1", to=OTHER)
    sender.dispatcher.turn(connection)
    assert flows_of(broker.waiting(OTHER)) == ["f1"]


@pytest.mark.parametrize("step", [EdgeStep.CLAIMED, EdgeStep.PUBLISHED, EdgeStep.REMOVING, EdgeStep.REMOVED])
def test_a_dispatcher_that_dies_at_a_step_loses_nothing(sender: Sender, broker: MemoryBroker, step: EdgeStep) -> None:
    prepared(broker, ABROAD)
    sender.send("f1", "f2")

    def halt(current: EdgeStep, message_ids: object) -> None:
        if current is step:
            raise Halt

    with pytest.raises(Halt):
        sender.made("shop/victim", halt).turn(broker.connect(1))
    # The takeover gives the rows of a dead dispatcher back, uncounted: it names nothing as running.
    sender.access.claimer.release(sender.session.queue.owned("shop/victim"), sender.node)
    sender.dispatcher.turn(broker.connect(1))
    published = broker.waiting(ABROAD)
    assert {*flows_of(published)} == {"f1", "f2"}
    assert len({each.message_id for each in published}) == 2
    assert len(published) == (2 if step in (EdgeStep.CLAIMED, EdgeStep.REMOVED) else 4)
    assert (sender.waiting(), sender.letters()) == ({}, [])


def test_a_turn_that_broke_off_claims_again_and_never_publishes_from_memory(
    sender: Sender, broker: MemoryBroker
) -> None:
    connection = prepared(broker, ABROAD)
    sender.send("f1")
    connection.close()
    with pytest.raises(BrokerConnectionLost):
        sender.dispatcher.turn(connection)
    assert (sender.waiting(), sender.claimed()) == ({OUT: 1}, 0)
    assert sender.session.edge.left_at(sender.session.queue.owned("shop/1")) == {}
    assert sender.dispatcher.turn(broker.connect(1)) == 1


def test_a_paused_dispatcher_that_lost_its_rows_confirms_none_of_them(sender: Sender, broker: MemoryBroker) -> None:
    prepared(broker, ABROAD)
    sender.send("f1", "f2")

    def taken_over(step: EdgeStep, message_ids: object) -> None:
        if step is EdgeStep.PUBLISHED:
            claims = sender.session.queue.owned("shop/paused")
            sender.access.claimer.release(claims[:1], sender.node)

    assert sender.made("shop/paused", taken_over).turn(broker.connect(1)) == 1
    assert sender.waiting() == {OUT: 1}
    assert sender.dispatcher.turn(broker.connect(1)) == 1
    assert [name for name, _ in sender.history("f1") + sender.history("f2")].count("confirmed") == 2
