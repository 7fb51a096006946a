"""The receiver: each message enters the store once, and nothing is settled that is not committed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stagepost.broker.memory import MemoryBroker
from stagepost.flow import codec
from stagepost.flow.codec import encode_envelope
from stagepost.flow.envelope import Envelope, Message
from stagepost.flow.errors import (
    CommitUnknown,
    DeclarationError,
    StoreContention,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)
from stagepost.ports.broker import BrokerConnection, Delivery, Publication, refused_address
from stagepost.runtime.assembly import queue_commit_of
from stagepost.testing.contract.givens import NOW
from stagepost.transaction import receiver
from stagepost.transaction.arrivals import Entrance, ForeignMessages, replies_address
from stagepost.transaction.receiver import AGAIN_SECONDS, UNKNOWN_MAX, Receiver
from stagepost.transaction.steps import EdgeListener, EdgeStep, Halt, unobserved_edge
from tests.edges.service import Sender

ADDRESS = "shop.order"
WINDOW = 100
FOREIGN = ForeignMessages(id_from="field:number", producer_from="header:system")


class Receiving(Sender):
    """A service that receives at one address, and the broker's side of it."""

    def __init__(self, url: str, broker: MemoryBroker) -> None:
        super().__init__(url)
        self.broker = broker
        self.store = self.engine.store_uuid
        self.entrances = [
            Entrance(ADDRESS, ADDRESS, "Order"),
            Entrance("shop.foreign", "shop.foreign", "Order", FOREIGN),
            Entrance(replies_address(self.store), None),
        ]
        self.windows = {each.address: WINDOW for each in self.entrances}
        self.connection = self.connected()
        self.dead: list[Delivery] = []
        self.can_publish = True
        self.receiver = self.receiving()

    def connected(self) -> BrokerConnection:
        connection = self.broker.connect(1)
        connection.prepare(list(self.windows), self.store)
        return connection

    def receiving(self, listener: EdgeListener = unobserved_edge) -> Receiver:
        queue_commit = queue_commit_of(self.engine, self.access, self.node)
        return Receiver(queue_commit, self.entrances, self.store, self._publish_dead, listener)

    def _publish_dead(self, delivery: Delivery) -> bool:
        self.dead.append(delivery)
        return self.can_publish

    def turn(self) -> int:
        return self.receiver.turn(self.connection, self.windows, 0)

    def arrive(self, *bodies: bytes, address: str = ADDRESS, headers: dict[str, str] | None = None) -> None:
        publications = [Publication(address, hashlib.md5(each).hexdigest(), each, headers or {}) for each in bodies]
        with closing(self.broker.connect(1)) as connection:
            assert set(connection.publish(publications, 1)) <= {"confirmed"}

    def arrive_again(self) -> None:
        """Lose the connection: the broker delivers again all that is not settled."""
        self.connection.close()
        self.connection = self.connected()

    def depth(self) -> dict[str, int]:
        return {each.stage: each.ready for each in self.session.queue.depths() if each.ready}

    def unsettled(self) -> int:
        self.arrive_again()
        return len(self.broker.waiting(ADDRESS))


def an_envelope(message_id: str = "m1", body: str = '{"order_id":"o1"}', **fields: Any) -> bytes:
    values: dict[str, Any] = {
        "message_id": message_id,
        "flow_id": f"flow-{message_id}",
        "kind": "send",
        "to": ADDRESS,
        "sender": "web",
        "messages": (Message(type="Order", body=msgspec.Raw(body.encode())),),
        "origin_at": NOW,
        "sent_at": NOW,
    }
    return encode_envelope(Envelope(**(values | fields)))


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
def shop(tmp_path: Path, broker: MemoryBroker) -> Iterator[Receiving]:
    with closing(Receiving(f"sqlite:///{tmp_path / 'shop.db'}", broker)) as shop:
        yield shop


def failing(shop: Receiving, error: Callable[[Sequence[Any]], Exception | None]) -> None:
    """Let the write of rows raise the error that ``error`` returns for them."""
    enqueue = shop.session.queue.enqueue

    def fails(rows: Sequence[Any]) -> None:
        raised = error(rows)
        if raised is not None:
            raise raised
        enqueue(rows)

    shop.session.queue.enqueue = fails  # type: ignore[method-assign]


def bury_raises(shop: Receiving, error: Exception) -> None:
    """Let the write of dead letters raise the error."""

    def fails(letter: object) -> None:
        raise error

    shop.session.dead_letters.bury = fails  # type: ignore[method-assign]


def test_a_window_enters_the_store_and_is_settled(shop: Receiving) -> None:
    shop.arrive(an_envelope("m1"), an_envelope("m2"))
    assert shop.turn() == 2
    assert shop.depth() == {ADDRESS: 2}
    assert shop.history("flow-m1") == [("arrived", ADDRESS)]
    assert shop.unsettled() == 0
    (claim, _) = shop.access.claimer.claim([ADDRESS], 10, "w1", shop.node)
    assert claim.envelope == an_envelope(claim.message_id)


