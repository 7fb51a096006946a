"""The form in which a message leaves for a broker: the envelope, or the body alone for a service without Stagepost."""

from __future__ import annotations

from stagepost.flow.codec import decode_envelope
from stagepost.flow.target import OUTBOUND_PREFIX
from stagepost.ports.broker import Publication

FLOW_HEADER = "stagepost-flow"
MESSAGE_HEADER = "stagepost-message"
CAUSE_HEADER = "stagepost-cause"

# Every bare envelope has these bytes. Other envelopes may have them in a body.
BARE = b'"is_bare":true'


def publication_at(place: str, message_id: str, flow_id: str, data: bytes) -> Publication:
    """Return the publication of an envelope's bytes. ``place`` is the stage of its outbound row."""
    address = place.removeprefix(OUTBOUND_PREFIX)
    headers = {FLOW_HEADER: flow_id}
    envelope = decode_envelope(data) if BARE in data else None
    if envelope is None or not envelope.is_bare:
        return Publication(address, message_id, data, headers)
    if envelope.cause_id is not None:
        headers[CAUSE_HEADER] = envelope.cause_id
    (message,) = envelope.messages
    return Publication(
        address, message_id, bytes(message.body), {**envelope.headers, **headers, MESSAGE_HEADER: message_id}
    )
