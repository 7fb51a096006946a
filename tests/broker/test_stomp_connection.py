"""The ActiveMQ connection against a scripted broker: handshakes, heart-beats, answers in any order, hostile frames."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import cast

import pytest

from stagepost.broker.activemq import connection as activemq_connection
from stagepost.broker.activemq.frames import Frame, UnsendableFrame
from stagepost.broker.activemq.session import Answer, StompSession
from stagepost.flow.clock import SystemClock
from stagepost.flow.errors import (
    BrokerConnectionLost,
    BrokerDenied,
    BrokerRefused,
    BrokerUnavailable,
    DeclarationError,
)
from stagepost.ports.broker import AtomicConnection, BrokerConnection, Delivery, Publication
from stagepost.ports.broker_registry import broker_driver_of
from tests.broker.scripted_broker import Answers, Script, ScriptedBroker, error, message, receipt
from tests.waiting import PATIENCE_SECONDS, wait_until

ORDER = Publication("orders", "m1", b"body", {"kind": "order"})

Scripted = Callable[..., ScriptedBroker]


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    brokers: list[ScriptedBroker] = []

    def make(script: Script = lambda frame: None, **options: dict[str, str]) -> ScriptedBroker:
        brokers.append(ScriptedBroker(script, **options))
        return brokers[-1]

    yield make
    for each in brokers:
        each.close()


@pytest.fixture
def opened() -> Iterator[Callable[[BrokerConnection], AtomicConnection]]:
    """Closes a connection at the end."""
    connections: list[BrokerConnection] = []

    def keep(connection: BrokerConnection) -> AtomicConnection:
        connections.append(connection)
        return cast("AtomicConnection", connection)

    yield keep
    for each in connections:
        each.close()


Opened = Callable[[BrokerConnection], AtomicConnection]


# Handshakes.


def test_the_handshake_offers_version_credentials_and_heartbeats(scripted: Scripted, opened: Opened) -> None:
    broker = scripted()
    connection = opened(broker.connect("heartbeat=2.5"))
    assert broker.saw("CONNECT").headers == {
        "accept-version": "1.2", "host": "127.0.0.1", "heart-beat": "2500,2500", "login": "shop", "passcode": "s3cret"
    }  # fmt: skip
    assert connection.features[:3] == ("ActiveMQ", "5.17.2", True)


def test_artemis_is_recognised_by_its_scripted_handshake(scripted: Scripted, opened: Opened) -> None:
    """The header is that of ``StompFrameHandlerV11.onConnect`` in Artemis's sources. No test runs against Artemis."""
    broker = scripted(connected={"server": "ActiveMQ-Artemis/2.56.0 ActiveMQ Artemis Messaging Engine"})
    connection = opened(broker.connect())
    assert connection.features[:3] == ("ActiveMQ-Artemis", "2.56.0", False)
    with pytest.raises(BrokerRefused, match="has no transactions over STOMP: it is ActiveMQ-Artemis"):
        connection.transact([], [ORDER], PATIENCE_SECONDS)
    assert broker.commands() == ["CONNECT"]


def test_a_broker_that_hides_its_name_has_no_transactions(scripted: Scripted, opened: Opened) -> None:
    connection = opened(scripted(connected={"server": ""}).connect())
    assert connection.features[:3] == ("unknown", "unknown", False)


