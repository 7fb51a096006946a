"""The envelope: the physical thing that travels between stages, and how it becomes bytes.

It is JSON, so that an operator can read a dead letter and any language can write one. Message bodies and states stay
encoded (``Raw``) until the stage that owns their types decodes them: an envelope passes through stores, relays and
tools that know none of these types.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from stagepost.flow.errors import Undecodable

Kind = Literal["send", "request", "reply", "next", "publish"]

# Bounded, so that a foreign envelope cannot bring what no database can store.
Moment = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31)]

# JSON's null, which is what "no state" looks like on the wire.
NOTHING = msgspec.Raw(b"null")


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One logical piece of data. ``type`` is the declared type's name; ``state`` is for the stage it goes to."""

    type: str
    body: msgspec.Raw
    state: msgspec.Raw = NOTHING


class Frame(msgspec.Struct, frozen=True, omit_defaults=True):
    """One level of the call stack: the stage that a reply runs, and the state it will find there."""

    to: str
    state: msgspec.Raw = NOTHING


class Envelope(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """
    ``to``          the address of the stage this runs next
    ``sender``      the stage it comes from, or the node that initiated the flow
    ``cause_id``    the message whose handling sent this one; None for an initiation
    ``ordinal``     its place among the sends of its kind to its target in one handler run
    ``hops``        stages the flow has passed before this one
    ``origin_at``   when the flow was accepted, ``sent_at`` when this envelope was made (microseconds, UTC)
    ``stack``       where replies go, innermost last
    ``properties``  sticky values of the flow, seen by everything downstream
    """

    message_id: str
    flow_id: str
    kind: Kind
    to: str
    sender: str
    messages: tuple[Message, ...]
    origin_at: Moment
    sent_at: Moment
    cause_id: str | None = None
    ordinal: Count = 0
    hops: Count = 0
    stack: tuple[Frame, ...] = ()
    properties: dict[str, msgspec.Raw] = {}


_decoder = msgspec.json.Decoder(Envelope)
_encoder = msgspec.json.Encoder()


def encode_envelope(envelope: Envelope) -> bytes:
    return _encoder.encode(envelope)


def decode_envelope(data: bytes) -> Envelope:
    """Raises ``Undecodable``; the bytes stay as they came, for the dead letter."""
    try:
        return _decoder.decode(data)
    # RecursionError: a hostile body nested a hundred thousand deep.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Undecodable(f"not an envelope: {error}") from error
