"""The envelope: the unit that stages send each other.

Message bodies and states stay encoded (``Raw``) until the stage that owns their types decodes them. Stores, relays and
tools know none of these types.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from stagepost.flow.errors import IllegalCall

Kind = Literal["send", "request", "reply", "next", "publish"]

# The bounds keep out numbers of foreign envelopes that no database can store.
Moment = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31)]

HEADER_LENGTH_MAX = 1_000

# An envelope encodes a missing state as JSON's null.
NOTHING = msgspec.Raw(b"null")


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message. ``type`` is the declared type's name; ``state`` is the state that the receiving stage gets.

    ``id`` is its own, in an envelope of several. None: the envelope's id names it.
    """

    type: str
    body: msgspec.Raw
    state: msgspec.Raw = NOTHING
    id: str | None = None


class Frame(msgspec.Struct, frozen=True, omit_defaults=True):
    """A level of the call stack: the stage that a reply runs, and the state that this stage gets."""

    to: str
    state: msgspec.Raw = NOTHING


class Envelope(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A message with its address, ids, call stack and properties.

    ``to``          the address of the receiving stage
    ``sender``      the sending stage, or the node that initiated the flow
    ``cause_id``    the message whose handler sent this one; None for an initiation
    ``ordinal``     its place among the sends of its kind to its target while one envelope was handled
    ``hops``        the number of stages that the flow has passed before this one
    ``origin_at``   when the flow was accepted; ``sent_at``: when this envelope was made (microseconds, UTC)
    ``stack``       the frames that replies go to, innermost last
    ``published_by``  of a publication over a broker: the uuid of the store whose subscribers got copies by its commit
    ``is_bare``     its receiver knows no envelope, so the body alone is published
    ``properties``  the properties of the flow, which every later envelope of it carries
    ``headers``     texts by name for the receiver of this envelope alone; sinks write and read them
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
    headers: dict[str, str] = {}
    published_by: str | None = None
    is_bare: bool = False


def check_header(name: object, value: object, place: str) -> None:
    """Check that every store and broker can carry a header. Raises ``IllegalCall``, which names the ``place``."""
    for text in (name, value):
        if not isinstance(text, str) or not text.isprintable() or len(text) > HEADER_LENGTH_MAX:
            raise IllegalCall(
                f"{place} wrote the header {name!r:.60} with the value {value!r:.60}: give both as printable texts of "
                f"at most {HEADER_LENGTH_MAX} characters. Larger things belong into a message."
            )
    if not name:
        raise IllegalCall(f"{place} wrote a header without a name, with the value {value!r:.60}: give it a name.")
