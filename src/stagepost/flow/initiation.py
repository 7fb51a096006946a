"""Start flows: an initiation checks each message when it is sent, collects them, and writes all of them at the end.

The caller's ``write`` decides which transaction has them. ``app.initiate()`` commits one of its own, ``connection=``
leaves the commit to the caller, and an initiation in a stage joins the stage's transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import msgspec

from stagepost.flow import codec, ids
from stagepost.flow.clock import SECONDS_MAX, Clock, is_span, microseconds
from stagepost.flow.envelope import Envelope, Frame, Kind, Message
from stagepost.flow.errors import IdConflict, IllegalCall
from stagepost.flow.plain_json import encode_plain
from stagepost.flow.target import Target, Topic

M = TypeVar("M")


class Outgoing(msgspec.Struct, frozen=True):
    """An envelope to send, and the moment at which it is due (microseconds; None for at once).

    ``topic``  the topic of a publication. Each subscriber gets the envelope with an id and an address of its own.
    """

    envelope: Envelope
    due_at: int | None = None
    topic: str | None = None


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A message from outside, which a store accepts once.

    ``scope`` is the address of the target or of the topic, ``key`` the message id. ``run_id`` is the bulk run that
    sends it, if any. ``is_direct`` marks the key: its transaction sends over the broker after the commit.
    """

    scope: str
    key: str
    digest: str
    outgoing: Outgoing
    run_id: str | None = None
    is_direct: bool = False

    def conflict(self, verdict: Verdict) -> IdConflict:
        """Build the error for the verdict ``conflict``."""
        flow_id = self.outgoing.envelope.flow_id
        return IdConflict(self.scope, self.key, verdict.digest, self.digest, flow_id=flow_id)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of an acceptance.

    ``digest`` is the accepted content's: after a ``conflict``, the earlier one's. ``run_id`` is the bulk run that
    accepted that content, if any.
    """

    outcome: Literal["started", "repeated", "conflict"]
    digest: str
    run_id: str | None = None


class Started:
    """The result of a ``send`` or ``start``. ``is_new`` is known once the initiation has been written."""

    def __init__(self, flow_id: str, message_id: str) -> None:
        self.flow_id = flow_id
        self.message_id = message_id
        self._is_new: bool | None = None

    @property
    def is_new(self) -> bool:
        """Say whether a flow started. False: the same id was accepted before with the same content."""
        if self._is_new is None:
            raise RuntimeError("not written yet: is_new is known after the `with ….initiate()` block")
        return self._is_new

    def __repr__(self) -> str:
        outcome = {None: "not written yet", True: "started", False: "started before"}[self._is_new]
        return f"<Started {self.flow_id} {self.message_id}: {outcome}>"


def acceptance(
    target: Target[M, Any],
    message: M,
    *,
    flow_id: str,
    message_id: str | None = None,
    ordinal: int = 0,
    reply_to: Target[Any, Any] | None = None,
    properties: Mapping[str, Any] | None = None,
    due_at: int | None = None,
    node: str,
    now: int,
    run_id: str | None = None,
) -> Acceptance:
    """Build the acceptance of a message from outside. Raises ``InvalidId`` and ``IllegalCall``."""
    declared = declared_type(target, message)
    encoded = encode_message(target.address, declared, message)
    return acceptance_of_encoded(
        target,
        (encoded,),
        codec.digest(codec.canonical(encoded.body, declared)),
        flow_id=flow_id,
        message_id=message_id,
        ordinal=ordinal,
        reply_to=reply_to,
        properties=properties,
        due_at=due_at,
        node=node,
        now=now,
        run_id=run_id,
    )


def acceptance_of_encoded(
    target: Target[Any, Any],
    messages: tuple[Message, ...],
    digest: str,
    *,
    flow_id: str,
    message_id: str | None = None,
    ordinal: int = 0,
    reply_to: Target[Any, Any] | None = None,
    properties: Mapping[str, Any] | None = None,
    due_at: int | None = None,
    node: str,
    now: int,
    run_id: str | None = None,
    scope: str | None = None,
) -> Acceptance:
    """Build the acceptance of messages that are checked and encoded already, as in a bulk run or a gateway.

    ``digest`` is the digest of their canonical bodies. ``scope`` takes the place of the target's address. Raises
    ``InvalidId`` and ``IllegalCall``.
    """
    ids.check_id("flow_id", flow_id)
    if message_id is None:
        key = ids.from_key(flow_id, target.address, ordinal)
    else:
        key = ids.check_id("message_id", message_id)
    if target.is_bare and len(messages) > 1:
        raise IllegalCall(
            f"{target.address} takes bodies without an envelope, so {len(messages)} messages cannot share one. Send "
            "each of them alone."
        )
    kind: Kind = "send" if reply_to is None else "request"
    stack: tuple[Frame, ...] = ()
    if reply_to is not None:
        check_reply(target, reply_to)
        stack = (Frame(to=reply_to.address),)
    envelope = Envelope(
        message_id=key,
        flow_id=flow_id,
        kind=kind,
        to=target.address,
        sender=node,
        messages=messages,
        origin_at=now,
        sent_at=now,
        ordinal=ordinal,
        stack=stack,
        properties={name: encode_property(name, value) for name, value in (properties or {}).items()},
        is_bare=target.is_bare,
    )
    return Acceptance(scope or target.address, key, digest, Outgoing(envelope, due_at), run_id)


def check_target(target: object) -> None:
    if not isinstance(target, Target):
        raise IllegalCall(
            f"{target!r} is no endpoint to send to: give the decorated function, what app.staged or app.remote "
            "returned, or app.target(name)."
        )


def check_topic(topic: object) -> None:
    if not isinstance(topic, Topic):
        raise IllegalCall(
            f"{topic!r} is no topic to publish to: give what app.topic(name, type) returned. To one endpoint, send."
        )


def acceptance_together(
    target: Target[Any, Any],
    messages: Sequence[Any],
    *,
    message_ids: Sequence[str] | None = None,
    node: str,
    now: int,
    **options: Any,
) -> Acceptance:
    """Build the acceptance of one envelope with several messages. ``options`` are those of ``acceptance_of_encoded``.

    Raises ``InvalidId`` and ``IllegalCall``.
    """
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence) or not messages:
        raise IllegalCall(f"together takes a list of one or more messages, not {messages!r:.200}")
    types = [declared_type(target, each) for each in messages]
    encoded = tuple(encode_message(target.address, *each) for each in zip(types, messages, strict=True))
    if message_ids is not None:
        encoded = _with_ids(encoded, message_ids)
    bodies = [codec.canonical(each.body, declared) for each, declared in zip(encoded, types, strict=True)]
    # One message alone has the digest of a plain send, so that both are the same content.
    digest = codec.digest(bodies[0] if len(bodies) == 1 else codec.joined([each.type for each in encoded], bodies))
    return acceptance_of_encoded(target, encoded, digest, node=node, now=now, **options)


def _with_ids(messages: tuple[Message, ...], message_ids: Sequence[str]) -> tuple[Message, ...]:
    if isinstance(message_ids, str | bytes) or not isinstance(message_ids, Sequence):
        raise IllegalCall(f"message_ids takes a list of texts, one for each message, not {message_ids!r:.200}")
    if len(message_ids) != len(messages):
        raise IllegalCall(f"message_ids has {len(message_ids)} ids for {len(messages)} messages: give each one")
    checked = [ids.check_id("message_ids", each) for each in message_ids]
    return tuple(msgspec.structs.replace(each, id=own) for each, own in zip(messages, checked, strict=True))


def declared_type(target: Target[Any, Any], message: object) -> type:
    """Return the type that the target declares for a message. Raises ``IllegalCall`` if it takes no such message."""
    first: type = target.message_type
    types = target.message_types
    if len(types) == 1 or type(message) in types:
        return first if len(types) == 1 else type(message)
    for each in types:
        if isinstance(message, each):
            return each
    raise _wrong_type(target.address, "takes", " or ".join(each.__qualname__ for each in types), message)


def encode_message(place: str, expected: type, message: object, verb: str = "takes") -> Message:
    """Encode a message. Raises ``IllegalCall`` if it is not of the type that ``place`` takes, or replies with."""
    if not isinstance(message, expected):
        raise _wrong_type(place, verb, expected.__qualname__, message)
    return Message(type=expected.__name__, body=codec.encode(message, expected))


def _wrong_type(place: str, verb: str, expected: str, message: object) -> IllegalCall:
    return IllegalCall(f"{place} {verb} a {expected}, not a {type(message).__qualname__}: {message!r:.200}")


def due_moment(delay: float, clock: Clock) -> int | None:
    """Return the moment ``delay`` seconds from now; None for no delay. Raises ``IllegalCall``."""
    if not is_span(delay):
        raise IllegalCall(f"delay must be a number of seconds from 0 to {SECONDS_MAX:.0f}, ten years, not {delay!r}")
    return clock.now() + microseconds(delay) if delay else None


class Initiation:
    """The block ``with app.initiate() as out: out.send(…)``. Its end writes; an exception inside it writes nothing."""

    def __init__(self, node: str, clock: Clock, write: Callable[[Sequence[Acceptance]], Sequence[Verdict]]) -> None:
        self._node = node
        self._clock = clock
        self._write = write
        self._acceptances: list[Acceptance] = []
        self._handles: list[Started] = []
        self._ordinals: Counter[tuple[str, str]] = Counter()
        self._is_open = False

    def send(
        self,
        target: Target[M, Any],
        message: M,
        *,
        flow_id: str,
        message_id: str | None = None,
        reply_to: Target[Any, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
        delay: float = 0,
    ) -> Started:
        """Start a flow at ``target`` when the block is left.

        ``flow_id`` names the flow, and makes a repeat harmless. The same flow id, target and place among the sends of
        this block give the same message id, which is accepted once. Give ``message_id`` to decide it yourself.
        ``reply_to`` is the endpoint that gets the reply, ``delay`` is in seconds, every message of the flow carries
        the ``properties``.

        Raises ``IllegalCall`` for a message of the wrong type, ``InvalidId`` for an id that cannot be stored.
        """
        self._check_open()
        check_target(target)
        if reply_to is not None:
            check_target(reply_to)
        return self._start(target, message, flow_id, message_id, properties, delay, reply_to=reply_to)

    def together(
        self,
        target: Target[Any, Any],
        messages: Sequence[Any],
        *,
        flow_id: str,
        message_id: str | None = None,
        message_ids: Sequence[str] | None = None,
        reply_to: Target[Any, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
        delay: float = 0,
    ) -> Started:
        """Start a flow with several messages in one envelope, of any types that ``target`` has handlers for.

        They are handled in their order, in one transaction: all of them or none. Each has its own state and reply, so
        ``reply_to`` gets a reply for each. ``message_id`` is the envelope's id. ``message_ids`` are those of the
        messages, by which a stage with a guard recognises one that another envelope brought. A stage without a guard
        does not compare them. Raises as ``send`` does.
        """
        self._check_open()
        check_target(target)
        if reply_to is not None:
            check_target(reply_to)
        wanted = acceptance_together(
            target,
            messages,
            message_ids=message_ids,
            flow_id=flow_id,
            message_id=message_id,
            ordinal=self._ordinals[flow_id, target.address],
            reply_to=reply_to,
            properties=properties,
            due_at=due_moment(delay, self._clock),
            node=self._node,
            now=self._clock.now(),
        )
        return self._add(wanted, is_numbered=message_id is None)

    def publish(
        self,
        topic: Topic[M],
        message: M,
        *,
        flow_id: str,
        message_id: str | None = None,
        properties: Mapping[str, Any] | None = None,
        delay: float = 0,
    ) -> Started:
        """Start a flow that sends a copy to every subscriber of ``topic`` that the store knows when the block ends.

        The publication is accepted once: a repeat sends no copy, not even to new subscribers.
        """
        self._check_open()
        check_topic(topic)
        target: Target[M, Any] = Target(topic.scope, topic.message_type, None)
        return self._start(target, message, flow_id, message_id, properties, delay, topic=topic.name)

    def _start(
        self,
        target: Target[M, Any],
        message: M,
        flow_id: str,
        message_id: str | None,
        properties: Mapping[str, Any] | None,
        delay: float,
        *,
        reply_to: Target[Any, Any] | None = None,
        topic: str | None = None,
    ) -> Started:
        wanted = acceptance(
            target,
            message,
            flow_id=flow_id,
            message_id=message_id,
            ordinal=self._ordinals[flow_id, target.address],
            reply_to=reply_to,
            properties=properties,
            due_at=due_moment(delay, self._clock),
            node=self._node,
            now=self._clock.now(),
        )
        if topic is not None:
            envelope = msgspec.structs.replace(wanted.outgoing.envelope, kind="publish")
            wanted = replace(wanted, outgoing=Outgoing(envelope, wanted.outgoing.due_at, topic))
        return self._add(wanted, is_numbered=message_id is None)

    def _add(self, wanted: Acceptance, *, is_numbered: bool) -> Started:
        flow_id = wanted.outgoing.envelope.flow_id
        if is_numbered:
            self._ordinals[flow_id, wanted.scope] += 1
        handle = Started(flow_id, wanted.key)
        self._acceptances.append(wanted)
        self._handles.append(handle)
        return handle

    def _check_open(self) -> None:
        if not self._is_open:
            raise IllegalCall(
                "this initiation is not open: use `with app.initiate() as out:` (in a handler `with ctx.initiate() as "
                "out:`) and send inside the block"
            )

    def __enter__(self) -> Self:
        if self._handles:
            raise IllegalCall("an initiation is used once: open another with app.initiate()")
        self._is_open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        if error is None and self._acceptances:
            for handle, verdict in zip(self._handles, self._write(self._acceptances), strict=True):
                handle._is_new = verdict.outcome == "started"  # noqa: SLF001 - a handle shows its user no internals


def encode_property(name: str, value: Any) -> msgspec.Raw:
    return msgspec.Raw(encode_plain(f"property {name!r}", value))


def check_reply(target: Target[Any, Any], reply_to: Target[Any, Any]) -> None:
    if target.reply_type is None:
        raise IllegalCall(
            f"{target.address} never replies, so reply_to={reply_to.address} would wait forever. Leave reply_to out, "
            f"or let {target.address} reply: annotate its last stage's return type."
        )
    if not reply_to.takes(target.reply_type):
        raise IllegalCall(
            f"{target.address} replies with a {target.reply_type.__qualname__}, "
            f"but {reply_to.address} takes a {' or '.join(each.__qualname__ for each in reply_to.message_types)}."
        )
