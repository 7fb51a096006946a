"""The frames of AMQP on a socket. Every wait has a deadline, and a window of frames is written at once."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from struct import unpack_from

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
FRAME_END = 0xCE
HEAD_BYTES = 7
READ_BYTES = 65_536
CORKED_BYTES_MAX = 1_000_000


class Transport:
    """Implements the part of py-amqp's transport that its connection uses.

    ``deadline``  the moment, in the seconds of ``monotonic``, after which ``write`` raises ``TimeoutError``

    Its own transport has no deadline for a whole frame, and reads each frame with three calls of the system.
    """

    def __init__(self, sock: socket.socket, monotonic: Callable[[], float]) -> None:
        self.sock = sock
        self.connected = False
        self.deadline = 0.0
        self._monotonic = monotonic
        self._read = bytearray()
        self._corked: bytearray | None = None

    def connect(self) -> None:
        if not self.connected:
            self.connected = True
            self.write(PROTOCOL_HEADER)

    def read_frame(self, until: float) -> tuple[int, int, bytes]:
        """Return type, channel and payload of the next frame. Raises ``TimeoutError`` after ``until``.

        A frame that is there already is returned also after ``until``. A part of a frame is kept for the next call.
        """
        while True:
            if len(self._read) >= HEAD_BYTES:
                kind, channel, size = unpack_from(">BHI", self._read)
                end = HEAD_BYTES + size
                if len(self._read) > end:
                    payload = bytes(self._read[HEAD_BYTES:end])
                    if self._read[end] != FRAME_END:
                        raise ConnectionError("the broker sent a frame without its end")
                    del self._read[: end + 1]
                    return kind, channel, payload
            self._read += self._receive(max(0.0, until - self._monotonic()))

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._corked is not None:
            self._corked += data
            if len(self._corked) < CORKED_BYTES_MAX:
                return
            data, self._corked = self._corked, bytearray()
        # A time-out of zero would not mean a deadline that has passed, but a socket that never waits.
        self.sock.settimeout(max(0.001, self.deadline - self._monotonic()))
        self.sock.sendall(data)

    @contextmanager
    def corked(self) -> Iterator[None]:
        """Write the frames of the block at once, at its end, or in large parts."""
        self._corked = bytearray()
        try:
            yield
        finally:
            rest, self._corked = self._corked, None
        self.write(rest)

    def close(self) -> None:
        """Close the socket. It says no goodbye of TLS, which could wait."""
        self.connected = False
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()

    def _receive(self, seconds: float) -> bytes:
        self.sock.settimeout(seconds)
        try:
            data = self.sock.recv(READ_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError) as error:
            raise TimeoutError("nothing has arrived") from error
        if not data:
            raise ConnectionResetError("the broker closed the connection")
        return data