@pytest.mark.parametrize("step", [EdgeStep.RECEIVED, EdgeStep.STORING, EdgeStep.STORED, EdgeStep.SETTLED])
def test_a_receiver_that_dies_at_a_step_neither_loses_nor_doubles_a_message(shop: Receiving, step: EdgeStep) -> None:
    shop.arrive(an_envelope("m1"), an_envelope("m2"))

    def halt(current: EdgeStep, message_ids: object) -> None:
        if current is step:
            raise Halt

    with pytest.raises(Halt):
        shop.receiving(halt).turn(shop.connection, shop.windows, 0)
    shop.arrive_again()
    for _ in range(2):
        shop.turn()
    assert shop.depth() == {ADDRESS: 2}
    assert shop.unsettled() == 0
    duplicates = [name for name, _ in shop.history("flow-m1")].count("duplicate")
    assert duplicates == (1 if step is EdgeStep.STORED else 0)


def test_a_copy_starts_nothing(shop: Receiving, broker: MemoryBroker) -> None:
    broker.doubling = 1
    shop.arrive(an_envelope("m1"))
    assert shop.turn() == 2
    assert shop.depth() == {ADDRESS: 1}
    assert shop.history("flow-m1") == [("arrived", ADDRESS), ("duplicate", ADDRESS)]


def test_the_scope_of_an_initiation_is_another_one(shop: Receiving) -> None:
    """An endpoint accepts an id from a caller, and its address accepts it from the broker."""
    order: Any = shop.app.remote(ADDRESS, msgspec.defstruct("Order", [("order_id", str)]))
    shop.app.start(order, order.message_type("o1"), flow_id="f1", message_id="m1")
    shop.arrive(an_envelope("m1"))
    shop.turn()
    assert shop.depth()[ADDRESS] == 1


def test_other_content_under_a_derived_id_is_another_run_of_its_stage(shop: Receiving) -> None:
    shop.arrive(an_envelope("m1", cause_id="c1"))
    shop.turn()
    shop.arrive(an_envelope("m1", '{"order_id":"o2"}', cause_id="c1"))
    assert shop.turn() == 1
    assert (shop.depth(), shop.letters()) == ({ADDRESS: 1}, [])
    last = shop.session.journal.history("flow-m1")[-1]
    assert (last.waypoint, last.detail) == ("duplicate", "differs")


def a_message(order_id: str, type_name: str = "Order") -> Message:
    return Message(type=type_name, body=msgspec.Raw(f'{{"order_id":"{order_id}"}}'.encode()))


@pytest.mark.parametrize(
    "other",
    [(a_message("o2"),), (a_message("o1", "Return"),), (a_message("o1"), a_message("o1"))],
    ids=["body", "type", "number"],
)
def test_other_content_under_a_callers_id_is_one_dead_letter(
    shop: Receiving, broker: MemoryBroker, other: tuple[Message, ...]
) -> None:
    shop.arrive(an_envelope("m1"))
    shop.turn()
    broker.doubling = 1
    shop.arrive(an_envelope("m1", messages=other))
    assert shop.turn() == 2
    (letter,) = shop.letters()
    assert letter.reason == "conflict"
    for messages in ((a_message("o1"),), other):
        content = codec.joined([each.type for each in messages], [each.body for each in messages])
        assert codec.digest(content)[:16] in letter.summary
    assert shop.depth() == {ADDRESS: 1}


@pytest.mark.parametrize(
    "body", [b"", b"no JSON", b'{"an": "object"}', an_envelope(message_id="line\nend"), b"\xff\xfe"]
)
def test_an_unreadable_message_is_one_dead_letter(shop: Receiving, broker: MemoryBroker, body: bytes) -> None:
    broker.doubling = 1
    shop.arrive(body)
    assert shop.turn() == 2
    (letter,) = shop.letters()
    assert letter.envelope == body
    assert shop.unsettled() == 0


def test_what_the_stage_cannot_decode_is_for_the_stage(shop: Receiving) -> None:
    shop.arrive(an_envelope("m1", '{"unknown":1}'))
    shop.turn()
    assert (shop.depth(), shop.letters()) == ({ADDRESS: 1}, [])


def test_a_redelivered_message_is_stored_alone(shop: Receiving) -> None:
    shop.arrive(*(an_envelope(f"m{n}") for n in range(3)))
    shop.connection.subscribe(shop.windows)
    assert len(shop.connection.receive(1)) == 3
    shop.arrive_again()
    shop.arrive(an_envelope("m3"), an_envelope("m4"))
    stored: list[int] = []

    def listen(step: EdgeStep, message_ids: Sequence[str]) -> None:
        if step is EdgeStep.STORED:
            stored.append(len(message_ids))

    assert shop.receiving(listen).turn(shop.connection, shop.windows, 0) == 5
    assert stored == [2, 1, 1, 1]


