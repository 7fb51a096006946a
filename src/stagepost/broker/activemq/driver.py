"""The driver of ``stomp:`` and ``stomp+ssl:``. It needs no package beside Python's own."""

from __future__ import annotations

import ssl
from pathlib import Path
from random import Random
from typing import Final

from stagepost.broker.activemq.connection import ActiveMQConnection
from stagepost.broker.activemq.frames import Frame
from stagepost.broker.activemq.messages import HEADERS_RESERVE, says_denied
from stagepost.broker.activemq.session import StompSession, error_text
from stagepost.broker.failover import FailoverBroker
from stagepost.broker.sockets import TLS_PARAMETERS, open_socket, tls_context
from stagepost.broker.url import BrokerUrl, Host, parse, seconds_of
from stagepost.flow.clock import Clock
from stagepost.flow.errors import BrokerConnectionLost, BrokerDenied, BrokerUnavailable, DeclarationError
from stagepost.ports.broker import Broker

PORTS: Final = {"stomp": 61613, "stomp+ssl": 61614}
VERSION: Final = "1.2"
HEARTBEAT_SECONDS: Final = 10.0
HEARTBEAT_SECONDS_MIN: Final = 0.1
# The setting wireFormat.maxFrameSize of the broker. A frame beyond it costs the connection, so a low value is safe.
FRAME_BYTES_MAX: Final = 10 * 1024 * 1024


def check(url: str) -> None:
    parsed(url)


def broker(url: str, clock: Clock, random: Random) -> Broker:
    found = parsed(url)
    tls = tls_context(found) if found.scheme == "stomp+ssl" else None
    heartbeat_seconds = _heartbeat_of(found)
    frame_bytes_max = _frame_bytes_of(found)

    def open_host(host: Host, seconds: float) -> ActiveMQConnection:
        def open_again(seconds: float) -> StompSession:
            return open_session(found, host, tls, clock, seconds, heartbeat_seconds)

        return ActiveMQConnection(
            open_again(seconds),
            open_again,
            clock,
            heartbeat_seconds=heartbeat_seconds,
            frame_bytes_max=frame_bytes_max,
            configuration=Path(file) if (file := found.parameters.get("config")) else None,
        )

    return FailoverBroker(found, open_host, clock, random)


def open_session(
    url: BrokerUrl, host: Host, tls: ssl.SSLContext | None, clock: Clock, seconds: float, heartbeat_seconds: float
) -> StompSession:
    """Connect and shake hands. Raises ``BrokerUnavailable`` and ``BrokerDenied``."""
    place = f"the broker {url.scheme}://{host}"
    session = StompSession(open_socket(host, tls, seconds), place, clock)
    try:
        _shake_hands(session, url, seconds, heartbeat_seconds)
    except BrokerConnectionLost as error:
        # The list of all hosts names the broker.
        reason = session.reason or f"{error}"
        session.close()
        raise BrokerUnavailable(reason) from error
    except BaseException:
        session.close()
        raise
    return session


def _shake_hands(session: StompSession, url: BrokerUrl, seconds: float, heartbeat_seconds: float) -> None:
    milliseconds = round(1000 * heartbeat_seconds)
    headers = {
        "accept-version": VERSION,
        "host": url.path or url.hosts[0].name,
        "heart-beat": f"{milliseconds},{milliseconds}",
    }
    if url.user:
        headers |= {"login": url.user, "passcode": url.password}
    answer = session.handshake(Frame("CONNECT", headers), seconds)
    if answer is None:
        raise BrokerUnavailable(f"no answer to CONNECT within {seconds:.1f} s")
    if answer.command == "ERROR":
        text = error_text(answer)
        if says_denied(text):
            raise BrokerDenied(f"{session.place} refuses the user {url.user!r}: {text} Correct the broker URL.")
        raise BrokerUnavailable(f"it answered CONNECT with an error: {text}")
    if answer.command != "CONNECTED" or answer.headers.get("version") != VERSION:
        raise BrokerUnavailable(
            f"it answered CONNECT with {answer.command} of version {answer.headers.get('version')}, not {VERSION}"
        )
    session.begin(answer, heartbeat_seconds)


def parsed(url: str) -> BrokerUrl:
    """Return the parts of the URL. Raises ``DeclarationError``."""
    parameters = {"config", "heartbeat", "max_frame_bytes"} | (
        TLS_PARAMETERS if url.startswith("stomp+ssl:") else set()
    )
    found = parse(url, PORTS, parameters)
    _heartbeat_of(found)
    _frame_bytes_of(found)
    if any(sign in found.user + found.password for sign in "\r\n\0"):
        raise DeclarationError(f"{found.shown}: the user or the password has a line end. STOMP cannot carry it.")
    if found.scheme == "stomp+ssl":
        tls_context(found)
    return found


def _heartbeat_of(url: BrokerUrl) -> float:
    return seconds_of(url, "heartbeat", HEARTBEAT_SECONDS, HEARTBEAT_SECONDS_MIN)


def _frame_bytes_of(url: BrokerUrl) -> int:
    text = url.parameters.get("max_frame_bytes", str(FRAME_BYTES_MAX))
    if not (text.isascii() and text.isdecimal() and 2 * HEADERS_RESERVE <= int(text) <= 2**31):
        raise DeclarationError(
            f"{url.shown}: the parameter max_frame_bytes must be a number of bytes from {2 * HEADERS_RESERVE} to "
            f"{2**31}, not {text!r}. Write the value of the broker's wireFormat.maxFrameSize."
        )
    return int(text)