def test_wrong_credentials_end_the_search_for_a_host(scripted: Scripted) -> None:
    text = "User name [shop] or password is invalid."
    broker = scripted(lambda frame: [error(frame, text)])
    with pytest.raises(BrokerDenied, match=r"stomp://127.0.0.1:\d+ refuses the user 'shop': User name") as denied:
        broker.connect()
    assert "s3cret" not in str(denied.value)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Frame("CONNECTED", {"version": "1.1"}), "answered CONNECT with CONNECTED of version 1.1"),
        (Frame("CONNECTED", {}), "of version None"),
        (Frame("CONNECTED", {"version": "1.2", "heart-beat": "soon"}), "offers the heart-beats 'soon'"),
        (Frame("RECEIPT", {"receipt-id": "1"}), "answered CONNECT with RECEIPT"),
        (Frame("ERROR", {}, b"out of memory\n\tat Broker.java"), "with an error: out of memory$|: out of memory[),]"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "begins with b'HTTP"),
    ],
)
def test_a_peer_that_is_not_such_a_broker_is_named_with_its_reason(
    scripted: Scripted, answer: Frame | bytes, reason: str
) -> None:
    broker = scripted(lambda frame: [answer])
    url = broker.url
    with pytest.raises(BrokerUnavailable, match=reason):
        broker_driver_of(url).broker(url, SystemClock(), Random(0)).connect(0.1)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("stomp://one?heartbeat=0", "heartbeat must be a number of seconds"),
        ("stomp://one?max_frame_bytes=1000", "max_frame_bytes must be a number of bytes from 131072"),
        ("stomp://one?max_frame_bytes=٣٣٣٣٣٣", "max_frame_bytes must be"),
        ("stomp://one?cafile=x", "the parameter 'cafile'"),
        ("stomp+ssl://one?cafile=/no/such/file", "does not exist"),
        ("stomp://a:b%0Ac@one", "has a line end"),
        ("stomp:one", "not a broker URL|begins with none"),
    ],
)
def test_a_malformed_url_is_an_error_at_start(url: str, reason: str) -> None:
    with pytest.raises(DeclarationError, match=reason):
        broker_driver_of(url)


# Heart-beats.


def test_heartbeats_are_written_while_the_driving_thread_does_something_else(
    scripted: Scripted, opened: Opened
) -> None:
    broker = scripted(connected={"heart-beat": "0,100"})
    opened(broker.connect("heartbeat=0.1"))
    wait_until(lambda: broker.beats >= 3, "three heart-beats arrive")


def test_a_silent_broker_loses_the_connection_without_a_call(scripted: Scripted, opened: Opened) -> None:
    broker = scripted(connected={"heart-beat": "100,0"})
    connection = opened(broker.connect("heartbeat=0.1"))
    with pytest.raises(BrokerConnectionLost, match=r"silent for more than 0.2 s"):
        connection.receive(PATIENCE_SECONDS)
    assert not connection.is_alive(0.1)


def test_a_broker_without_heartbeats_is_asked_whether_it_lives(scripted: Scripted, opened: Opened) -> None:
    broker = scripted()
    connection = opened(broker.connect("heartbeat=0.1"))
    wait_until(lambda: connection.is_alive(PATIENCE_SECONDS) and "ABORT" in broker.commands(), "the broker is asked")
    assert broker.commands() == ["CONNECT", "BEGIN", "ABORT"]


# Frames out of turn.


@pytest.mark.parametrize(
    "frame",
    [
        Frame("SEND", {"destination": "/queue/x"}),
        Frame("CONNECTED", {"version": "1.2"}),
        Frame("MESSAGE", {"subscription": "s1"}),
        b"\0\n",
        b"MESSAGE\ncontent-length:99999999999\n\n",
    ],
)
def test_a_frame_out_of_turn_loses_the_connection_with_a_domain_error(
    scripted: Scripted, opened: Opened, frame: Frame | bytes
) -> None:
    broker = scripted()
    connection = opened(broker.connect())
    broker.push(frame)
    for _ in range(2):
        with pytest.raises(BrokerConnectionLost):
            connection.receive(PATIENCE_SECONDS)


def test_an_error_that_answers_no_frame_loses_the_connection(scripted: Scripted, opened: Opened) -> None:
    broker = scripted()
    connection = opened(broker.connect())
    broker.push(error(Frame("ACK"), "Unexpected ACK\n received"))
    with pytest.raises(BrokerConnectionLost, match=r"the broker answered: Unexpected ACK\\n received\. Connect again"):
        connection.receive(PATIENCE_SECONDS)