@pytest.mark.parametrize("error", [StoreUnavailable("down"), StoreError("anything"), CommitUnknown("lost")])
def test_nothing_is_settled_while_the_store_is_away(shop: Receiving, error: StoreError) -> None:
    shop.arrive(an_envelope("m1"), an_envelope("m2"))
    failing(shop, lambda rows: error)
    with pytest.raises(type(error)):
        shop.turn()
    assert (shop.depth(), shop.unsettled()) == ({}, 2)
    del shop.session.queue.enqueue
    assert shop.turn() == 2
    assert shop.depth() == {ADDRESS: 2}


def test_a_message_whose_data_is_refused_is_a_dead_letter_and_its_neighbours_are_stored(shop: Receiving) -> None:
    shop.arrive(an_envelope("m1"), an_envelope("bad"), an_envelope("m2"))
    failing(shop, lambda rows: StoreRefused("value out of range") if any(r.message_id == "bad" for r in rows) else None)
    assert shop.turn() == 3
    assert shop.depth() == {ADDRESS: 2}
    assert [each.message_id for each in shop.letters()] == ["bad"]
    # Its key is accepted, so a copy makes no second letter.
    shop.arrive(an_envelope("bad"))
    assert (shop.turn(), len(shop.letters())) == (1, 1)


def test_a_message_whose_dead_letter_is_refused_goes_to_a_queue_of_the_broker(shop: Receiving) -> None:
    shop.arrive(an_envelope("bad"))
    failing(shop, lambda rows: StoreRefused("too big"))
    bury_raises(shop, StoreRefused("too big"))
    shop.can_publish = False
    assert shop.turn() == 0
    assert shop.turn() == 0, "it waits, and is not tried at once"
    assert len(shop.dead) == 1
    shop.arrive(an_envelope("m1"))
    del shop.session.queue.enqueue
    assert shop.turn() == 1, "receiving goes on"
    failing(shop, lambda rows: StoreRefused("too big"))
    shop.clock.advance(AGAIN_SECONDS + 1)
    shop.can_publish = True
    assert shop.turn() == 1
    assert shop.unsettled() == 0
    assert refused_address(ADDRESS) == f"_dead.{ADDRESS}"


def test_a_dead_letter_that_meets_a_lock_is_tried_again_and_not_published(shop: Receiving) -> None:
    shop.arrive(an_envelope("bad"))
    failing(shop, lambda rows: StoreRefused("too big"))
    bury_raises(shop, StoreContention("held"))
    shop.can_publish = True
    assert (shop.turn(), shop.unsettled(), shop.dead) == (0, 1, [])
    del shop.session.dead_letters.bury
    shop.clock.advance(AGAIN_SECONDS + 1)
    assert (shop.turn(), shop.unsettled()) == (1, 0)
    assert [each.message_id for each in shop.letters()] == ["bad"]


def test_a_dead_letter_that_meets_an_unknown_error_settles_nothing(shop: Receiving) -> None:
    shop.arrive(an_envelope("bad"))
    failing(shop, lambda rows: StoreRefused("too big"))
    bury_raises(shop, StoreError("no right to write"))
    shop.can_publish = True
    with pytest.raises(StoreError, match="no right"):
        shop.turn()
    assert (shop.unsettled(), shop.dead) == (1, [])


def test_a_message_that_another_receiver_stores_is_tried_again_and_the_others_go_on(shop: Receiving) -> None:
    shop.arrive(an_envelope("m1"), an_envelope("held"), an_envelope("m2"))
    failing(shop, lambda rows: StoreContention("held") if any(r.message_id == "held" for r in rows) else None)
    assert shop.turn() == 2
    assert shop.depth() == {ADDRESS: 2}
    del shop.session.queue.enqueue
    assert shop.turn() == 0
    shop.clock.advance(AGAIN_SECONDS + 1)
    assert shop.turn() == 1
    assert shop.letters() == []


def test_an_unknown_error_is_the_messages_own_once_others_were_stored_in_between(shop: Receiving) -> None:
    failing(shop, lambda rows: StoreError("odd") if any(r.message_id == "odd" for r in rows) else None)
    shop.arrive(an_envelope("odd"))
    for number in range(UNKNOWN_MAX + 5):
        if shop.letters():
            break
        shop.arrive(an_envelope(f"m{number}"))
        shop.arrive_again()
        try:
            shop.turn()
        except StoreError:
            shop.session.rollback()
    assert [each.message_id for each in shop.letters()] == ["odd"]
    assert shop.unsettled() == 0


