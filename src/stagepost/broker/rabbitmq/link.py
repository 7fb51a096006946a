"""py-amqp's connection with deadlines, and its loss. A thread of its own keeps it alive."""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from amqp import Connection
from amqp.exceptions import AMQPError

from stagepost.broker.rabbitmq.frames import Arrival, FrameHandler
from stagepost.broker.rabbitmq.transport import Transport
from stagepost.flow.clock import Clock
from stagepost.flow.errors import BrokerConnectionLost
from stagepost.flow.texts import as_sentence

logger = logging.getLogger(__name__)

# The name by which RabbitMQ shows our connections.
PRODUCT = "Stagepost"
# The broker answers a declaration within milliseconds, and a quorum queue without its leader never.
ANSWER_SECONDS = 10.0
CLOSE_SECONDS = 2.0
# py-amqp's errors over bytes that are not AMQP.
MALFORMED = (struct.error, UnicodeError, IndexError)
# A connection is lost when it was silent for so many heart-beats.
SILENT_HEARTBEATS = 2


class SilentBrokerError(ConnectionError):
    """No frame arrived for two heart-beats. The broker may be alive, and did not end the connection."""


class AmqpConnection(Connection):  # type: ignore[misc]  # py-amqp has no types
    """py-amqp's connection, which reads with a deadline and writes heart-beats while it waits.

    ``deadline``  the moment after which a wait raises ``TimeoutError``
    ``heard_at``  the moment at which the last frame arrived
    ``on_arrival``  takes each message that is delivered to a consumer
    """

    on_arrival: Callable[[Arrival], None]

    def __init__(self, transport: Transport, monotonic: Callable[[], float], **options: Any) -> None:
        super().__init__(**options, frame_handler=self._frame_handler)
        self.heard_at = monotonic()
        self._own_transport = transport
        self._monotonic = monotonic
        self._beat_at = self.heard_at
        self._silent_at_least_until = self.heard_at

    def Transport(self, *_: Any, **__: Any) -> Transport:  # noqa: N802 - py-amqp's name
        return self._own_transport

    def _frame_handler(self, _: Connection, on_method: Callable[..., Any]) -> FrameHandler:
        return FrameHandler(on_method, self._pass_on)

    def _pass_on(self, arrival: Arrival) -> None:
        # The receiver is known later than this connection.
        self.on_arrival(arrival)

    @property
    def deadline(self) -> float:
        return self._own_transport.deadline

    @deadline.setter
    def deadline(self, moment: float) -> None:
        self._own_transport.deadline = moment

    def blocking_read(self, timeout: float | None = None) -> bool:
        """Read and handle one frame. Returns whether it completed a method."""
        until = self.deadline if timeout is None else min(self.deadline, self._monotonic() + timeout)
        while True:
            self._beat()
            try:
                frame = self._own_transport.read_frame(min(until, self._beat_at) if self.heartbeat else until)
            except TimeoutError:
                self._check_silence()
                if self._monotonic() >= until:
                    raise
                continue
            self.heard_at = self._monotonic()
            return bool(self.on_inbound_frame(frame))

    def read_what_is_there(self) -> None:
        """Handle the frames that have arrived. Raises ``SilentBrokerError``."""
        with suppress(TimeoutError):
            while True:
                self.blocking_read(0.0)

    def collect(self) -> None:
        """Close the socket, and free the buffers at once.

        py-amqp's objects refer to each other, so they wait for the garbage collector, and each connection has 128 KiB.
        """
        super().collect()
        self._frame_writer = self._on_inbound_frame = None

    def has_heard_lately(self) -> bool:
        return not self.heartbeat or self._monotonic() - self.heard_at <= SILENT_HEARTBEATS * self.heartbeat

    def tolerate_silence(self, seconds: float) -> None:
        self._silent_at_least_until = self._monotonic() + seconds

    def _beat(self) -> None:
        now = self._monotonic()
        if not self.heartbeat or now < self._beat_at:
            return
        self._beat_at = now + self.heartbeat / 2
        deadline = self.deadline
        self.deadline = now + self.heartbeat
        try:
            self.send_heartbeat()
        except TimeoutError as error:
            raise SilentBrokerError("the broker reads nothing any more") from error
        finally:
            self.deadline = deadline

    def _check_silence(self) -> None:
        if not self.has_heard_lately() and self._monotonic() >= self._silent_at_least_until:
            seconds = self._monotonic() - self.heard_at
            raise SilentBrokerError(f"nothing came from the broker for {seconds:.1f} s")