def test_messages_of_an_unknown_subscription_and_late_receipts_are_dropped(scripted: Scripted, opened: Opened) -> None:
    broker = scripted()
    connection = opened(broker.connect())
    connection.subscribe({"orders": 2})
    broker.push(message("s77", 1), Frame("RECEIPT", {"receipt-id": "4711"}), message("s1", 2))
    assert [each.message_id for each in connection.receive(PATIENCE_SECONDS)] == ["m2"]


# Publishing.


def test_answers_are_matched_by_their_receipts_in_any_order(scripted: Scripted, opened: Opened) -> None:
    held: list[Frame] = []

    def script(frame: Frame) -> Answers | None:
        if frame.command != "SEND" or frame.headers["message_id"] == "first":
            return None
        held.append(frame)
        return [error(held[1], "not authorized"), receipt(held[0])] if len(held) == 2 else []

    connection = opened(scripted(script).connect())
    window = [ORDER._replace(message_id=each) for each in ("first", "second", "third")]
    assert connection.publish(window, PATIENCE_SECONDS) == ["confirmed", "confirmed", "refused"]


# The second one comes between a write of the index that failed on a full disk and the next one.
FULL = ("Persistent store is Full, 100% of 10. Stopping producer", "PageFile is not loaded")


@pytest.mark.parametrize("text", FULL)
def test_the_first_publication_asks_whether_the_broker_has_room(scripted: Scripted, opened: Opened, text: str) -> None:
    full = threading.Event()
    full.set()

    def script(frame: Frame) -> Answers | None:
        is_refused = frame.command == "SEND" and full.is_set()
        return [error(frame, text)] if is_refused else None

    broker = scripted(script)
    connection = opened(broker.connect())
    blocked = [connection.is_blocked]
    assert connection.publish([ORDER] * 3, PATIENCE_SECONDS) == ["refused"] * 3
    blocked.append(connection.is_blocked)
    assert broker.commands().count("SEND") == 1
    full.clear()
    assert connection.publish([ORDER] * 3, PATIENCE_SECONDS) == ["confirmed"] * 3
    blocked.append(connection.is_blocked)
    assert blocked == [False, True, False]


def test_a_missing_answer_is_unconfirmed_and_loses_the_connection(scripted: Scripted, opened: Opened) -> None:
    broker = scripted(lambda frame: [] if frame.headers.get("message_id") == "silent" else None)
    connection = opened(broker.connect())
    window = [ORDER, ORDER._replace(message_id="silent"), ORDER]
    assert connection.publish(window, 0.5) == ["confirmed", "unconfirmed", "confirmed"]
    with pytest.raises(BrokerConnectionLost):
        connection.publish([ORDER], 0.1)


def test_a_broker_that_falls_silent_over_a_message_leaves_it_unconfirmed(scripted: Scripted, opened: Opened) -> None:
    broker = scripted(lambda frame: [] if frame.command == "SEND" else None, connected={"heart-beat": "100,0"})
    connection = opened(broker.connect("heartbeat=0.1"))
    assert connection.publish([ORDER], PATIENCE_SECONDS) == ["unconfirmed"]


