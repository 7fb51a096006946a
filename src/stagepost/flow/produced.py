"""The result of a committed run: its journal fields, and the envelopes that it sends, each with its encoding."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import msgspec

from stagepost.flow.codec import decode_envelope
from stagepost.flow.initiation import Outgoing


class Produced(msgspec.Struct, frozen=True):
    """The result of a committed run.

    ``at`` and ``node`` say when and where the handler ran, ``ms`` how long; ``detail`` is for the journal.
    """

    at: int
    node: str
    attempt: int
    ms: float
    detail: str | None
    sends: Sequence[tuple[Outgoing, bytes]]


# The form in an inbox: the fields of ``Produced``, and of each send the envelope's bytes, its ``due_at`` and its topic.
# It has the bytes, because a relay must resend the same bytes.
Kept = tuple[int, str, int, float, str | None, list[tuple[bytes, int | None, str | None]]]

# Bytes from this size on are compressed, quickly: they are stored for a moment. Level 1 of zlib takes 10 ms a megabyte.
COMPRESSED_FROM = 16_384
LEVEL = 1
# The first byte of what zlib writes. An encoded array of six fields begins with another one.
ZLIB = b"\x78"

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Kept)


def encode_produced(produced: Produced) -> bytes:
    sends = [(data, outgoing.due_at, outgoing.topic) for outgoing, data in produced.sends]
    data = _encoder.encode((produced.at, produced.node, produced.attempt, produced.ms, produced.detail, sends))
    return data if len(data) < COMPRESSED_FROM else zlib.compress(data, LEVEL)


def decode_produced(data: bytes) -> Produced:
    plain = zlib.decompress(data) if data[:1] == ZLIB else data
    at, node, attempt, ms, detail, kept = _decoder.decode(plain)
    sends = [(Outgoing(decode_envelope(each), due_at, topic), each) for each, due_at, topic in kept]
    return Produced(at, node, attempt, ms, detail, sends)
