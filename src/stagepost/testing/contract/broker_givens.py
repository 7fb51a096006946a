"""The broker under test: its faults, connections to it, and messages that travel over it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Protocol

import pytest

from stagepost.ports.broker import Broker, BrokerConnection, Delivery, Publication
from stagepost.testing.contract.givens import TOLD_SECONDS_MAX, eventually

WINDOW = 100
STORE = "11111111-1111-7111-8111-111111111111"
OTHER_STORE = "22222222-2222-7222-8222-222222222222"


class BrokerFaults(Protocol):
    """The faults of the broker under test."""

    def cut(self) -> None:
        """End all connections of clients, in mid-air."""

    def frozen(self) -> AbstractContextManager[object]:
        """Let the broker answer nothing during the block. Its connections may be lost after it."""

    def restart(self) -> None:
        """End the broker without warning, and start it again with its data."""

    def blocked(self) -> AbstractContextManager[object] | None:
        """Let the broker take no publications during the block, for lack of memory."""

    def refuse(self, address: str) -> bool | None:
        """Let the broker answer no to further publications to a prepared address."""

    def declare_otherwise(self, address: str) -> str | None:
        """Declare the queue with other arguments than the connection's. Returns the name of one that differs."""

    @property
    def oversized_bytes(self) -> int | None:
        """The size of a body that the broker never accepts."""

    @property
    def pause_seconds(self) -> float:
        """The time after which the broker drops a connection that writes nothing; 0 where it never does."""


Connect = Callable[[], BrokerConnection]


class BrokerGiven:
    """Fixtures that all parts of the contract share. The user provides ``broker`` and ``faults``."""

    @pytest.fixture
    def connect(self, broker: Broker) -> Iterator[Connect]:
        """Opens connections, which are closed at the end."""
        with ExitStack() as opened:

            def open_one() -> BrokerConnection:
                connection = broker.connect(TOLD_SECONDS_MAX)
                opened.callback(connection.close)
                return connection

            yield open_one

    @pytest.fixture
    def patient_broker(self, broker: Broker) -> Broker:
        """The broker as its users have it: ``prepare`` waits until a kill loses nothing. ``broker`` may be faster."""
        return broker

    @pytest.fixture
    def address(self) -> str:
        return f"contract.{uuid.uuid4()}"

    @pytest.fixture
    def connection(self, connect: Connect, address: str) -> BrokerConnection:
        """A connection for which ``address`` is prepared."""
        connection = connect()
        connection.prepare([address], STORE)
        return connection


def some(address: str, count: int) -> list[Publication]:
    return [Publication(address, f"m{n}", f"body {n}".encode(), {"n": str(n)}) for n in range(count)]


def published(connection: BrokerConnection, *publications: Publication) -> list[str]:
    results = connection.publish(publications, TOLD_SECONDS_MAX)
    assert results == ["confirmed"] * len(publications)
    return list(results)


def received(connection: BrokerConnection, count: int) -> list[Delivery]:
    """Receive so many deliveries, in the order of their arrival."""
    deliveries: list[Delivery] = []

    def take() -> bool:
        deliveries.extend(connection.receive(1.0))
        return len(deliveries) >= count

    assert eventually(take), f"{len(deliveries)} of {count} deliveries came"
    assert len(deliveries) == count
    return deliveries


def drained(connection: BrokerConnection, address: str, count: int) -> list[Delivery]:
    """Receive so many deliveries of one address, and settle them."""
    connection.subscribe({address: count})
    deliveries = received(connection, count)
    connection.settle(deliveries)
    return deliveries


def exchanged(connection: BrokerConnection, *publications: Publication) -> list[Delivery]:
    """Publish to one address, receive all of it and settle it."""
    published(connection, *publications)
    return drained(connection, publications[0].address, len(publications))
