"""A STOMP 1.2 frame, and its bytes. There is no I/O here, and in ``parser.py`` neither.

The specification escapes the four bytes ``\\ : \\n \\r`` in headers, except in those of ``CONNECT`` and ``CONNECTED``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from stagepost.flow.errors import BrokerConnectionLost, BrokerError

# Frames whose headers are sent as they are, for peers of version 1.0.
UNESCAPED: Final = frozenset({"CONNECT", "CONNECTED", "STOMP"})
WITH_BODY: Final = frozenset({"SEND", "MESSAGE", "ERROR"})
COMMANDS: Final = UNESCAPED | WITH_BODY | {
    "SUBSCRIBE", "UNSUBSCRIBE", "ACK", "NACK", "BEGIN", "COMMIT", "ABORT", "DISCONNECT", "RECEIPT"
}  # fmt: skip
HEARTBEAT: Final = b"\n"

_TO_ESCAPE = re.compile(r"[\\:\n\r]")
_ESCAPES = {"\\": "\\\\", ":": "\\c", "\n": "\\n", "\r": "\\r"}
_ESCAPE = re.compile(r"\\(.?)", re.DOTALL)
_UNESCAPES = {escaped[1:]: plain for plain, escaped in _ESCAPES.items()}


class MalformedFrame(BrokerConnectionLost):
    """The peer sent bytes that are no STOMP 1.2 frame, or a frame beyond the limits. Nothing after it can be read."""

    code = "malformed-frame"


class UnsendableFrame(BrokerError):
    """A header cannot be written as STOMP 1.2. Nothing was sent."""

    code = "unsendable-frame"


class Frame(NamedTuple):
    """One frame. ``headers`` hold decoded text; ``content-length`` follows from ``body`` when the frame is sent."""

    command: str
    headers: Mapping[str, str] = {}
    body: bytes = b""


def encode(frame: Frame) -> bytes:
    """Return the bytes of a frame. Raises ``UnsendableFrame`` for headers that STOMP 1.2 cannot carry."""
    is_escaped = frame.command not in UNESCAPED
    lines = [frame.command]
    for name, value in frame.headers.items():
        if not name or name == "content-length":
            raise UnsendableFrame(f"a {frame.command} frame has the header {name!r}. Give it another name.")
        if is_escaped:
            lines.append(f"{escape(name)}:{escape(value)}")
        elif _TO_ESCAPE.search(name) or "\n" in value or "\r" in value:
            raise UnsendableFrame(
                f"the header {name!r} of a {frame.command} frame has a line end or a colon, which STOMP does not "
                "escape there. Remove it from the broker URL."
            )
        else:
            lines.append(f"{name}:{value}")
    if frame.command in WITH_BODY:
        lines.append(f"content-length:{len(frame.body)}")
    check_text(frame.headers)
    return b"%b\n\n%b\0" % ("\n".join(lines).encode(), frame.body)


def check_text(headers: Mapping[str, str]) -> None:
    """Raise ``UnsendableFrame`` for a header that UTF-8 cannot write."""
    for name, value in headers.items():
        try:
            (name + value).encode()
        except UnicodeEncodeError as error:
            raise UnsendableFrame(
                f"the header {name!r} has a lone surrogate, which UTF-8 cannot write. Remove it."
            ) from error


def escape(text: str) -> str:
    return _TO_ESCAPE.sub(lambda found: _ESCAPES[found[0]], text)


def unescape(text: str) -> str:
    """Raises ``MalformedFrame`` for an escape sequence that the specification does not know."""
    return _ESCAPE.sub(_unescaped, text) if "\\" in text else text


def _unescaped(found: re.Match[str]) -> str:
    try:
        return _UNESCAPES[found[1]]
    except KeyError:
        raise MalformedFrame(f"a header has the unknown escape sequence {found[0]!r}") from None
