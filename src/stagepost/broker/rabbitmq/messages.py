"""A publication as a message of AMQP, and back: ids, headers and properties."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from amqp import Message

from stagepost.ports.broker import Publication

SHORT_BYTES_MAX = 255
PERSISTENT = 2
# The frame of the properties has 8 bytes around it, and 12 before them.
HEADER_FRAME_BYTES = 20
UTF8_BYTES_MAX = 4

# Carries a message id that is too long for the property.
LONG_ID_HEADER = "message-id"
# A message of Stagepost's own, which tests a queue and is no message of a service.
PROBE_HEADER = "stagepost-probe"
# Tells why the properties of a message could not be read.
UNDECODABLE_HEADER = "stagepost-undecodable"

# The properties that a header of this name sets, for receivers without Stagepost.
SETTABLE = ("content-type", "correlation-id", "reply-to", "type")
READABLE = (*SETTABLE, "content-encoding", "priority", "expiration", "timestamp", "user-id", "app-id")


def message_of(publication: Publication, frame_bytes_max: int) -> Message | None:
    """Return the message, or None where its headers are larger than the broker can ever take."""
    headers: dict[str, str] = dict(publication.headers)
    properties: dict[str, Any] = {}
    if is_short(publication.message_id):
        if publication.message_id:
            properties["message_id"] = publication.message_id
    else:
        headers[LONG_ID_HEADER] = publication.message_id
    for name in SETTABLE:
        if name in headers and is_short(headers[name]):
            properties[name.replace("-", "_")] = headers[name]
    if not all(is_short(name) for name in headers):
        return None
    message = Message(publication.body, delivery_mode=PERSISTENT, application_headers=headers, **properties)
    characters = sum(len(name) + len(value) for name, value in headers.items())
    # Headers cannot be divided into frames. Only those that may be too large are measured exactly.
    if characters * UTF8_BYTES_MAX > frame_bytes_max // 2:
        size = len(message._serialize_properties())  # noqa: SLF001 - py-amqp has no other way to ask
        if size + HEADER_FRAME_BYTES > frame_bytes_max:
            return None
    return message


def id_and_headers_of(message: Any) -> tuple[str, dict[str, str]]:
    properties: Mapping[str, Any] = message.properties
    headers = {text_of(name): text_of(value) for name, value in (properties.get("application_headers") or {}).items()}
    for name in READABLE:
        value = properties.get(name.replace("-", "_"))
        if value is not None:
            headers.setdefault(name, text_of(value))
    if message.undecodable:
        headers[UNDECODABLE_HEADER] = message.undecodable
    message_id = properties.get("message_id")
    return (headers.get(LONG_ID_HEADER, "") if message_id is None else text_of(message_id)), headers


def is_probe(message: Any) -> bool:
    return PROBE_HEADER in (message.properties.get("application_headers") or {})


def is_short(text: str) -> bool:
    """Say whether a text fits into a property, or a name, of AMQP."""
    return len(text.encode("utf-8", "surrogatepass")) <= SHORT_BYTES_MAX


def text_of(value: object) -> str:
    """Return a value of a header as text. Values of foreign senders have types."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, (dict, list)):
        return json.dumps(_with_text_keys(value), default=text_of)
    return str(value)


def _with_text_keys(value: object) -> object:
    if isinstance(value, dict):
        return {text_of(key): _with_text_keys(each) for key, each in value.items()}
    return [_with_text_keys(each) for each in value] if isinstance(value, list) else value
