"""Messages that a store refuses go to a queue at the broker, and no thread that receives waits for that."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest

from stagepost.broker.memory import MemoryBroker
from stagepost.broker.memory.connection import MemoryConnection
from stagepost.ports.broker import Delivery, Publication, PublishResult, refused_address
from stagepost.runtime.dead_publisher import DeadPublisher
from tests.waiting import PATIENCE_SECONDS, wait_until

ADDRESS = "shop.order"


def a_delivery(number: int) -> Delivery:
    return Delivery(ADDRESS, f"m{number}", b"{}", {}, None, False)


@pytest.fixture
def broker() -> MemoryBroker:
    broker = MemoryBroker()
    with closing(broker.connect(1)) as connection:
        connection.prepare([ADDRESS], "store")
    return broker


@pytest.fixture
def publisher(broker: MemoryBroker) -> Iterator[DeadPublisher]:
    with closing(DeadPublisher(broker)) as publisher:
        yield publisher


def test_a_message_is_settled_only_after_its_publication_was_confirmed(
    broker: MemoryBroker, publisher: DeadPublisher
) -> None:
    assert not publisher.publish(a_delivery(1))
    wait_until(lambda: broker.waiting(refused_address(ADDRESS)), "the message is published")
    wait_until(lambda: publisher.publish(a_delivery(1)), "the confirmation is known")
    assert [each.message_id for each in broker.waiting(refused_address(ADDRESS))] == ["m1"]


def test_a_message_that_the_broker_refuses_is_not_settled(
    broker: MemoryBroker, publisher: DeadPublisher, caplog: pytest.LogCaptureFixture
) -> None:
    broker.refusing = {refused_address(ADDRESS)}

    def is_refused_again() -> bool:
        assert not publisher.publish(a_delivery(1))
        return len(caplog.records) >= 2

    wait_until(is_refused_again, "the broker has refused it twice")
    assert {each.__dict__["event"] for each in caplog.records} == {"refused-waiting"}
    broker.refusing = set()
    wait_until(lambda: publisher.publish(a_delivery(1)), "the confirmation is known")


def test_a_broker_that_does_not_answer_holds_up_no_receiver(
    broker: MemoryBroker, publisher: DeadPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    publish = MemoryConnection.publish

    def publish_late(
        self: MemoryConnection, publications: Sequence[Publication], seconds: float
    ) -> list[PublishResult]:
        assert answers.wait(PATIENCE_SECONDS)
        return publish(self, publications, seconds)

    monkeypatch.setattr(MemoryConnection, "publish", publish_late)
    # Each of these calls returns although the broker has answered none of them.
    assert [publisher.publish(a_delivery(number)) for number in range(3)] == [False, False, False]
    answers.set()
    for number in range(3):
        wait_until(lambda number=number: publisher.publish(a_delivery(number)), "it is confirmed")  # type: ignore[misc]
