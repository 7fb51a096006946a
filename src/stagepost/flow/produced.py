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


class Kept(msgspec.Struct, array_like=True):
    """The form in an inbox. It has the envelopes' bytes, because a relay must resend the same bytes."""

    at: int
    node: str
    attempt: int
    ms: float
    detail: str | None
    sends: list[tuple[bytes, int | None, str | None]]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Kept)


def encode_produced(produced: Produced) -> bytes:
    sends = [(data, outgoing.due_at, outgoing.topic) for outgoing, data in produced.sends]
    return _encoder.encode(Kept(produced.at, produced.node, produced.attempt, produced.ms, produced.detail, sends))


def decode_produced(data: bytes) -> Produced:
    kept = _decoder.decode(data)
    sends = [(Outgoing(decode_envelope(each), due_at, topic), each) for each, due_at, topic in kept.sends]
    return Produced(kept.at, kept.node, kept.attempt, kept.ms, kept.detail, sends)
