"""A STOMP session over one socket: frames out, frames in, and the answers to those that ask for a receipt.

The driving thread reads and writes while it waits. Between its calls the heart-beat thread does so, a few times in each
heart-beat. So a long commit of the driving thread neither loses the connection nor hides its death.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from stagepost.broker.activemq.frames import HEARTBEAT, Frame, MalformedFrame, encode
from stagepost.broker.activemq.parser import FrameParser
from stagepost.flow.clock import Clock
from stagepost.flow.errors import BrokerConnectionLost
from stagepost.flow.texts import as_sentence, one_line, shortened

CHUNK: Final = 65_536
# One turn reads no more than this, so that a fast broker does not keep the lock.
TURN_BYTES_MAX: Final = 16 * CHUNK
# The driving thread looks again after this time, in case the heart-beat thread has read the frame that it waits for.
LOOK_SECONDS: Final = 1.0
# Two silent heart-beats are a death; one may be late.
BEATS_MISSED_MAX: Final = 2
TICKS_A_BEAT: Final = 4
WOULD_BLOCK: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Answer(NamedTuple):
    """The broker's answer to one frame: a receipt, or an error and its text."""

    is_receipt: bool
    text: str = ""


class StompSession:
    """One session, driven by one thread.

    ``place``        names the broker in errors
    ``connected``    the headers of the broker's ``CONNECTED`` frame
    ``fatal_error``  the text of the error with which the broker ended the connection
    ``is_ours_to_blame``  our deadline or the broker's silence ended the connection, and not the broker
    """

    def __init__(self, connection: socket.socket, place: str, clock: Clock) -> None:
        connection.setblocking(False)
        self.place = place
        self.connected: Mapping[str, str] = {}
        self.fatal_error = ""
        self.is_ours_to_blame = False
        self._socket = connection
        self._clock = clock
        # It guards the socket, the parser and all that follows.
        self._lock = threading.Lock()
        self._parser = FrameParser()
        self._out = bytearray()
        self._first: deque[Frame] = deque()
        self._inboxes: dict[str, deque[Frame]] = {}
        self._answers: dict[str, Answer | None] = {}
        self._numbers = 0
        self._lost: str | None = None
        self._is_waiting = False
        self._arrived_at = self._sent_at = clock.monotonic()
        self._beat_seconds = self._silence_seconds = 0.0
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None

    # The handshake.

    def handshake(self, frame: Frame, seconds: float) -> Frame | None:
        """Send ``CONNECT`` and return the broker's first frame, or None where none came in time.

        Raises ``BrokerConnectionLost``.
        """
        self.post([frame])
        is_there = self.wait(lambda: bool(self._first), seconds)
        return self._first.popleft() if is_there else None

    def begin(self, connected: Frame, heartbeat_seconds: float) -> None:
        """Start the heart-beats that both sides agreed on."""
        self.connected = connected.headers
        sends, wants = _intervals(connected.headers.get("heart-beat", "0,0"))
        # An interval of 0 says that a side sends none, or wants none.
        self._beat_seconds = max(wants, heartbeat_seconds) if wants else 0.0
        self._silence_seconds = BEATS_MISSED_MAX * max(sends, heartbeat_seconds) if sends else 0.0
        shortest = min(each for each in (self._beat_seconds, self._silence_seconds, heartbeat_seconds) if each)
        self._thread = threading.Thread(
            target=self._beat, args=(shortest / TICKS_A_BEAT,), name="stomp-heartbeat", daemon=True
        )
        self._thread.start()

    # Frames.

    def open_inbox(self, subscription: str) -> deque[Frame]:
        """Return the queue of the messages that arrive for a subscription."""
        inbox: deque[Frame] = deque()
        with self._lock:
            self._inboxes[subscription] = inbox
        return inbox

    def close_inbox(self, subscription: str) -> None:
        """Drop the messages of a subscription, also those that are still on their way."""
        with self._lock:
            self._inboxes.pop(subscription, None)

    def post(self, frames: Sequence[Frame]) -> None:
        """Send frames without waiting. Raises ``BrokerConnectionLost``, and ``UnsendableFrame`` before any is sent."""
        data = b"".join(map(encode, frames))
        with self._lock:
            self.check()
            self._out += data
        self._turn()

    def ask(self, frames: Sequence[Frame], seconds: float) -> list[Answer | None]:
        """Send frames, each with a receipt, and wait for all answers. Returns them in order.

        None is an answer that is missing; the connection is lost then. Raises ``BrokerConnectionLost`` where it was
        lost before anything was sent.
        """
        receipts = []
        asking = []
        for frame in frames:
            self._numbers += 1
            receipts.append(str(self._numbers))
            asking.append(Frame(frame.command, {**frame.headers, "receipt": receipts[-1]}, frame.body))
        data = b"".join(map(encode, asking))
        with self._lock:
            self.check()
            self._answers = dict.fromkeys(receipts)
            self._out += data
        if not self._wait(lambda: None not in self._answers.values(), seconds):
            self.lose(f"no answer to {asking[0].command} came within {seconds:g} s", is_ours_to_blame=True)
        answers = [self._answers[each] for each in receipts]
        self._answers = {}
        return answers

    def demand(self, frames: Sequence[Frame], seconds: float) -> list[str | None]:
        """Send frames, each with a receipt. Returns the text of each frame's error, or None.

        Raises ``BrokerConnectionLost`` where an answer is missing.
        """
        answers = self.ask(frames, seconds)
        if None in answers:
            self.check()
        return [None if each is None or each.is_receipt else each.text for each in answers]

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Read and write until the condition holds, for up to ``seconds``. Raises ``BrokerConnectionLost``."""
        if self._wait(condition, seconds):
            return True
        self.check()
        return False

    # Life and death.

    @property
    def is_lost(self) -> bool:
        return self._lost is not None

    @property
    def reason(self) -> str:
        """The reason of the loss."""
        return self._lost or ""

    def has_sign_of_life(self, heartbeat_seconds: float) -> bool:
        """Say whether anything arrived within the last two heart-beats."""
        self._turn()
        limit = self._silence_seconds or BEATS_MISSED_MAX * heartbeat_seconds
        return not self.is_lost and self._clock.monotonic() - self._arrived_at <= limit

    def check(self) -> None:
        """Raise ``BrokerConnectionLost`` if the connection is lost."""
        if self._lost is not None:
            raise BrokerConnectionLost(
                f"the connection to {self.place} is lost: {as_sentence(self._lost)} Connect again."
            )

    def lose(self, reason: str, *, is_ours_to_blame: bool = False) -> None:
        with self._lock:
            self._lose(reason, is_ours_to_blame=is_ours_to_blame)

    def close(self) -> None:
        """End the session. Never raises, and does not wait for the broker."""
        self._is_closed.set()
        with self._lock:
            if self._lost is None and not self._out:
                self._out += encode(Frame("DISCONNECT"))
        self._turn()
        self.lose("it was closed")
        if self._thread is not None:
            self._thread.join()
        self._socket.close()

    def _lose(self, reason: str, *, is_ours_to_blame: bool = False) -> None:
        if self._lost is None:
            self._lost = reason
            self.is_ours_to_blame = is_ours_to_blame
            self._out.clear()
            try:
                # It wakes a thread that waits for the socket; closing does not.
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                # The broker has ended the connection first.
                return

    # Reading and writing.

    def _wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        deadline = self._clock.monotonic() + seconds
        self._is_waiting = True
        try:
            while True:
                self._turn()
                # Answers that came before the connection was lost count.
                if condition():
                    return True
                left = deadline - self._clock.monotonic()
                if self.is_lost or left <= 0:
                    return False
                poll = select.poll()
                poll.register(self._socket, select.POLLIN | (select.POLLOUT if self._out else 0))
                poll.poll(1000 * min(left, LOOK_SECONDS))
        finally:
            self._is_waiting = False

    def _turn(self) -> None:
        """Write and read as much as is possible without waiting."""
        with self._lock:
            if self._lost is None:
                self._write_and_read()

    def _write_and_read(self) -> None:
        try:
            try:
                self._flush()
            except OSError:
                # The broker ended the connection. Its last frame, which may tell the reason, is still to be read.
                self._out.clear()
            self._read()
        except MalformedFrame as error:
            self._lose(f"{error}")
        except OSError as error:
            self._lose(f"{error}")

    def _flush(self) -> None:
        while self._out:
            try:
                # A copy of one chunk: the buffer may not be resized while a view of it exists.
                count = self._socket.send(bytes(self._out[:CHUNK]))
            except WOULD_BLOCK:
                return
            del self._out[:count]
            self._sent_at = self._clock.monotonic()

    def _read(self) -> None:
        total = 0
        while total < TURN_BYTES_MAX and self._lost is None:
            try:
                data = self._socket.recv(CHUNK)
            except WOULD_BLOCK:
                return
            if not data:
                self._lose("the broker closed it")
                return
            total += len(data)
            self._arrived_at = self._clock.monotonic()
            self._parser.feed(data)
            while (frame := self._parser.next_frame()) is not None:
                self._sort(frame)

    def _sort(self, frame: Frame) -> None:
        match frame.command:
            case _ if not self.connected:
                self._first.append(frame)
            case "MESSAGE":
                if not {"subscription", "message-id"} <= frame.headers.keys():
                    raise MalformedFrame("the broker delivered a message without its subscription or its id")
                inbox = self._inboxes.get(frame.headers["subscription"])
                # The broker delivers again the messages of a subscription that has ended.
                if inbox is not None:
                    inbox.append(frame)
            case "RECEIPT":
                self._answer(frame, Answer(is_receipt=True))
            case "ERROR":
                text = error_text(frame)
                if not self._answer(frame, Answer(is_receipt=False, text=text)):
                    self.fatal_error = self.fatal_error or text
                    self._lose(f"the broker answered: {text}")
            case unexpected:
                raise MalformedFrame(f"the broker sent a {unexpected} frame, which is a client's or out of turn")

    def _answer(self, frame: Frame, answer: Answer) -> bool:
        receipt = frame.headers.get("receipt-id", "")
        if receipt in self._answers:
            self._answers[receipt] = answer
        return receipt in self._answers

    def _beat(self, tick_seconds: float) -> None:
        """Write heart-beats, stamp arrivals and notice silence, until the session ends."""
        while not self._is_closed.wait(tick_seconds):
            with self._lock:
                if self._lost is not None:
                    return
                now = self._clock.monotonic()
                if self._beat_seconds and not self._out and now - self._sent_at >= self._beat_seconds / 2:
                    self._out += HEARTBEAT
                is_silent = self._silence_seconds and now - self._arrived_at > self._silence_seconds
                # A process that stood still finds here the heart-beats that arrived meanwhile.
                if is_silent or not self._is_waiting:
                    self._write_and_read()
                else:
                    self._beat_only()
                if is_silent and now - self._arrived_at > self._silence_seconds:
                    reason = f"the broker was silent for more than {self._silence_seconds:g} s"
                    self._lose(reason, is_ours_to_blame=True)

    def _beat_only(self) -> None:
        try:
            self._flush()
        except OSError:
            # The waiting thread reads the reason.
            self._out.clear()


def error_text(frame: Frame) -> str:
    """Return the broker's own words on one line. The body of its error may be a stack."""
    lines = frame.body.decode("utf-8", "replace").splitlines() or ["an error without a text"]
    return shortened(one_line(frame.headers.get("message") or lines[0]))


def _intervals(text: str) -> tuple[float, float]:
    """Return the seconds between the broker's heart-beats, and between those that it wants."""
    sends, _, wants = text.partition(",")
    if not (sends.isdecimal() and wants.isdecimal()):
        raise MalformedFrame(f"the broker offers the heart-beats {text[:100]!r}")
    return int(sends) / 1000, int(wants) / 1000
