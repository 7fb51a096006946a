"""The HTTP client of one route: it posts, and returns the whole answer or says whether the request may have arrived.

It follows no redirect, uses no proxy of the environment, and repeats nothing: the redelivery of the stage does that.
"""

from __future__ import annotations

import logging
import ssl
import threading
import weakref
from dataclasses import dataclass
from functools import partial

import httpcore2

from stagepost.flow.clock import Clock, SystemClock
from stagepost.flow.errors import StagepostError
from stagepost.gateway.out.addresses import AddressRefused, CheckedNetwork, Resolve, resolve
from stagepost.gateway.out.delivery import Delivery

# A consumer's words for an operator need no more.
ANSWER_BYTES_MAX = 1_048_576
# Most servers close an idle connection after five seconds or more. A request on a closed one is a failed attempt.
IDLE_SECONDS = 4.0

# These errors come before the first byte of the request.
BEFORE_SENDING = (
    httpcore2.ConnectError,
    httpcore2.ConnectTimeout,
    httpcore2.PoolTimeout,
    httpcore2.LocalProtocolError,
    httpcore2.UnsupportedProtocol,
    AddressRefused,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer. ``headers`` have lower-case names; of a repeated header they hold the last.

    ``is_whole``  False if the body was longer than the client reads
    """

    status: int
    headers: dict[str, str]
    body: bytes
    is_whole: bool = True


class NoAnswer(StagepostError):
    """The consumer gave no whole answer. ``may_be_taken`` says whether the request may have arrived."""

    code = "no-answer"

    def __init__(self, text: str, *, may_be_taken: bool) -> None:
        self.may_be_taken = may_be_taken
        super().__init__(text)


class Client:
    """Posts to one consumer. Any thread may use it; each thread has one request at a time."""

    def __init__(self, delivery: Delivery, resolve_name: Resolve = resolve) -> None:
        # At the level DEBUG it would log the consumer's headers.
        logging.getLogger("httpcore2").setLevel(logging.WARNING)
        self._delivery = delivery
        # A network waits in real time, also in a test with a clock of its own.
        self._clock = SystemClock()
        self._request = threading.local()
        self._pool = httpcore2.ConnectionPool(
            ssl_context=_ssl_context(delivery),
            max_connections=delivery.concurrency,
            max_keepalive_connections=delivery.concurrency,
            keepalive_expiry=IDLE_SECONDS,
            retries=0,
            network_backend=CheckedNetwork(
                delivery.allow_private, partial(_remaining, self._request, self._clock), resolve_name
            ),
        )
        # An app has no end of its own. The pool must not refer to this client, which would then live as long.
        weakref.finalize(self, self._pool.close)

    def post(self, headers: dict[str, str], body: bytes) -> Answer:
        """Post, and return the answer. Raises ``NoAnswer``."""
        self._request.deadline = self._clock.monotonic() + self._delivery.timeout_seconds
        try:
            return self._post(headers, body)
        except BEFORE_SENDING as error:
            raised = NoAnswer(f"not reached: {_text(error)}", may_be_taken=False)
        except (httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError, OSError) as error:
            raised = NoAnswer(f"no answer: {_text(error)}", may_be_taken=True)
        # Outside the block, so that no log shows the client's own frames.
        raise raised

    def _post(self, headers: dict[str, str], body: bytes) -> Answer:
        seconds = dict.fromkeys(("read", "write", "pool"), self._delivery.timeout_seconds)
        timeout = seconds | {"connect": min(self._delivery.connect_seconds, self._delivery.timeout_seconds)}
        with self._pool.stream(
            "POST",
            self._delivery.url,
            headers=[(name.encode(), value.encode()) for name, value in headers.items()],
            content=body,
            extensions={"timeout": timeout},
        ) as response:
            parts: list[bytes] = []
            size = 0
            is_whole = True
            for part in response.iter_stream():
                parts.append(part)
                size += len(part)
                if size > ANSWER_BYTES_MAX:
                    is_whole = False
                    break
            found = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
            return Answer(response.status, found, b"".join(parts), is_whole)


def _remaining(request: threading.local, clock: Clock) -> float:
    deadline: float = request.deadline
    return deadline - clock.monotonic()


def _ssl_context(delivery: Delivery) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=delivery.ca_file)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _text(error: Exception) -> str:
    """Return the error's text, or the name of its class for one without."""
    return str(error) or type(error).__name__
