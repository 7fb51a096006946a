"""Build dead letters: the received envelope, with the causes and the stack of the error.

A fingerprint groups dead letters. It consists of the exception's type and of the functions that raised it, without line
numbers and values. So one bug makes one group, for any message and after any edit of the file.
"""

from __future__ import annotations

import hashlib
import traceback
from types import FrameType, TracebackType

from stagepost.flow.claim import Claim
from stagepost.flow.envelope import Envelope
from stagepost.flow.texts import lines, one_line
from stagepost.ports.dead_letters import Cause, DeadLetter, DeathReason

# Operators read the stack, and the rest of a runaway recursion or of a huge message does not help them.
STACK_LENGTH_MAX = 20_000
MESSAGE_LENGTH_MAX = 2_000
CHAIN_LENGTH_MAX = 20
NAME_LENGTH_MAX = 200


def unsendable(envelope: Envelope, place: str, data: bytes, error: BaseException, now: int, node: str) -> DeadLetter:
    """Build the dead letter of a committed message that its queue refused. A replay puts it at ``place`` again."""
    return DeadLetter(
        message_id=envelope.message_id,
        flow_id=envelope.flow_id,
        stage=place,
        reason="unsendable",
        causes=causes_of(error),
        stack=stack_of(error),
        fingerprint=fingerprint(error, place),
        failures=0,
        deaths=0,
        deliveries=0,
        origin_at=envelope.origin_at,
        dead_at=now,
        node=node,
        declared_at=envelope.sender,
        envelope=data,
    )


def undeliverable(
    claim: Claim, reason: DeathReason, error: BaseException, failures: int, now: int, node: str
) -> DeadLetter:
    """Build the dead letter of a message that cannot leave, or enter, the store. No stage saw it here."""
    return DeadLetter(
        message_id=claim.message_id,
        flow_id=claim.flow_id,
        stage=claim.stage,
        reason=reason,
        causes=causes_of(error),
        stack=stack_of(error),
        fingerprint=fingerprint(error, claim.stage),
        failures=failures,
        deaths=0,
        deliveries=claim.deliveries,
        origin_at=claim.origin_at,
        dead_at=now,
        node=node,
        declared_at="the edge of the store",
        envelope=claim.envelope,
    )


def causes_of(error: BaseException) -> tuple[Cause, ...]:
    """Return an exception and its causes, outermost first. Raises nothing, even if an exception's own code raises."""
    chain: list[Cause] = []
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen and len(chain) < CHAIN_LENGTH_MAX:
        seen.add(id(current))
        chain.append(Cause(_type_name(current), safe_text(current)))
        current = _cause_of(current)
    return tuple(chain)


def stack_of(error: BaseException) -> str:
    """Format the traceback as Python prints it, from the handler on, without the framework's frames above it."""
    # An error from no handler has all of its traceback.
    begin = _outside(error) or error.__traceback__
    try:
        text = "".join(traceback.format_exception(type(error), error, begin))
    except BaseException as unprintable:  # noqa: BLE001 - an error whose own code raises must still become a dead letter
        text = f"{_type_name(error)}: not printable ({type(unprintable).__name__})\n"
    if len(text) > STACK_LENGTH_MAX:
        text = text[: STACK_LENGTH_MAX // 2] + "\n…\n" + text[-STACK_LENGTH_MAX // 2 :]
    return lines(text)


def fingerprint(error: BaseException, stage: str) -> str:
    """Return twelve hex digits that are equal for the same type of error from the same functions.

    The stage takes the place of the functions if the traceback has none of the user's code.
    """
    frames = traceback.walk_tb(_outside(error))
    places = [f"{_module(frame)}.{frame.f_code.co_qualname}" for frame, _ in frames] or [stage]
    name = "\n".join([_type_name(error), *places])
    return hashlib.sha256(name.encode(errors="backslashreplace")).hexdigest()[:12]


def safe_text(error: BaseException) -> str:
    try:
        text = str(error)
        # The text may be a subclass of str that overrides slicing.
        return lines(str.__getitem__(text, slice(0, MESSAGE_LENGTH_MAX)))
    except BaseException as unprintable:  # noqa: BLE001 - see stack_of
        return f"(its text cannot be printed: {type(unprintable).__name__})"


def _cause_of(error: BaseException) -> BaseException | None:
    try:
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    except BaseException:  # noqa: BLE001 - see stack_of
        return None
    return cause if isinstance(cause, BaseException) else None


def _outside(error: BaseException) -> TracebackType | None:
    """Return the traceback from the handler on, or None if no handler was reached."""
    current = error.__traceback__
    while current is not None:
        if _module(current.tb_frame).partition(".")[0] not in ("stagepost", "asyncio"):
            return current
        current = current.tb_next
    return None


def _module(frame: FrameType) -> str:
    """Return a frame's module name. Code that was made at run time may have none, or an object of another type."""
    name = frame.f_globals.get("__name__")
    return name if isinstance(name, str) else "?"


def _type_name(error: BaseException) -> str:
    kind = type(error)
    module = kind.__module__
    name = kind.__qualname__
    if isinstance(module, str) and module not in ("builtins", "__main__"):
        name = f"{module}.{name}"
    return one_line(name, NAME_LENGTH_MAX)