class Link:
    """A connection that two threads use in turn: the one that drives it, and the one that writes heart-beats.

    ``name``  of the broker's host, for errors
    """

    def __init__(self, amqp: AmqpConnection, name: str, clock: Clock) -> None:
        self.amqp = amqp
        self.name = name
        self.is_ours_to_blame = False
        self._clock = clock
        self._lock = threading.RLock()
        self._lost: str | None = None
        self._ended = threading.Event()
        self._heart = threading.Thread(target=self._keep_alive, name=f"heart-beat {name}", daemon=True)

    def start(self) -> None:
        """Start the thread that writes heart-beats and reads what arrives while the driving thread does other work."""
        self._heart.start()

    @contextmanager
    def used(self, seconds: float = ANSWER_SECONDS) -> Iterator[AmqpConnection]:
        """Lend the connection for one call, with a deadline. Raises ``BrokerConnectionLost``."""
        with self._lock:
            self.check()
            self.amqp.deadline = self._clock.monotonic() + seconds
            try:
                yield self.amqp
            except TimeoutError as error:
                self.lose(f"no answer within {seconds:g} s", is_ours_to_blame=True)
                raise self._loss() from error
            except (OSError, AMQPError) as error:
                self.lose(reason_of(error), is_ours_to_blame=isinstance(error, SilentBrokerError))
                raise self._loss() from error
            except MALFORMED as error:
                self.lose(f"the broker sent bytes that are not AMQP: {error}")
                raise self._loss() from error

    def wait(self, done: Callable[[], bool], seconds: float) -> bool:
        """Handle frames until the condition holds. Returns whether it does. The connection must be in use."""
        self.amqp.deadline = min(self.amqp.deadline, self._clock.monotonic() + seconds)
        while not done():
            try:
                self.amqp.blocking_read()
            except TimeoutError:
                return done()
        return True

    @property
    def is_lost(self) -> bool:
        return self._lost is not None

    def check(self) -> None:
        if self._lost is not None:
            raise self._loss()

    def is_alive(self, seconds: float, ask: Callable[[AmqpConnection], object]) -> bool:
        """Say whether a frame arrived lately, or the broker answers what ``ask`` sends. Never raises."""
        try:
            with self.used(seconds) as amqp:
                amqp.tolerate_silence(seconds)
                amqp.read_what_is_there()
                if not amqp.has_heard_lately():
                    ask(amqp)
                return True
        except BrokerConnectionLost:
            return False

    def lose(self, reason: str, *, is_ours_to_blame: bool = False) -> None:
        """End the connection without a goodbye. ``is_ours_to_blame``: our deadline ended it, and not the broker."""
        with self._lock:
            if self._lost is None:
                self._lost = reason
                self.is_ours_to_blame = is_ours_to_blame
            self._ended.set()
            self.amqp.collect()

    def close(self) -> None:
        """Say goodbye, so that the broker has all acknowledgements. Never raises."""
        with suppress(BrokerConnectionLost), self.used(CLOSE_SECONDS) as amqp:
            amqp.close()
        self.lose("it was closed")
        if self._heart.is_alive() and self._heart is not threading.current_thread():
            self._heart.join()

    def _loss(self) -> BrokerConnectionLost:
        return BrokerConnectionLost(f"the connection to the broker at {self.name} is lost: {as_sentence(self._lost)}")

    def _keep_alive(self) -> None:
        while not self._ended.wait(self.amqp.heartbeat / 4 if self.amqp.heartbeat else None):
            try:
                with self.used() as amqp:
                    amqp.read_what_is_there()
            except BrokerConnectionLost:
                pass
            except Exception as error:
                # Without this thread nobody would hear that the broker falls silent.
                self.lose(f"its heart-beats ended by {type(error).__name__}: {error}")
                logger.exception("heart-beats of %s ended", self.name, extra={"event": "broken"})


def reason_of(error: Exception) -> str:
    """Return an error's text for people, without the codes of py-amqp."""
    text = error.reply_text if isinstance(error, AMQPError) and error.reply_text else str(error)
    return text or type(error).__name__
