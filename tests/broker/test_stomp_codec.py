"""The STOMP 1.2 codec: round trips, each division of the stream, limits, and hostile bytes.

stomp.py is the oracle: it reads the frames that the codec writes, and the codec reads those of stomp.py.
"""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from stomp.protocol import Protocol12
from stomp.transport import BaseTransport
from stomp.utils import Frame as OracleFrame
from stomp.utils import convert_frame, parse_frame

from stagepost.broker.activemq.frames import (
    COMMANDS,
    UNESCAPED,
    WITH_BODY,
    Frame,
    MalformedFrame,
    UnsendableFrame,
    encode,
    escape,
    unescape,
)
from stagepost.broker.activemq.parser import FrameParser, Limits

CONNECTED = b"CONNECTED\nversion:1.2\n\n\0"
SMALL = Limits(header_bytes=60, headers=3, body_bytes=10)

texts = st.text(st.characters(exclude_categories=["Cs"]))
names = texts.filter(lambda text: text not in ("", "content-length"))
frames = st.builds(
    lambda command, headers, body: Frame(command, headers, body if command in WITH_BODY else b""),
    st.sampled_from(sorted(COMMANDS - UNESCAPED)),
    st.dictionaries(names, texts, max_size=5),
    st.binary(),
)


def parsed(data: bytes, *, limits: Limits = Limits()) -> list[Frame]:  # noqa: B008 - it is immutable
    parser = FrameParser(limits)
    parser.feed(data)
    found = []
    while (frame := parser.next_frame()) is not None:
        found.append(frame)
    return found


def parsed_after_connected(data: bytes, *, limits: Limits = Limits()) -> list[Frame]:  # noqa: B008
    return parsed(CONNECTED + data, limits=limits)[1:]


@given(st.lists(frames, max_size=4), st.sampled_from([b"", b"\n", b"\r\n\n"]))
def test_frames_and_heartbeats_come_back_as_they_were_sent(sent: list[Frame], heartbeats: bytes) -> None:
    assert parsed_after_connected(b"".join(encode(each) + heartbeats for each in sent)) == sent


@given(texts)
@example("\\c\\n\r\n::\\")
def test_escaping_is_undone(text: str) -> None:
    assert not set(escape(text)) & set("\n\r:")
    assert unescape(escape(text)) == text


def test_every_division_of_the_stream_gives_the_same_frames() -> None:
    data = (
        b"\r\n" + CONNECTED + b"\n\r\n"
        b"MESSAGE\r\nsubscription:1\r\nack:a\\cb\r\ncontent-length:3\r\n\r\na\0c\0\n"
        b"ERROR\nmessage:no room\n\nwithout a length\0"
    )
    whole = parsed(data)
    assert [each.body for each in whole] == [b"", b"a\0c", b"without a length"]
    for position in range(len(data) + 1):
        parser = FrameParser()
        found = []
        for part in (data[:position], data[position:]):
            parser.feed(part)
            while (frame := parser.next_frame()) is not None:
                found.append(frame)
        assert found == whole, position


def test_single_bytes_give_the_same_frames() -> None:
    parser = FrameParser()
    found = []
    for each in CONNECTED + encode(Frame("MESSAGE", {"x": "\r\n:\\ö"}, b"\0\n\0")):
        parser.feed(bytes([each]))
        while (frame := parser.next_frame()) is not None:
            found.append(frame)
    assert found[1:] == [Frame("MESSAGE", {"x": "\r\n:\\ö"}, b"\0\n\0")]


def test_the_first_of_repeated_headers_counts() -> None:
    [frame] = parsed_after_connected(b"MESSAGE\nx:1\nx:2\ncontent-length:1\ncontent-length:5\n\na\0")
    assert (frame.headers, frame.body) == ({"x": "1"}, b"a")


def test_headers_are_escaped_after_the_version_is_agreed() -> None:
    error = b"ERROR\nmessage:C:\\new\n\n\0"
    assert parsed(error)[0].headers == {"message": "C:\\new"}
    assert parsed_after_connected(error)[0].headers == {"message": "C:\new"}


def test_connect_is_not_escaped() -> None:
    connect = Frame("CONNECT", {"login": "a:b\\c"})
    assert encode(connect) == b"CONNECT\nlogin:a:b\\c\n\n\0"
    assert parsed(encode(connect)) == [connect]


@pytest.mark.parametrize("headers", [{"x": "a\nb"}, {"x": "a\rb"}, {"x:y": "a"}, {"": "a"}])
def test_connect_with_a_header_that_it_cannot_carry_is_not_sent(headers: dict[str, str]) -> None:
    with pytest.raises(UnsendableFrame):
        encode(Frame("CONNECT", headers))


@pytest.mark.parametrize("headers", [{"": "a"}, {"content-length": "9"}, {"x": "\ud800"}])
def test_a_header_that_no_frame_carries_is_not_sent(headers: dict[str, str]) -> None:
    with pytest.raises(UnsendableFrame):
        encode(Frame("SEND", headers))


