"""Read what a broker delivered: the ids and the address of a message. Its content stays as it came.

A receiver stores the bytes unread, and the stage decodes them. A body without our envelope is a *foreign* message. An
endpoint that takes foreign messages says where their ids are, and gets them in an envelope.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from stagepost.flow import codec, ids
from stagepost.flow.codec import decode_envelope, encode_envelope
from stagepost.flow.envelope import Envelope, Message
from stagepost.flow.errors import DeclarationError, InvalidId, Undecodable, WrongAddress
from stagepost.flow.initiation import Acceptance, Outgoing, encode_property
from stagepost.flow.target import REPLIES_PREFIX, TOPIC_PREFIX, store_of_reply
from stagepost.ports.broker import Delivery
from stagepost.ports.journal import Waypoint, WaypointName

SCOPE_PREFIX = "broker:"
# Where an id of a foreign message is found.
HEADER = "header:"
FIELD = "field:"

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_text = msgspec.json.Decoder(str | int)


@dataclass(frozen=True, slots=True)
class ForeignMessages:
    """The foreign messages that an endpoint takes: a JSON object of the endpoint's message type each.

    ``id_from``        ``header:NAME`` or ``field:NAME``, where the producer's own id of the message is
    ``producer_from``  ``header:NAME`` or ``field:NAME``, where the producer's name is
    ``producer``       the name of the only producer, in place of ``producer_from``
    """

    id_from: str
    producer_from: str | None = None
    producer: str | None = None

    def __post_init__(self) -> None:
        if (self.producer_from is None) == (self.producer is None):
            raise DeclarationError(
                "accepts='json' needs one producer source: producer='erp' for a single producer, or "
                "producer_from='header:NAME' or 'field:NAME'. Two producers may give two messages the same id."
            )
        for name, source in (("id_from", self.id_from), ("producer_from", self.producer_from)):
            is_known = source is None or any(source.startswith(each) and source != each for each in (HEADER, FIELD))
            if not is_known:
                raise DeclarationError(f"{name} must be 'header:NAME' or 'field:NAME', not {source!r}")


@dataclass(frozen=True, slots=True)
class Entrance:
    """An address from which a store receives.

    ``address``   the broker's
    ``stage``     the stage that handles the messages; None for the replies to processes that asked
    ``type``      the name of the type that the stage takes
    ``foreign``   the foreign messages that the stage takes, if any
    ``topic``     whose publications come to the stage, which subscribes to it; empty for any other address
    ``takes_replies_alone``  only replies, and the next steps of flows, come to it
    """

    address: str
    stage: str | None
    type: str = ""
    foreign: ForeignMessages | None = None
    topic: str = ""
    takes_replies_alone: bool = False


@dataclass(frozen=True, slots=True)
class Arrival:
    """A delivery whose ids were read.

    ``stage``       of its queue row
    ``data``        the bytes of its queue row
    ``digest``      of the messages' types and bodies as they came
    ``is_own``      a publication whose subscribers here got their copies when it was published
    ``is_derived``  a stage derived the id, so other content under the same id is another run of that stage
    ``error``       why it becomes a dead letter at once
    """

    delivery: Delivery
    stage: str
    envelope: Envelope
    data: bytes
    digest: str
    is_derived: bool
    error: Exception | None = None
    is_own: bool = False

    def acceptance(self, now: int) -> Acceptance:
        """Return the key to accept. The time is that of its arrival, by which ids are purged."""
        stamped = msgspec.structs.replace(self.envelope, sent_at=now)
        return Acceptance(
            SCOPE_PREFIX + self.delivery.address, self.envelope.message_id, self.digest, Outgoing(stamped)
        )


def read_arrival(delivery: Delivery, entrance: Entrance, store: str, now: int) -> Arrival:
    """Read the ids of a delivery. An unreadable one gets an id that follows from its bytes, and has an ``error``."""
    try:
        envelope, data = decode_envelope(delivery.body), delivery.body
    except Undecodable as error:
        if entrance.foreign is None:
            return _unreadable(delivery, entrance, error, now)
        try:
            envelope = _foreign(delivery, entrance, entrance.foreign, now)
        except (Undecodable, InvalidId) as foreign_error:
            return _unreadable(delivery, entrance, foreign_error, now)
        data = encode_envelope(envelope)
    try:
        ids.check_id("message_id", envelope.message_id)
        ids.check_id("flow_id", envelope.flow_id)
    except InvalidId as error:
        return _unreadable(delivery, entrance, error, now)
    stage, wrong = entrance.stage, None
    if stage is None:
        stage = envelope.to
        if store_of_reply(envelope.to) != store:
            stage = delivery.address
            wrong = WrongAddress(
                f"{delivery.address} receives replies to processes of store {store}, but this message is addressed to "
                f"{envelope.to!r}. Its sender has the address of another store."
            )
    is_own = bool(entrance.topic) and envelope.published_by == store
    if entrance.topic:
        copy_id = ids.of_copy(envelope.message_id, f"{TOPIC_PREFIX}{entrance.topic}", stage)
        envelope = msgspec.structs.replace(envelope, message_id=copy_id, to=stage, published_by=None)
        data = encode_envelope(envelope)
    content = codec.joined([each.type for each in envelope.messages], [each.body for each in envelope.messages])
    is_derived = envelope.cause_id is not None
    return Arrival(delivery, stage, envelope, data, codec.digest(content), is_derived, wrong, is_own)


def line_of_arrival(name: WaypointName, arrival: Arrival, now: int, node: str, detail: str | None = None) -> Waypoint:
    """Build a line about a delivered message."""
    envelope = arrival.envelope
    ids = envelope.message_id, envelope.flow_id, 0, envelope.origin_at, envelope.cause_id
    kind = envelope.kind, envelope.ordinal
    return Waypoint(name, now, node, arrival.stage, *ids, *kind, None, len(arrival.data), detail)


def replies_address(store: str) -> str:
    """Return the address of the replies to the processes of a store."""
    return f"{REPLIES_PREFIX}{store}"


def _foreign(delivery: Delivery, entrance: Entrance, foreign: ForeignMessages, now: int) -> Envelope:
    assert entrance.stage is not None, "only stages take foreign messages"
    try:
        fields = _fields.decode(delivery.body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Undecodable(f"the foreign message at {delivery.address} is no JSON object: {error}") from error
    theirs = _found(foreign.id_from, delivery, fields)
    producer = foreign.producer or _found(foreign.producer_from or "", delivery, fields)
    name = ids.SEPARATOR.join((SCOPE_PREFIX + delivery.address, producer, theirs))
    message_id = str(uuid.uuid5(ids.NAMESPACE, name))
    flow_id = f"{producer}:{theirs}"
    return Envelope(
        message_id=message_id,
        flow_id=flow_id if len(flow_id) <= ids.LENGTH_MAX else message_id,
        kind="send",
        to=entrance.stage,
        sender=producer,
        messages=(Message(type=entrance.type, body=msgspec.Raw(delivery.body)),),
        origin_at=now,
        sent_at=now,
        properties={"producer": encode_property("producer", producer), "producer_id": encode_property("id", theirs)},
    )


def _found(source: str, delivery: Delivery, fields: Mapping[str, msgspec.Raw]) -> str:
    name = source.partition(":")[2]
    if source.startswith(HEADER):
        value = delivery.message_id if name == "message-id" else delivery.headers.get(name, "")
    else:
        try:
            value = str(_text.decode(fields.get(name, msgspec.Raw(b'""'))))
        except msgspec.DecodeError as error:
            raise Undecodable(f"the field {name!r} of a message at {delivery.address} is no id: {error}") from error
    if not value:
        raise Undecodable(f"a message at {delivery.address} has no {source!r}, which its endpoint takes its ids from")
    return ids.check_id(source, value)


def _unreadable(delivery: Delivery, entrance: Entrance, error: Exception, now: int) -> Arrival:
    """Name an unreadable message by its bytes, so that a redelivery has the same id."""
    digest = hashlib.sha256(delivery.body).hexdigest()
    message_id = str(uuid.uuid5(ids.NAMESPACE, f"{SCOPE_PREFIX}{delivery.address}{ids.SEPARATOR}{digest}"))
    stage = entrance.stage or delivery.address
    envelope = Envelope(
        message_id=message_id,
        flow_id=message_id,
        kind="send",
        to=stage,
        sender=delivery.address,
        messages=(),
        origin_at=now,
        sent_at=now,
    )
    return Arrival(delivery, stage, envelope, delivery.body, digest, False, error)
