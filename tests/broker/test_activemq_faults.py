"""The ActiveMQ connection on a real broker, while processes die, frames vanish and disks fill up."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
import stomp
from hypothesis import given, settings
from hypothesis import strategies as st

from stagepost.broker.activemq import connection as activemq_connection
from stagepost.broker.activemq.frames import Frame
from stagepost.broker.activemq.messages import PREFIX
from stagepost.flow.clock import SystemClock
from stagepost.flow.errors import AddressTaken, BrokerConnectionLost, BrokerDenied, BrokerRefused, BrokerUnavailable
from stagepost.ports.broker import AtomicConnection, Delivery, Publication
from stagepost.ports.broker_registry import broker_driver_of
from tests.processes import ROOT
from tests.servers.activemq import LIMITED, PASSWORD, USER, ActiveMQServer, running_activemq
from tests.servers.plugin import had_broker
from tests.servers.stomp_proxy import Fate, StompProxy, once, passing
from tests.waiting import PATIENCE_SECONDS, wait_until

# It starts Java.
pytestmark = pytest.mark.more

STORE, OTHER_STORE = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))
MEGABYTE = b"x" * 1_000_000

Connect = Callable[..., AtomicConnection]


@pytest.fixture
def connect(activemq: ActiveMQServer) -> Iterator[Connect]:
    """Opens connections to the broker, or to another place, and closes them at the end."""
    opened: list[AtomicConnection] = []

    def open_one(parameters: str = "heartbeat=10", *, place: str = "", user: str = USER) -> AtomicConnection:
        url = activemq.url(parameters, place=place, user=user)
        connection = broker_driver_of(url).broker(url, SystemClock(), Random(0)).connect(PATIENCE_SECONDS)
        opened.append(cast("AtomicConnection", connection))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


@pytest.fixture
def proxy(activemq: ActiveMQServer) -> Iterator[StompProxy]:
    proxy = StompProxy(activemq.port)
    yield proxy
    proxy.close()


@pytest.fixture
def through(connect: Connect, proxy: StompProxy) -> Callable[[], AtomicConnection]:
    return lambda: connect(place=f"127.0.0.1:{proxy.port}")


@pytest.fixture
def orders() -> str:
    return f"orders-{uuid.uuid4()}"


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """No fault leaves a line of its own: the error tells the caller, who logs it once."""
    yield
    assert [each for each in caplog.records if each.name.startswith("stagepost") and each.levelno > logging.DEBUG] == []
    assert "Traceback" not in capfd.readouterr().err


def some(address: str, count: int, body: bytes = b"body") -> list[Publication]:
    return [Publication(address, f"m{number}", body, {"kind": "order"}) for number in range(count)]


def received(connection: AtomicConnection, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    while len(found) < count:
        found += connection.receive(PATIENCE_SECONDS)
    return found


def first_of(connection: AtomicConnection, address: str) -> Delivery:
    """Publish one message to an address, and receive it."""
    assert connection.publish(some(address, 1), PATIENCE_SECONDS) == ["confirmed"]
    connection.subscribe({address: 10})
    [delivery] = received(connection, 1)
    return delivery


def await_depths(connect: Connect, expected: dict[str, int]) -> None:
    """Wait until a new connection sees so many messages at each address. A browse hides those in a transaction."""
    connection = connect()
    wait_until(lambda: {each: connection.depth(each) for each in expected} == expected, f"{expected} is there")
    connection.close()


# Another client, and awkward headers.


def test_stomp_py_reads_our_messages_and_sends_some_that_are_read(
    activemq: ActiveMQServer, connect: Connect, orders: str
) -> None:
    headers = {"plain": "text", "awkward:\\": "a:b\\c\r\nd", "ünï": "注文"}
    arrived = threading.Event()
    frames: list[stomp.utils.Frame] = []

    class Listener(stomp.ConnectionListener):  # type: ignore[misc]
        def on_message(self, frame: stomp.utils.Frame) -> None:
            frames.append(frame)
            arrived.set()

    other = stomp.Connection12([("127.0.0.1", activemq.port)], auto_decode=False)
    other.set_listener("", Listener())
    other.connect(USER, PASSWORD, wait=True)
    connection = connect()
    try:
        connection.publish([Publication(f"{orders}.out", "m1", b"a\0b", headers)], PATIENCE_SECONDS)
        other.subscribe(f"/queue/{orders}.out", "1", "auto")
        assert arrived.wait(PATIENCE_SECONDS)
        own = headers | {"message_id": "m1"}
        assert {name: frames[0].headers.get(name) for name in own} == own
        assert frames[0].body == b"a\0b"
        other.send(f"/queue/{orders}.in", b"c\0d", headers={"kind": "a:b", "correlation-id": "c1"})
    finally:
        other.disconnect()
    connection.subscribe({f"{orders}.in": 1})
    [delivery] = received(connection, 1)
    assert (delivery.message_id, delivery.body) == ("", b"c\0d")
    assert delivery.headers.items() >= {"kind": "a:b", "correlation-id": "c1"}.items()
    connection.settle([delivery])


RESERVED = (
    "destination", "receipt", "transaction", "content-length", "persistent", "expires", "priority", "timestamp",
    "reply-to", "message-id", "message_id", "ack", "subscription", "redelivered", "selector", "browser", "id",
    "original-destination", "transformation", "JMSXGroupID", "AMQ_SCHEDULED_DELAY", "correlation-id", "type",
    "content-type", "login", "store", f"{PREFIX}x", "",
)  # fmt: skip


def test_headers_of_any_name_and_text_arrive(connect: Connect, orders: str) -> None:
    connection = connect()
    connection.subscribe({orders: 1})
    texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)

    def check(headers: dict[str, str]) -> None:
        assert connection.publish([Publication(orders, "m1", b"", headers)], PATIENCE_SECONDS) == ["confirmed"]
        [delivery] = received(connection, 1)
        connection.settle([delivery])
        assert delivery.message_id == "m1"
        assert delivery.headers.items() >= headers.items()

    check({name: f"mine {name}" for name in RESERVED})
    check(dict.fromkeys(RESERVED, "1"))
    settings(max_examples=50)(given(st.dictionaries(texts, texts, max_size=5))(check))()


# Transactions.


def test_a_transaction_takes_and_sends_together(connect: Connect, orders: str) -> None:
    connection = connect()
    delivery = first_of(connection, orders)
    connection.transact([delivery], some(f"{orders}.out", 2), PATIENCE_SECONDS)
    connection.close()
    await_depths(connect, {orders: 0, f"{orders}.out": 2})


def test_a_refused_transaction_commits_nothing_and_leaves_its_delivery_to_settle(connect: Connect, orders: str) -> None:
    first = f"contract.{orders}"
    connection = connect(user=LIMITED)
    delivery = first_of(connection, first)
    for _ in range(2):
        with pytest.raises(BrokerRefused, match="not authorized to write"):
            connection.transact([delivery], [*some(f"{first}.other", 1), *some(orders, 1)], PATIENCE_SECONDS)
    await_depths(connect, {first: 1, f"{first}.other": 0, orders: 0})
    connection.settle([delivery])
    connection.close()
    await_depths(connect, {first: 0})


def test_many_transactions_renew_the_session_and_lose_nothing(
    connect: Connect, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activemq_connection, "TRANSACTIONS_MAX", 4)
    connection = connect()
    assert connection.publish(some(orders, 30), PATIENCE_SECONDS) == ["confirmed"] * 30
    connection.subscribe({orders: 7})
    taken: list[str] = []
    while len(taken) < 30:
        for delivery in connection.receive(PATIENCE_SECONDS):
            out = Publication(f"{orders}.out", delivery.message_id, b"", {})
            connection.transact([delivery], [out], PATIENCE_SECONDS)
            taken.append(delivery.message_id)
    connection.close()
    assert sorted(taken) == sorted(f"m{number}" for number in range(30))
    await_depths(connect, {orders: 0, f"{orders}.out": 30})


@pytest.mark.parametrize("lost", ["the frame", "its receipt"])
def test_a_commit_whose_answer_is_lost_is_unknown(
    connect: Connect, through: Callable[[], AtomicConnection], proxy: StompProxy, orders: str, lost: str
) -> None:
    connection = through()
    delivery = first_of(connection, orders)
    if lost == "the frame":
        proxy.requests = once("swallow", "COMMIT")
    else:
        receipts: list[str] = []

        def remember(frame: Frame) -> Fate:
            if frame.command == "COMMIT":
                receipts.append(frame.headers["receipt"])
            return "pass"

        proxy.requests = remember
        proxy.answers = once("swallow", "RECEIPT", lambda frame: frame.headers["receipt-id"] in receipts)
    with pytest.raises(BrokerConnectionLost, match="no answer to COMMIT"):
        connection.transact([delivery], some(f"{orders}.out", 1), 2.0)
    is_committed = lost == "its receipt"
    await_depths(connect, {orders: int(not is_committed), f"{orders}.out": int(is_committed)})


def test_a_client_that_is_killed_between_ack_and_commit_has_committed_nothing(
    activemq: ActiveMQServer, connect: Connect, proxy: StompProxy, orders: str
) -> None:
    connection = connect()
    assert connection.publish(some(orders, 1), PATIENCE_SECONDS) == ["confirmed"]
    held = threading.Event()

    def hold(frame: Frame) -> Fate:
        if frame.command != "COMMIT":
            return "pass"
        held.set()
        return "swallow"

    proxy.requests = hold
    url = activemq.url(place=f"127.0.0.1:{proxy.port}")
    process = subprocess.Popen([sys.executable, "-m", "tests.broker.committing_child", url, orders], cwd=ROOT)
    try:
        assert held.wait(PATIENCE_SECONDS)
    finally:
        process.kill()
        process.wait()
    connection.subscribe({orders: 1})
    [again] = received(connection, 1)
    assert again.redelivered
    await_depths(connect, {f"{orders}.out": 0})


def test_a_broker_that_is_killed_around_a_commit_has_done_all_or_nothing(
    activemq: ActiveMQServer, connect: Connect, through: Callable[[], AtomicConnection], proxy: StompProxy, orders: str
) -> None:
    for moment in ("before", "after"):
        address = f"{orders}.{moment}"
        connection = through()
        delivery = first_of(connection, address)
        receipts: list[str] = []

        def kill_before(frame: Frame, receipts: list[str] = receipts, moment: str = moment) -> Fate:
            if frame.command != "COMMIT":
                return "pass"
            receipts.append(frame.headers["receipt"])
            if moment == "before":
                activemq.kill()
            return "pass" if moment == "after" else "cut"

        def kill_after(frame: Frame, receipts: list[str] = receipts) -> Fate:
            if frame.headers.get("receipt-id") not in receipts:
                return "pass"
            activemq.kill()
            return "cut"

        proxy.requests, proxy.answers = kill_before, kill_after
        with pytest.raises(BrokerConnectionLost):
            connection.transact([delivery], some(f"{address}.out", 1), PATIENCE_SECONDS)
        # The tokens are void, and no call does anything.
        with pytest.raises(BrokerConnectionLost):
            connection.settle([delivery])
        with pytest.raises(BrokerConnectionLost):
            connection.transact([delivery], [], 1.0)
        activemq.start()
        proxy.requests = proxy.answers = passing
        await_depths(connect, {address: int(moment == "before"), f"{address}.out": int(moment == "after")})


def test_a_frozen_broker_commits_all_or_nothing(activemq: ActiveMQServer, connect: Connect, orders: str) -> None:
    connection = connect()
    delivery = first_of(connection, orders)
    with activemq.frozen(), pytest.raises(BrokerConnectionLost):
        connection.transact([delivery], some(f"{orders}.out", 1), 1.0)
    # The broker reads the frames that the connection sent before it was dropped.
    connection.close()
    await_depths(connect, {orders: 1, f"{orders}.out": 0})


# Windows of publications.


def test_a_connection_that_is_cut_in_mid_frame_tells_which_messages_are_confirmed(
    connect: Connect, through: Callable[[], AtomicConnection], proxy: StompProxy, orders: str
) -> None:
    connection = through()
    proxy.requests = once("half", "SEND", lambda frame: frame.headers["message_id"] == "m5")
    results = connection.publish(some(orders, 10), PATIENCE_SECONDS)
    confirmed = results.count("confirmed")
    assert results == ["confirmed"] * confirmed + ["lost"] * (10 - confirmed)
    assert 1 <= confirmed <= 5
    await_depths(connect, {orders: 5})


def test_a_message_that_is_cut_in_the_middle_comes_again(
    connect: Connect, through: Callable[[], AtomicConnection], proxy: StompProxy, orders: str
) -> None:
    connection = through()
    connection.publish(some(orders, 2), PATIENCE_SECONDS)
    proxy.answers = once("half", "MESSAGE", lambda frame: frame.headers["message_id"] == "m1")
    connection.subscribe({orders: 2})
    with pytest.raises(BrokerConnectionLost):
        received(connection, 2)
    again = connect()
    again.subscribe({orders: 2})
    assert [each.message_id for each in received(again, 2)] == ["m0", "m1"]


def test_a_receipt_that_is_swallowed_is_an_unconfirmed_message(
    connect: Connect, through: Callable[[], AtomicConnection], proxy: StompProxy, orders: str
) -> None:
    connection = through()
    proxy.answers = once("swallow", "RECEIPT")
    assert connection.publish(some(orders, 1), 1.0) == ["unconfirmed"]
    await_depths(connect, {orders: 1})


def test_a_frame_beyond_the_brokers_own_limit_hinders_no_other(connect: Connect, orders: str) -> None:
    connection = connect("max_frame_bytes=30000000")
    delivery = first_of(connection, orders)
    big = Publication(f"{orders}.out", "big", 11 * MEGABYTE, {})
    window = [*some(f"{orders}.out", 3), big, *some(f"{orders}.out", 3)]
    assert connection.publish(window, PATIENCE_SECONDS) == ["confirmed"] * 3 + ["oversized"] + ["confirmed"] * 3
    # The delivery outlives the session that the broker ended.
    connection.transact([delivery], [], PATIENCE_SECONDS)
    connection.close()
    await_depths(connect, {orders: 0, f"{orders}.out": 6})


# Fail-over.


def test_a_second_broker_on_the_same_data_takes_over(activemq: ActiveMQServer, tmp_path: Path, orders: str) -> None:
    second = ActiveMQServer(tmp_path / "second", data=activemq.data)
    second.launch()
    url = activemq.url("heartbeat=10", place=f"{activemq.place},{second.place}")
    broker = broker_driver_of(url).broker(url, SystemClock(), Random(0))
    try:
        connection = cast("AtomicConnection", broker.connect(PATIENCE_SECONDS))
        connection.prepare([orders], STORE)
        delivery = first_of(connection, orders)
        activemq.kill()
        with pytest.raises(BrokerConnectionLost):
            connection.settle([delivery])
        connection.close()
        after = cast("AtomicConnection", broker.connect(PATIENCE_SECONDS))
        after.prepare([orders], STORE)
        with pytest.raises(AddressTaken, match=f"{orders}.*belongs to the store {STORE}"):
            after.prepare([orders], OTHER_STORE)
        after.subscribe({orders: 1})
        [again] = received(after, 1)
        after.transact([again], some(f"{orders}.out", 1), PATIENCE_SECONDS)
        assert (after.depth(orders), after.depth(f"{orders}.out")) == (0, 1)
        after.close()
    finally:
        second.stop()
        activemq.start()


# A full disk, and TLS.


@pytest.fixture(scope="module")
def small_activemq() -> Iterator[ActiveMQServer]:
    """A broker on a disk of few megabytes, which also speaks TLS."""
    with had_broker("activemq", small_and_encrypted) as server:
        yield server


@contextmanager
def small_and_encrypted(folder: Path) -> Iterator[ActiveMQServer]:
    disk = folder / "disk"
    disk.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)], capture_output=True)
    try:
        # Without the right to mount, the broker's own limit is reached first.
        limits = {} if mounted.returncode == 0 else {"store_bytes": 16_000_000}
        settings: dict[str, Any] = {"journal_bytes": 4_000_000, "cleanup_milliseconds": 1_000, **limits}
        with running_activemq(folder / "broker", data=disk, has_tls=True, **settings) as server:
            yield server
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", str(disk)], check=True)


def test_tls_checks_the_brokers_certificate(small_activemq: ActiveMQServer, orders: str) -> None:
    url = small_activemq.tls_url()
    connection = broker_driver_of(url).broker(url, SystemClock(), Random(0)).connect(PATIENCE_SECONDS)
    assert connection.publish(some(orders, 3, MEGABYTE), PATIENCE_SECONDS) == ["confirmed"] * 3
    connection.subscribe({orders: 3})
    deliveries = received(cast("AtomicConnection", connection), 3)
    assert [each.body for each in deliveries] == [MEGABYTE] * 3
    connection.settle(deliveries)
    connection.close()
    untrusting = url.partition("?")[0]
    with pytest.raises(BrokerDenied, match="certificate that is not trusted"):
        broker_driver_of(untrusting).broker(untrusting, SystemClock(), Random(0)).connect(PATIENCE_SECONDS)


def test_a_full_broker_refuses_publications_and_drains_by_consuming(
    small_activemq: ActiveMQServer, orders: str
) -> None:
    """A full disk may fail a write of the index. Until the next one the broker refuses acknowledgements too.

    So a connection may be lost, and the messages come again on the next one.
    """
    url = small_activemq.url("heartbeat=5")
    broker = broker_driver_of(url).broker(url, SystemClock(), Random(0))

    def is_drained(*addresses: str) -> bool:
        """Consume until nothing comes. Returns whether nothing is left."""
        try:
            with closing(broker.connect(PATIENCE_SECONDS)) as consumer:
                consumer.subscribe(dict.fromkeys(addresses, 10))
                while deliveries := consumer.receive(1.0):
                    consumer.settle(deliveries)
                return not any(consumer.depth(each) for each in addresses)
        except BrokerUnavailable:
            return False

    def takes_a_message() -> bool:
        try:
            with closing(broker.connect(PATIENCE_SECONDS)) as sender:
                is_taken = sender.publish(some(orders, 1, MEGABYTE), PATIENCE_SECONDS) == ["confirmed"]
                assert sender.is_blocked is not is_taken
                return is_taken
        except BrokerUnavailable:
            return False

    with closing(cast("AtomicConnection", broker.connect(PATIENCE_SECONDS))) as connection:
        held = first_of(connection, orders)
        refusals = 0
        # A cleanup between two refusals may remove what another test has left.
        while refusals < 2:
            is_refused = connection.publish(some(f"{orders}.full", 1, MEGABYTE), PATIENCE_SECONDS) == ["refused"]
            refusals = refusals + 1 if is_refused else 0
        assert connection.is_blocked
        # One message asks for the whole window.
        assert connection.publish(some(orders, 100), PATIENCE_SECONDS) == ["refused"] * 100
        with pytest.raises(BrokerRefused):
            connection.transact([held], some(orders, 1, MEGABYTE), PATIENCE_SECONDS)
        # A connection that comes now learns it too, and consumes until there is room again.
        with closing(broker.connect(PATIENCE_SECONDS)) as again:
            assert again.publish(some(orders, 10), PATIENCE_SECONDS) == ["refused"] * 10
        with suppress(BrokerConnectionLost):
            connection.settle([held])
    wait_until(lambda: is_drained(f"{orders}.full", orders), "all messages are consumed")
    wait_until(takes_a_message, "there is room again")