def test_a_receiver_whose_messages_are_stored_by_another_one_suspects_a_bounded_number(
    shop: Receiving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "SUSPICIONS_MAX", 3)
    is_failing = True
    failing(shop, lambda rows: StoreError("odd") if is_failing else None)
    other = shop.receiving()
    for number in range(10):
        shop.arrive(an_envelope(f"odd{number}"))
        shop.arrive_again()
        with pytest.raises(StoreError):
            shop.turn()
        assert 1 <= len(shop.receiver._suspicions) <= 3
        is_failing = False
        shop.arrive_again()
        assert other.turn(shop.connection, shop.windows, 0) == 1
        is_failing = True


def test_an_unknown_error_without_other_commits_is_an_outage(shop: Receiving) -> None:
    failing(shop, lambda rows: StoreError("odd"))
    shop.arrive(an_envelope("odd"))
    for _ in range(3 * UNKNOWN_MAX):
        shop.arrive_again()
        with pytest.raises(StoreError):
            shop.turn()
    assert shop.letters() == []


def test_stopping_stores_what_was_pushed_already(shop: Receiving, broker: MemoryBroker) -> None:
    shop.turn()
    shop.arrive(an_envelope("m1"), an_envelope("m2"))
    assert shop.receiver.stop(shop.connection) == 2
    shop.arrive(an_envelope("m3"))
    assert shop.receiver.turn(shop.connection, {}, 0) == 0
    assert len(broker.waiting(ADDRESS)) == 1


def test_a_reply_waits_at_the_private_address_of_this_store(shop: Receiving) -> None:
    mine = f"shop.reply.0198c0de-0000-7000-8000-000000000001@{shop.store}"
    shop.arrive(an_envelope("m1", to=mine), address=replies_address(shop.store))
    assert shop.turn() == 1
    assert shop.depth() == {mine: 1}


@pytest.mark.parametrize("to", ["shop.order", "shop.reply.0198c0de-0000-7000-8000-000000000001"])
def test_another_message_at_the_address_of_replies_is_a_dead_letter(shop: Receiving, to: str) -> None:
    shop.arrive(an_envelope("m1", to=to), address=replies_address(shop.store))
    assert shop.turn() == 1
    assert (shop.depth(), [each.reason for each in shop.letters()]) == ({}, ["hopeless"])


# Foreign messages


def test_a_foreign_message_gets_an_envelope_with_the_producers_id(shop: Receiving, broker: MemoryBroker) -> None:
    body = json.dumps({"number": 1, "order_id": "o1"}).encode()
    broker.doubling = 1
    shop.arrive(body, address="shop.foreign", headers={"system": "erp"})
    shop.arrive(body, address="shop.foreign", headers={"system": "web"})
    assert shop.turn() == 3
    claims = shop.access.claimer.claim(["shop.foreign"], 10, "w1", shop.node)
    envelopes = [msgspec.json.decode(each.envelope, type=Envelope) for each in claims]
    assert {bytes(each.properties["producer_id"]) for each in envelopes} == {b'"1"'}
    assert {each.flow_id for each in envelopes} == {"erp:1", "web:1"}
    assert len({each.message_id for each in envelopes}) == 2
    assert {bytes(each.messages[0].body) for each in envelopes} == {body}


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b'{"order_id": "o1"}', {"system": "erp"}),
        (b'{"number": 1}', {}),
        (b'{"number": [1]}', {"system": "erp"}),
        (b'{"number": 1', {"system": "erp"}),
        (b'{"number": " 1"}', {"system": "erp"}),
        (b"[1]", {"system": "erp"}),
    ],
)
def test_a_foreign_message_without_its_ids_is_a_dead_letter(
    shop: Receiving, body: bytes, headers: dict[str, str]
) -> None:
    shop.arrive(body, address="shop.foreign", headers=headers)
    assert shop.turn() == 1
    assert [(each.reason, each.envelope) for each in shop.letters()] in (
        [("undecodable", body)],
        [("unsendable", body)],
    )


def test_other_content_under_a_foreign_id_is_a_dead_letter(shop: Receiving) -> None:
    for text in ("a", "b"):
        shop.arrive(json.dumps({"number": 1, "text": text}).encode(), address="shop.foreign", headers={"system": "erp"})
        shop.turn()
    assert [each.reason for each in shop.letters()] == ["conflict"]


def test_two_producers_need_two_names() -> None:
    with pytest.raises(DeclarationError, match="producer"):
        ForeignMessages(id_from="field:number")
    with pytest.raises(DeclarationError, match="producer"):
        ForeignMessages(id_from="field:number", producer="erp", producer_from="header:system")
    with pytest.raises(DeclarationError, match="id_from"):
        ForeignMessages(id_from="number", producer="erp")
