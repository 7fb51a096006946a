"""The result of a committed run: its journal fields, and the envelopes that it sends, each with its encoding."""

from __future__ import annotations

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

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Kept)


def encode_produced(produced: Produced) -> bytes:
    sends = [(data, outgoing.due_at, outgoing.topic) for outgoing, data in produced.sends]
    return _encoder.encode((produced.at, produced.node, produced.attempt, produced.ms, produced.detail, sends))


def decode_produced(data: bytes) -> Produced:
    at, node, attempt, ms, detail, kept = _decoder.decode(data)
    sends = [(Outgoing(decode_envelope(each), due_at, topic), each) for each, due_at, topic in kept]
    return Produced(at, node, attempt, ms, detail, sends)
