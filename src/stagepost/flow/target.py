"""Targets and topics, which messages are sent to, and the position of a stage in its endpoint."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

M = TypeVar("M")
R = TypeVar("R")

# No address holds a colon, so a topic and an endpoint may have the same name.
TOPIC_PREFIX = "topic:"
# Before the address of an outbound row's destination. No address begins so.
OUTBOUND_PREFIX = "@out/"
# Before the store's uuid, in the broker's address of all replies to processes of a store.
REPLIES_PREFIX = "_replies."

_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# A private reply address names its process. With a broker it also names its store.
REPLY_ADDRESS = re.compile(rf"(?P<app>[^@]+)\.reply\.(?P<process>{_UUID})(?:@(?P<store>{_UUID}))?")


class Target(Generic[M, R]):
    """An address, the type of message it takes, and the type of its reply, if any.

    ``message_types`` has also the types of messages that its added handlers take.
    """

    message_type: type[M]
    message_types: tuple[type, ...]

    def __init__(
        self, address: str, message_type: type[M], reply_type: type[R] | None, added: tuple[type, ...] = ()
    ) -> None:
        self.address = address
        self.message_type = message_type
        self.message_types = (message_type, *added)
        self.reply_type = reply_type

    def takes(self, sent: type) -> bool:
        """Say whether messages that are sent as this type find a handler: by name if there are several types."""
        types = self.message_types
        return any(issubclass(sent, each) and (len(types) == 1 or sent.__name__ == each.__name__) for each in types)

    def type_named(self, name: str | None) -> type | None:
        """Return the message type of this name, or the only one if ``name`` is None. Return None if there is none."""
        types = {each.__name__: each for each in self.message_types}
        return types.get(name or self.message_type.__name__) if name or len(types) == 1 else None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address}>"


class Topic(Generic[M]):
    """A name, and the type of the messages that are published to it.

    Every subscriber gets a copy; the publisher knows none of them. ``scope`` takes the place of an address.
    """

    def __init__(self, name: str, message_type: type[M]) -> None:
        self.name = name
        self.message_type = message_type
        self.scope = f"{TOPIC_PREFIX}{name}"

    def __repr__(self) -> str:
        return f"<Topic {self.name}>"


@dataclass(frozen=True, slots=True)
class Position:
    """The part of a stage that ``Context`` needs to know.

    ``address``     the stage's queue: the endpoint's name for its first stage, ``endpoint.stage`` for the others
    ``reply_type``  the type of its endpoint's reply; None if it never replies
    ``next``        the stage that a reply, or ``ctx.next``, runs; None in the last stage
    ``promises``    whether its handler's annotation says that it always replies
    ``handler``     the name of a handler that was added to the stage's own; None for its own
    """

    endpoint: str
    address: str
    state_type: type | None
    reply_type: type | None
    next: Target[Any, Any] | None
    promises: bool = False
    handler: str | None = None


def is_outbound(stage: str) -> bool:
    """Say whether a queue row of this stage is an outbound row: it waits for the dispatcher, and no stage claims it."""
    return stage.startswith(OUTBOUND_PREFIX)


def store_of_reply(address: str) -> str | None:
    """Return the uuid of the store that a private reply address names, or None for any other address."""
    found = REPLY_ADDRESS.fullmatch(address)
    return None if found is None else found["store"]


def broker_address_of_reply(address: str) -> str | None:
    """Return the broker's address for replies to a private reply address, or None for any other address."""
    store = store_of_reply(address)
    return None if store is None else f"{REPLIES_PREFIX}{store}"