def test_a_loss_between_two_windows_keeps_the_answers_that_came(
    scripted: Scripted, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = opened(scripted().connect())
    ask = StompSession.ask
    windows: list[int] = []

    def ask_once(session: StompSession, frames: Sequence[Frame], seconds: float) -> list[Answer | None]:
        windows.append(len(frames))
        if len(windows) > 1:
            session.lose("the broker closed it")
        return ask(session, frames, seconds)

    monkeypatch.setattr(StompSession, "ask", ask_once)
    assert connection.publish([ORDER] * 3, PATIENCE_SECONDS) == ["confirmed", "lost", "lost"]


def test_a_connection_that_ends_in_a_window_leaves_the_rest_lost(scripted: Scripted, opened: Opened) -> None:
    broker: ScriptedBroker

    def script(frame: Frame) -> Answers | None:
        if frame.headers.get("message_id") != "last":
            return None
        broker.push(error(Frame("SEND"), "the broker is stopping"))
        return []

    broker = scripted(script)
    connection = opened(broker.connect())
    window = [ORDER, ORDER._replace(message_id="last"), ORDER]
    assert connection.publish(window, PATIENCE_SECONDS)[:2] == ["confirmed", "lost"]


@pytest.mark.parametrize("headers", [{"h": "x" * 10_240}, {f"h{n}": "" for n in range(1_000)}])
def test_headers_beyond_the_brokers_limits_are_not_sent(
    scripted: Scripted, opened: Opened, headers: dict[str, str]
) -> None:
    broker = scripted()
    connection = opened(broker.connect())
    results = connection.publish([ORDER, ORDER._replace(headers=headers), ORDER], PATIENCE_SECONDS)
    assert results == ["confirmed", "oversized", "confirmed"]
    assert broker.commands().count("SEND") == 2


def test_a_header_that_utf8_cannot_write_is_an_error_before_anything_is_sent(
    scripted: Scripted, opened: Opened
) -> None:
    broker = scripted()
    connection = opened(broker.connect())
    with pytest.raises(UnsendableFrame, match=r"the header 'h' has a lone surrogate"):
        connection.publish([ORDER, ORDER._replace(headers={"h": "\ud800"})], PATIENCE_SECONDS)
    assert "SEND" not in broker.commands()


# Deliveries.


def test_a_refused_subscription_names_its_address_and_hinders_no_other(scripted: Scripted, opened: Opened) -> None:
    def script(frame: Frame) -> Answers | None:
        is_refused = frame.command == "SUBSCRIBE" and frame.headers["destination"] == "/queue/secret"
        return [error(frame, "User shop is not authorized to read")] if is_refused else None

    broker = scripted(script)
    connection = opened(broker.connect())
    with pytest.raises(BrokerDenied, match=r"refuses subscriptions: secret \(User shop is not authorized to read\)"):
        connection.subscribe({"secret": 1, "orders": 1})
    broker.push(message("s2", 1))
    assert [each.message_id for each in wait_for(connection, 1)] == ["m1"]


def test_deliveries_keep_their_tokens_when_another_one_is_given_back(scripted: Scripted, opened: Opened) -> None:
    broker = scripted()
    connection = opened(broker.connect())
    connection.subscribe({"orders": 3})
    broker.push(message("s1", 1), message("s1", 2), message("s1", 3))
    deliveries = wait_for(connection, 3)
    connection.give_back(deliveries[:1])
    # Settled before it has come back, and acknowledged when it does.
    connection.settle(deliveries[1:2])
    assert "ACK" not in broker.commands()
    broker.push(*(message("s2", number, redelivered="true") for number in (1, 2, 3)))
    [again] = wait_for(connection, 1)
    assert (again.message_id, again.redelivered) == ("m1", True)
    connection.settle([deliveries[2]])
    assert [each.headers["id"] for each in broker.seen if each.command == "ACK"] == ["ack:s2:2", "ack:s2:3"]


def test_a_delivery_that_went_elsewhere_is_in_no_transaction(scripted: Scripted, opened: Opened) -> None:
    broker = scripted()
    connection = opened(broker.connect())
    connection.subscribe({"orders": 2})
    broker.push(message("s1", 1), message("s1", 2))
    first, second = wait_for(connection, 2)
    connection.give_back([first])
    with pytest.raises(BrokerRefused, match="handed a delivery to another consumer"):
        connection.transact([second], [ORDER], 0.1)
    assert "BEGIN" not in broker.commands()


def test_an_address_that_is_left_out_keeps_its_subscription(scripted: Scripted, opened: Opened) -> None:
    broker = scripted()
    connection = opened(broker.connect())
    connection.subscribe({"orders": 2})
    broker.push(message("s1", 1))
    wait_for_arrival(connection)
    connection.subscribe({})
    broker.push(message("s1", 2))
    assert [each.message_id for each in connection.receive(0)] == ["m1"]
    assert connection.receive(0.05) == []
    connection.subscribe({"orders": 2})
    assert [each.message_id for each in wait_for(connection, 1)] == ["m2"]
    assert broker.commands().count("SUBSCRIBE") == 1
    assert "UNSUBSCRIBE" not in broker.commands()


@pytest.mark.parametrize("refused", ["first", "last"])
def test_an_acknowledgement_that_is_refused_loses_the_connection(
    scripted: Scripted, opened: Opened, refused: str
) -> None:
    """The broker would count the delivery in the window until then, and a window of one would receive nothing more."""
    number = 1 if refused == "first" else 2

    def script(frame: Frame) -> Answers | None:
        is_refused = frame.command == "ACK" and frame.headers["id"] == f"ack:s1:{number}"
        return [error(frame, "PageFile is not loaded")] if is_refused else None

    broker, connection = transacting(scripted, opened, script)
    deliveries = wait_for(connection, 2)
    with pytest.raises(BrokerConnectionLost, match="PageFile is not loaded"):
        connection.settle(deliveries)
    with pytest.raises(BrokerConnectionLost):
        connection.receive(0)
    assert "NACK" not in broker.commands()


@pytest.mark.parametrize("call", ["subscribe", "prepare"])
def test_a_broker_without_room_for_a_subscription_is_no_denial(scripted: Scripted, opened: Opened, call: str) -> None:
    broker = scripted(lambda frame: [error(frame, FULL[1])] if frame.command == "SUBSCRIBE" else None)
    connection = opened(broker.connect())
    with pytest.raises(BrokerConnectionLost, match="the broker has no room"):
        connection.subscribe({"orders": 1}) if call == "subscribe" else connection.prepare(["orders"], "store")


# Transactions.


def transacting(scripted: Scripted, opened: Opened, script: Script) -> tuple[ScriptedBroker, AtomicConnection]:
    broker = scripted(script)
    connection = opened(broker.connect())
    connection.subscribe({"orders": 2})
    broker.push(message("s1", 1), message("s1", 2))
    return broker, connection


def test_a_commit_is_sent_after_every_other_frame_was_answered(scripted: Scripted, opened: Opened) -> None:
    answered: list[Frame] = []

    def script(frame: Frame) -> Answers | None:
        if "transaction" not in frame.headers or frame.command == "COMMIT":
            return None
        answered.append(frame)
        # All are answered together, after the last one.
        return [receipt(each) for each in answered] if len(answered) == 4 else []

    broker, connection = transacting(scripted, opened, script)
    first, second = wait_for(connection, 2)
    # The same delivery twice: ActiveMQ would answer its second acknowledgement with an error.
    connection.transact([first, second, first], [ORDER], PATIENCE_SECONDS)
    assert broker.commands()[-5:] == ["BEGIN", "ACK", "ACK", "SEND", "COMMIT"]
    with pytest.raises(BrokerRefused, match="settled or given back before"):
        connection.transact([first], [], PATIENCE_SECONDS)


@pytest.mark.parametrize("command", ["BEGIN", "ACK", "SEND"])
def test_an_error_in_a_transaction_aborts_it(scripted: Scripted, opened: Opened, command: str) -> None:
    broker, connection = transacting(
        scripted, opened, lambda frame: [error(frame, "no")] if frame.command == command else None
    )
    deliveries = wait_for(connection, 2)
    with pytest.raises(BrokerRefused, match="committed nothing: no"):
        connection.transact(deliveries, [ORDER, ORDER], PATIENCE_SECONDS)
    assert broker.commands()[-1] == "ABORT"
    assert "COMMIT" not in broker.commands()


def test_a_lack_of_room_in_a_transaction_blocks_the_connection(scripted: Scripted, opened: Opened) -> None:
    _, connection = transacting(
        scripted, opened, lambda frame: [error(frame, "No space left")] if frame.command == "SEND" else None
    )
    with pytest.raises(BrokerRefused):
        connection.transact(wait_for(connection, 2), [ORDER], PATIENCE_SECONDS)
    assert connection.is_blocked


@pytest.mark.parametrize("command", ["ACK", "COMMIT"])
def test_a_missing_answer_in_a_transaction_loses_the_connection(
    scripted: Scripted, opened: Opened, command: str
) -> None:
    broker, connection = transacting(scripted, opened, lambda frame: [] if frame.command == command else None)
    with pytest.raises(BrokerConnectionLost):
        connection.transact(wait_for(connection, 2), [ORDER], 0.5)
    assert ("COMMIT" in broker.commands()) == (command == "COMMIT")


def test_an_error_in_answer_to_a_commit_leaves_its_outcome_unknown(scripted: Scripted, opened: Opened) -> None:
    _, connection = transacting(
        scripted, opened, lambda frame: [error(frame, "disk")] if frame.command == "COMMIT" else None
    )
    with pytest.raises(BrokerConnectionLost, match="whose outcome is unknown: disk"):
        connection.transact(wait_for(connection, 2), [ORDER], PATIENCE_SECONDS)


def test_an_oversized_message_is_in_no_transaction(scripted: Scripted, opened: Opened) -> None:
    broker, connection = transacting(scripted, opened, lambda frame: None)
    with pytest.raises(BrokerRefused, match="max_frame_bytes"):
        connection.transact(wait_for(connection, 2), [ORDER._replace(headers={"h": "x" * 10_240})], PATIENCE_SECONDS)
    assert "BEGIN" not in broker.commands()


def test_the_session_is_renewed_after_many_transactions(
    scripted: Scripted, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activemq_connection, "TRANSACTIONS_MAX", 2)
    broker, connection = transacting(scripted, opened, lambda frame: None)
    first, second = wait_for(connection, 2)
    connection.transact([], [ORDER], PATIENCE_SECONDS)
    connection.transact([first], [ORDER], PATIENCE_SECONDS)
    assert broker.commands().count("CONNECT") == 2
    # The delivery that is still held comes back on the new session, and keeps its token.
    broker.push(message("s2", 2, redelivered="true"))
    connection.transact([second], [ORDER], PATIENCE_SECONDS)
    assert [each.headers["id"] for each in broker.seen if each.command == "ACK"] == ["ack:s1:1", "ack:s2:2"]


def test_a_session_that_cannot_be_renewed_spoils_no_commit(
    scripted: Scripted, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activemq_connection, "TRANSACTIONS_MAX", 1)
    monkeypatch.setattr(activemq_connection, "ANSWER_SECONDS", 0.5)
    connects: list[Frame] = []

    def script(frame: Frame) -> Answers | None:
        if frame.command == "CONNECT":
            connects.append(frame)
        return [error(frame, "stopping")] if len(connects) > 1 else None

    _, connection = transacting(scripted, opened, script)
    connection.transact(wait_for(connection, 2), [ORDER], PATIENCE_SECONDS)
    with pytest.raises(BrokerConnectionLost, match=r"could not be renewed: .*stopping|it was closed"):
        connection.receive(PATIENCE_SECONDS)


# Logs.


def test_the_connection_logs_nothing_and_its_thread_ends_quietly(
    scripted: Scripted, opened: Opened, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Errors tell the caller, which logs one line. No other line comes from the socket code."""
    caplog.set_level(logging.DEBUG)
    broker = scripted(connected={"heart-beat": "100,100"})
    connection = broker.connect("heartbeat=0.1")
    with pytest.raises(BrokerConnectionLost):
        connection.receive(PATIENCE_SECONDS)
    connection.close()
    connection.close()
    assert "stomp-heartbeat" not in {each.name for each in threading.enumerate()}
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


def wait_for(connection: BrokerConnection, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    while len(found) < count:
        found += connection.receive(PATIENCE_SECONDS)
    return found


def wait_for_arrival(connection: BrokerConnection) -> None:
    subscriptions = cast("activemq_connection.ActiveMQConnection", connection)._subscriptions
    wait_until(lambda: connection.is_alive(0) and subscriptions.has_arrived(), "a message arrives")
