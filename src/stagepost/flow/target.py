"""Where messages can be sent, and where in its endpoint a stage stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from stagepost.flow import codec
from stagepost.flow.envelope import Message
from stagepost.flow.errors import IllegalCall

M = TypeVar("M")
R = TypeVar("R")


class Target(Generic[M, R]):
    """An address, the type of message it takes, and the type it replies with, if any."""

    def __init__(self, address: str, message_type: type[M], reply_type: type[R] | None) -> None:
        self._address = address
        self._message_type = message_type
        self._reply_type = reply_type

    @property
    def address(self) -> str:
        return self._address

    @property
    def message_type(self) -> type[M]:
        return self._message_type

    @property
    def reply_type(self) -> type[R] | None:
        return self._reply_type

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address}>"


@dataclass(frozen=True, slots=True)
class Position:
    """The part of a stage that ``Context`` needs to know.

    ``address``     the stage's queue: the endpoint's name for its first stage, ``endpoint.stage`` for the others
    ``reply_type``  what its endpoint replies with; None where it never replies
    ``next``        the stage that a reply, or ``ctx.next``, runs; None in the last one
    ``promises``    its own annotation says that it replies, whatever happens
    """

    endpoint: str
    address: str
    state_type: type | None
    reply_type: type | None
    next: Target[Any, Any] | None
    promises: bool = False


def check_target(target: object) -> None:
    if not isinstance(target, Target):
        raise IllegalCall(
            f"{target!r} is no endpoint to send to: give the decorated function, what app.staged or app.remote "
            "returned, or app.target(name)."
        )


def encode_message(place: str, expected: type, message: object, verb: str = "takes") -> Message:
    """The message as it travels. Raises ``IllegalCall`` where it is of another type than ``place`` takes, or gives."""
    if not isinstance(message, expected):
        raise IllegalCall(
            f"{place} {verb} a {expected.__qualname__}, not a {type(message).__qualname__}: {message!r:.200}"
        )
    return Message(type=expected.__name__, body=codec.encode(message, expected))