@pytest.mark.parametrize(
    "data",
    [
        b"HELLO\n\n\0",
        b"message\n\n\0",
        b"\rMESSAGE\n\n\0",
        b"MESSAGE\nx\n\n\0",
        b"MESSAGE\n:x\n\n\0",
        b"MESSAGE\nx:\\t\n\n\0",
        b"MESSAGE\nx:\\\n\n\0",
        b"MESSAGE\nx:a\rb\n\n\0",
        b"MESSAGE\nx:\xff\n\n\0",
        b"MESSAGE\ncontent-length:-1\n\n\0",
        b"MESSAGE\ncontent-length:+1\n\na\0",
        b"MESSAGE\ncontent-length:1_0\n\n\0",
        b"MESSAGE\ncontent-length: 1\n\na\0",
        b"MESSAGE\ncontent-length:\xd9\xa1\n\na\0",
        b"MESSAGE\ncontent-length:9999999999999999999999\n\n",
        b"MESSAGE\ncontent-length:1\n\nab\0",
        b"RECEIPT\nreceipt-id:1\n\nbody\0",
        b"RECEIPT\ncontent-length:1\n\na\0",
    ],
)
def test_a_stream_that_is_not_stomp_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedFrame):
        parsed_after_connected(data)


def test_a_malformed_stream_stays_malformed_and_keeps_the_frames_before() -> None:
    parser = FrameParser()
    parser.feed(CONNECTED + b"HELLO\n\n\0" + CONNECTED)
    assert parser.next_frame() == Frame("CONNECTED", {"version": "1.2"})
    for _ in range(2):
        with pytest.raises(MalformedFrame, match="HELLO"):
            parser.next_frame()
        parser.feed(CONNECTED)


@pytest.mark.parametrize(
    "data",
    [
        b"M" * 13,
        b"MESSAGE\n" + b"x" * 61,
        b"MESSAGE\n" + b"x:" + b"y" * 28 + b"\n" + b"x:" + b"y" * 28,
        b"MESSAGE\na:1\nb:2\nc:3\nd:4\n",
        b"MESSAGE\ncontent-length:11\n\n",
        b"MESSAGE\n\n" + b"y" * 11,
    ],
)
def test_a_frame_beyond_a_limit_is_refused_before_it_is_complete(data: bytes) -> None:
    with pytest.raises(MalformedFrame):
        parsed_after_connected(data, limits=SMALL)


def test_a_frame_at_the_limits_is_read() -> None:
    data = b"MESSAGE\nc:" + b"y" * 34 + b"\na:\ncontent-length:10\n\n" + b"z" * 10 + b"\0"
    [frame] = parsed_after_connected(data, limits=SMALL)
    assert frame.body == b"z" * 10


SEEDS = (
    b"MESSAGE\nsubscription:1\nack:a\\cb\ncontent-length:3\n\na\0c\0",
    b"RECEIPT\r\nreceipt-id:7\r\n\r\n\0\n\n",
    b"ERROR\nmessage:x\ncontent-length:2\n\nab\0",
    CONNECTED,
)
# Pieces of frames in any order come closer to the parser's edges than random bytes do.
pieces = st.one_of(
    st.sampled_from(SEEDS),
    st.sampled_from(
        [b"\n", b"\r", b"\0", b":", b"\\", b"\\n", b"MESSAGE\n", b"content-length:", b"1", b"\xff", b"x:y\n"]
    ),
    st.binary(max_size=3),
)


@given(st.lists(pieces, max_size=12), st.integers(1, 7))
def test_hostile_bytes_give_frames_or_the_domain_error(parts: list[bytes], size: int) -> None:
    data = CONNECTED + b"".join(parts)
    assert outcome(data, len(data)) == outcome(data, size)


def outcome(data: bytes, size: int) -> tuple[list[Frame], bool]:
    """Return the frames of a stream that arrives in parts of a size, and whether it is malformed."""
    parser = FrameParser(SMALL)
    found = []
    try:
        for position in range(0, len(data), size):
            parser.feed(data[position : position + size])
            while (frame := parser.next_frame()) is not None:
                found.append(frame)
    except MalformedFrame:
        return found, True
    return found, False


# The oracle neither unescapes names that it splits at a colon, nor strips a carriage return from a line.
@given(frames)
def test_stomp_py_reads_the_frames_that_are_sent(frame: Frame) -> None:
    read = parse_frame(encode(frame)[:-1])
    read.headers.pop("content-length", None)
    assert (read.cmd, read.headers, read.body) == frame


@given(st.dictionaries(names.filter(lambda name: escape(name) == name), texts, max_size=5), st.binary(min_size=1))
def test_frames_of_stomp_py_are_read(headers: dict[str, str], body: bytes) -> None:
    sent = OracleFrame("SEND", dict(headers), body)
    Protocol12(BaseTransport())._escape_headers(sent.headers)
    sent.headers["content-length"] = 0
    assert parsed_after_connected(b"".join(convert_frame(sent))) == [Frame("SEND", headers, body)]
