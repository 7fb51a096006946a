"""Marks of ownership at a scripted ActiveMQ: the head of the queue of marks names the store of an address."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from stagepost.broker.activemq.frames import Frame
from stagepost.flow.errors import AddressTaken
from stagepost.ports.broker import BrokerConnection
from tests.broker.scripted_broker import Answers, ScriptedBroker, receipt

OURS, THEIRS = "11111111-1111-7111-8111-111111111111", "22222222-2222-7222-8222-222222222222"


class QueueOfMarks:
    """The queue of marks of one address, as ActiveMQ shows it. The marks ``before`` arrive just before the next one."""

    def __init__(self, *marks: tuple[str, str], before: Sequence[tuple[str, str]] = ()) -> None:
        self.marks = list(marks)
        self._before = list(before)

    def script(self, frame: Frame) -> Answers | None:
        if frame.command == "SEND":
            self.marks += [*self._before, (frame.headers["store"], frame.headers["mark"])]
            self._before = []
        if frame.command == "ACK":
            self.marks = [each for each in self.marks if each[1] != frame.headers["id"]]
        if frame.command != "SUBSCRIBE":
            return None
        number = frame.headers["id"]
        # All other queues are empty.
        marks = self.marks if frame.headers["destination"].startswith("/queue/_store.") else []
        shown = [self._message(number, *each) for each in marks if self._is_selected(frame, *each)]
        if frame.headers.get("browser") == "true":
            end = {"subscription": number, "message-id": "0", "browser": "end"}
            shown.append(Frame("MESSAGE", end))
        return [receipt(frame), *shown]

    @staticmethod
    def _message(number: str, store: str, mark: str) -> Frame:
        own = {"subscription": number, "message-id": mark, "ack": mark}
        return Frame("MESSAGE", {**own, "store": store, "mark": mark})

    @staticmethod
    def _is_selected(frame: Frame, store: str, mark: str) -> bool:
        selector = re.fullmatch(r"(store|mark)='([^']*)'", frame.headers.get("selector", "store=''"))
        assert selector
        return selector[2] in ("", store if selector[1] == "store" else mark)

    @property
    def stores(self) -> list[str]:
        return [store for store, _ in self.marks]


@contextmanager
def connected(queue: QueueOfMarks) -> Iterator[tuple[ScriptedBroker, BrokerConnection]]:
    broker = ScriptedBroker(queue.script)
    connection = broker.connect()
    try:
        yield broker, connection
    finally:
        connection.close()
        broker.close()


def test_the_first_store_marks_an_address_that_has_no_mark() -> None:
    queue = QueueOfMarks()
    with connected(queue) as (broker, connection):
        connection.prepare(["orders"], OURS)
        sent = broker.saw("SEND").headers
    assert (sent["destination"], sent["persistent"], queue.stores) == ("/queue/_store.orders", "true", [OURS])


def test_an_own_mark_at_the_head_is_enough() -> None:
    queue = QueueOfMarks((OURS, "a"), (THEIRS, "b"))
    with connected(queue) as (broker, connection):
        connection.prepare(["orders"], OURS)
    assert "SEND" not in broker.commands()


@pytest.mark.parametrize("queue", [QueueOfMarks((THEIRS, "a")), QueueOfMarks(before=[(THEIRS, "a")])])
def test_a_store_that_is_not_at_the_head_is_refused_and_leaves_no_mark(queue: QueueOfMarks) -> None:
    with connected(queue) as (_, connection):
        with pytest.raises(AddressTaken, match=f"orders at .* belongs to the store {THEIRS}, and this app's .* {OURS}"):
            connection.prepare(["orders"], OURS)
        assert connection.is_alive(1.0)
    assert queue.stores == [THEIRS]


def test_two_processes_of_one_store_leave_one_mark() -> None:
    queue = QueueOfMarks(before=[(OURS, "a")])
    with connected(queue) as (_, connection):
        connection.prepare(["orders"], OURS)
    assert queue.marks == [(OURS, "a")]


def test_all_marks_of_a_released_store_are_removed() -> None:
    queue = QueueOfMarks((OURS, "a"), (THEIRS, "b"), (OURS, "c"))
    with connected(queue) as (_, connection):
        assert connection.release("orders", OURS)
        assert not connection.release("orders", OURS)
    assert queue.stores == [THEIRS]
