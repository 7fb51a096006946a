"""Topics: what is published goes to everybody who has subscribed, and the one who publishes knows none of them."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from stagepost.flow.errors import IllegalCall

M = TypeVar("M")

# No address holds a colon: a topic and an endpoint may have the same name.
PREFIX = "topic:"


class Topic(Generic[M]):
    """A name, and the type of the messages that are published to it."""

    def __init__(self, name: str, message_type: type[M]) -> None:
        self.name = name
        self.message_type = message_type

    @property
    def scope(self) -> str:
        """Where an address is wanted, and there is none yet."""
        return f"{PREFIX}{self.name}"

    def __repr__(self) -> str:
        return f"<Topic {self.name}>"


class Subscription(NamedTuple):
    """``subscriber`` is the address of the stage that gets a copy; ``app`` the one that declares it."""

    topic: str
    subscriber: str
    app: str


def check_topic(topic: object) -> None:
    if not isinstance(topic, Topic):
        raise IllegalCall(
            f"{topic!r} is no topic to publish to: give what app.topic(name, type) returned. To one endpoint, send."
        )
