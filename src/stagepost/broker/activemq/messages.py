"""Messages as ActiveMQ has them: destinations, headers under its reserved names, and its limits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from stagepost.broker.activemq.frames import Frame, check_text, escape
from stagepost.ports.broker import Publication, is_topic, topic_of

# ActiveMQ's limits of a header and of their number. A frame beyond them ends its connection, and what follows may be
# read as further frames; so such a frame is never sent.
HEADER_BYTES_MAX: Final = 10_240
HEADERS_MAX: Final = 1_000
# The part of a frame that is kept free for headers when the largest body is told.
HEADERS_RESERVE: Final = 65_536

MESSAGE_ID: Final = "message_id"
# The prefix of a sender's header whose name means something to the broker, such as an expiry or a delay, or is empty.
PREFIX: Final = "stagepost-"
_RESERVED = re.compile(
    r"(destination|receipt|transaction|content-length|persistent|expires|priority|timestamp|reply-to|message-id|ack|"
    r"subscription|redelivered|selector|browser|original-destination|transformation.*|breadcrumbId|"
    rf"{MESSAGE_ID}|{PREFIX}.*|JMS.*|AMQ_.*|activemq\..*|)\Z",
    re.DOTALL,
)
# Headers of one delivery, and not of the message.
_OF_DELIVERY: Final = frozenset({"ack", "subscription", "redelivered", "destination"})
# An address has one level of a virtual topic's name for the subscriber, and this sign is in no address.
_DOT_OF_SUBSCRIBER: Final = "~"


def destination_of(address: str) -> str:
    """Return the destination of an address. Subscribers' queues follow ActiveMQ's names of virtual topics."""
    topic = topic_of(address)
    if not topic:
        return f"/queue/{address}"
    if is_topic(address):
        return f"/topic/VirtualTopic.{topic}"
    subscriber = address.removesuffix(f"@{topic}").replace(".", _DOT_OF_SUBSCRIBER)
    return f"/queue/Consumer.{subscriber}.VirtualTopic.{topic}"


def send_frame(publication: Publication) -> Frame:
    """Return the frame that publishes a message persistently. Raises ``UnsendableFrame``."""
    headers = {"destination": destination_of(publication.address), "persistent": "true"}
    if publication.message_id:
        headers[MESSAGE_ID] = publication.message_id
    for name, value in publication.headers.items():
        headers[f"{PREFIX}{name}" if _RESERVED.match(name) else name] = value
    check_text(headers)
    return Frame("SEND", headers, publication.body)


def is_oversized(frame: Frame, frame_bytes_max: int) -> bool:
    """Say whether ActiveMQ would end the connection because of this frame. The transaction and receipt come on top."""
    lines = [len(escape(name).encode()) + len(escape(value).encode()) + 1 for name, value in frame.headers.items()]
    size = len(frame.body) + sum(lines) + len(lines)
    return (
        len(lines) > HEADERS_MAX - _ADDED_HEADERS
        or max(lines) > HEADER_BYTES_MAX
        or size > frame_bytes_max - _ADDED_BYTES
    )


# The receipt, the transaction and the content-length, and the command before them.
_ADDED_HEADERS: Final = 3
_ADDED_BYTES: Final = 128


def headers_of(frame: Frame) -> Mapping[str, str]:
    """Return the sender's headers and the broker's. The sender's win, because they travel under other names."""
    own = {name: value for name, value in frame.headers.items() if name not in _OF_DELIVERY and name != MESSAGE_ID}
    prefixed = {name.removeprefix(PREFIX): own.pop(name) for name in list(own) if name.startswith(PREFIX)}
    return own | prefixed


def message_id_of(frame: Frame) -> str:
    return frame.headers.get(MESSAGE_ID, "")


# ActiveMQ tells its reasons in words alone. A write of the index that fails on a full disk leaves it "not loaded" until
# the next failed write. Meanwhile the broker refuses everything.
_SAYS_FULL = re.compile(r"no space left|is full|limit.{0,80} reached|pagefile is not loaded", re.IGNORECASE)
_SAYS_OVERSIZED = re.compile(r"the maximum .* was exceeded|too large", re.IGNORECASE)
_SAYS_DENIED = re.compile(r"password|not authori[sz]ed|security|credential|access denied", re.IGNORECASE)


def says_full(error: str) -> bool:
    """Say whether an error tells that the broker has no room on its disk or in its memory."""
    return _SAYS_FULL.search(error) is not None


def says_oversized(error: str) -> bool:
    return _SAYS_OVERSIZED.search(error) is not None


def says_denied(error: str) -> bool:
    return _SAYS_DENIED.search(error) is not None
