"""A message set aside: the envelope as it came, and everything needed to understand why.

Dead letters are grouped by fingerprint: the exception's type and where it was raised, without line numbers and values,
so that one bug is one group whatever it was given and however the file shifted since.
"""

from __future__ import annotations

import hashlib
import traceback
from dataclasses import dataclass
from types import FrameType, TracebackType

import msgspec

from stagepost.flow.envelope import Envelope
from stagepost.flow.texts import lines, one_line
from stagepost.recovery.redelivery import DeathReason

# The stack is for people: what a runaway recursion or a huge message adds beyond this tells them nothing.
STACK_LENGTH_MAX = 20_000
MESSAGE_LENGTH_MAX = 2_000
CHAIN_LENGTH_MAX = 20
NAME_LENGTH_MAX = 200


class Cause(msgspec.Struct, frozen=True):
    """One exception of a chain, outermost first."""

    type: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """
    ``envelope``     the bytes as they came
    ``declared_at``  file and line of the stage
    ``dead_at``      microseconds, UTC
    """

    message_id: str
    flow_id: str
    stage: str
    reason: DeathReason
    causes: tuple[Cause, ...]
    stack: str
    fingerprint: str
    failures: int
    deaths: int
    deliveries: int
    origin_at: int
    dead_at: int
    node: str
    declared_at: str
    envelope: bytes

    @property
    def summary(self) -> str:
        return describe(self.causes[0])


def unsendable(envelope: Envelope, data: bytes, error: BaseException, now: int, node: str) -> DeadLetter:
    """What was committed to be sent, and its queue would not take. Replayed, it is sent to its stage again."""
    return DeadLetter(
        message_id=envelope.message_id,
        flow_id=envelope.flow_id,
        stage=envelope.to,
        reason="unsendable",
        causes=causes_of(error),
        stack=stack_of(error),
        fingerprint=fingerprint(error, envelope.to),
        failures=0,
        deaths=0,
        deliveries=0,
        origin_at=envelope.origin_at,
        dead_at=now,
        node=node,
        declared_at=envelope.sender,
        envelope=data,
    )


def causes_of(error: BaseException) -> tuple[Cause, ...]:
    """Whatever the exceptions' own code does when it is asked."""
    chain: list[Cause] = []
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen and len(chain) < CHAIN_LENGTH_MAX:
        seen.add(id(current))
        chain.append(Cause(_type_name(current), safe_text(current)))
        current = _cause_of(current)
    return tuple(chain)


def stack_of(error: BaseException) -> str:
    """The trace as Python prints it, from the handler on: the framework's own frames above it are left out."""
    begin = handler_traceback(error)
    try:
        text = "".join(traceback.format_exception(type(error), error, begin))
    except BaseException as unprintable:  # noqa: BLE001 - one whose own code raises must still become a dead letter
        text = f"{_type_name(error)}: not printable ({type(unprintable).__name__})\n"
    if len(text) > STACK_LENGTH_MAX:
        text = text[: STACK_LENGTH_MAX // 2] + "\n…\n" + text[-STACK_LENGTH_MAX // 2 :]
    return lines(text)


def fingerprint(error: BaseException, stage: str) -> str:
    """Twelve hex digits that are equal for the same kind of failure at the same place; what was raised in no code of
    the user's has its stage for a place."""
    frames = traceback.walk_tb(_outside(error))
    places = [f"{_module(frame)}.{frame.f_code.co_qualname}" for frame, _ in frames] or [stage]
    name = "\n".join([_type_name(error), *places])
    return hashlib.sha256(name.encode(errors="backslashreplace")).hexdigest()[:12]


def describe(cause: Cause) -> str:
    first_line = cause.message.splitlines()[0] if cause.message else ""
    return one_line(f"{cause.type}: {first_line}" if first_line else cause.type)


def safe_text(error: BaseException) -> str:
    try:
        text = str(error)
        # A class of its own may be behind it.
        return lines(str.__getitem__(text, slice(0, MESSAGE_LENGTH_MAX)))
    except BaseException as unprintable:  # noqa: BLE001 - see stack_of
        return f"(its text cannot be printed: {type(unprintable).__name__})"


def _cause_of(error: BaseException) -> BaseException | None:
    try:
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    except BaseException:  # noqa: BLE001 - see stack_of
        return None
    return cause if isinstance(cause, BaseException) else None


def handler_traceback(error: BaseException) -> TracebackType | None:
    """From the handler on; all of it where it never got there."""
    return _outside(error) or error.__traceback__


def _outside(error: BaseException) -> TracebackType | None:
    current = error.__traceback__
    while current is not None:
        if _module(current.tb_frame).partition(".")[0] not in ("stagepost", "asyncio"):
            return current
        current = current.tb_next
    return None


def _module(frame: FrameType) -> str:
    """Code that was made at run time may name anything, or nothing."""
    name = frame.f_globals.get("__name__")
    return name if isinstance(name, str) else "?"


def _type_name(error: BaseException) -> str:
    kind = type(error)
    module = kind.__module__
    name = kind.__qualname__
    if isinstance(module, str) and module not in ("builtins", "__main__"):
        name = f"{module}.{name}"
    return one_line(name, NAME_LENGTH_MAX)
