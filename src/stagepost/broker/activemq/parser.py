"""Cut a stream of bytes into STOMP 1.2 frames: strictly, within limits, and at any division of the stream."""

from __future__ import annotations

from typing import NamedTuple

from stagepost.broker.activemq.frames import COMMANDS, UNESCAPED, WITH_BODY, Frame, MalformedFrame, unescape

# ActiveMQ itself takes frames of up to 100 MB by default.
BODY_BYTES_MAX = 256 * 1024 * 1024
_COMMAND_BYTES_MAX = max(map(len, COMMANDS))
_LENGTH_DIGITS_MAX = 18


class Limits(NamedTuple):
    """The largest frame that is read. ``header_bytes`` counts all lines before the body."""

    header_bytes: int = 1024 * 1024
    headers: int = 1_000
    body_bytes: int = BODY_BYTES_MAX


class FrameParser:
    """Bytes in, frames out. After ``MalformedFrame`` each further call raises it again.

    Headers are escaped only after ``CONNECT`` or ``CONNECTED``: before, the peers have agreed on no version.
    """

    def __init__(self, limits: Limits = Limits()) -> None:  # noqa: B008 - it is immutable
        self._limits = limits
        self._buffer = bytearray()
        # The buffer is read up to ``_at``, and has no line end between there and ``_searched``.
        self._at = 0
        self._searched = 0
        self._is_escaped = False
        self._failure: str | None = None
        self._begin()

    def feed(self, data: bytes) -> None:
        """Add bytes in the order of their arrival."""
        # Removing the bytes of many frames at once is cheaper.
        del self._buffer[: self._at]
        self._searched -= self._at
        self._at = 0
        self._buffer += data

    def next_frame(self) -> Frame | None:
        """Return the next complete frame, or None until more bytes are fed. Raises ``MalformedFrame``."""
        if self._failure is not None:
            raise MalformedFrame(self._failure)
        try:
            return self._next()
        except MalformedFrame as error:
            self._failure = str(error)
            raise

    def _begin(self) -> None:
        self._command = ""
        self._headers: dict[str, str] = {}
        self._count = 0
        self._head_bytes = 0
        self._is_at_body = False
        self._length: int | None = None

    def _next(self) -> Frame | None:
        while not self._is_at_body:
            line = self._line()
            if line is None:
                return None
            if not self._command:
                # A line without text between frames is a heart-beat.
                if line:
                    self._start(line)
            elif line:
                self._add(line)
            else:
                self._is_at_body = True
                self._length = self._content_length()
        body = self._rest() if self._length is None else self._counted(self._length)
        if body is None:
            return None
        if body and self._command not in WITH_BODY:
            raise MalformedFrame(f"a {self._command} frame has a body of {len(body)} bytes")
        frame = Frame(self._command, self._headers, body)
        self._begin()
        return frame

    def _line(self) -> bytes | None:
        """Return the next line without its end, or None while the end is missing."""
        end = self._buffer.find(b"\n", max(self._searched, self._at))
        so_far = (len(self._buffer) if end < 0 else end) - self._at
        limit = self._limits.header_bytes - self._head_bytes if self._command else _COMMAND_BYTES_MAX + 1
        if so_far > limit:
            if not self._command:
                raise _no_command(bytes(self._buffer[self._at : self._at + _COMMAND_BYTES_MAX]))
            raise MalformedFrame(f"the headers of a {self._command} frame are too long")
        if end < 0:
            self._searched = len(self._buffer)
            return None
        line = bytes(self._buffer[self._at : end])
        self._at = end + 1
        if line.endswith(b"\r"):
            line = line[:-1]
        if b"\r" in line:
            raise MalformedFrame("a line has a carriage return that is not part of its end")
        return line

    def _start(self, line: bytes) -> None:
        command = line.decode("ascii", "replace")
        if command not in COMMANDS:
            raise _no_command(line)
        self._command = command
        if command in UNESCAPED:
            self._is_escaped = True

    def _add(self, line: bytes) -> None:
        self._head_bytes += len(line) + 1
        self._count += 1
        if self._count > self._limits.headers:
            raise MalformedFrame(f"a {self._command} frame has more than {self._limits.headers} headers")
        try:
            name, colon, value = line.decode().partition(":")
        except UnicodeDecodeError:
            raise MalformedFrame(f"a header of a {self._command} frame is not UTF-8") from None
        if not name or not colon:
            raise MalformedFrame(f"a {self._command} frame has a header without a name or a colon: {line[:100]!r}")
        if self._is_escaped and self._command not in UNESCAPED:
            name, value = unescape(name), unescape(value)
        # The first of repeated headers counts: a broker adds its own before those of a message's former way.
        self._headers.setdefault(name, value)

    def _content_length(self) -> int | None:
        text = self._headers.pop("content-length", None)
        if text is None:
            return None
        if not (text.isascii() and text.isdecimal() and len(text) <= _LENGTH_DIGITS_MAX):
            raise MalformedFrame(f"a {self._command} frame has the content-length {text[:100]!r}")
        self._check_size(int(text))
        return int(text)

    def _counted(self, length: int) -> bytes | None:
        end = self._at + length
        if len(self._buffer) <= end:
            return None
        if self._buffer[end]:
            raise MalformedFrame(f"a {self._command} frame is longer than its content-length of {length}")
        return self._take(end)

    def _rest(self) -> bytes | None:
        end = self._buffer.find(b"\0", max(self._searched, self._at))
        self._check_size((len(self._buffer) if end < 0 else end) - self._at)
        if end < 0:
            self._searched = len(self._buffer)
            return None
        return self._take(end)

    def _take(self, end: int) -> bytes:
        body = bytes(self._buffer[self._at : end])
        self._at = end + 1
        return body

    def _check_size(self, size: int) -> None:
        if size > self._limits.body_bytes:
            raise MalformedFrame(f"a {self._command} frame has a body of more than {self._limits.body_bytes} bytes")


def _no_command(line: bytes) -> MalformedFrame:
    return MalformedFrame(f"a frame begins with {line!r}, which is no command of STOMP")
