"""The context of a handler: its stage and flow, and the calls that it may make.

A context only collects. Each call encodes its message at once, so later changes to the object have no effect. The
message gets its id from the call's place in the run, and is sent in the stage's transaction or not at all.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

import msgspec

from stagepost.flow import codec, ids
from stagepost.flow.amounts import check_amount
from stagepost.flow.clock import Clock, to_datetime
from stagepost.flow.effects import A, Effect, Q
from stagepost.flow.envelope import NOTHING, Envelope, Frame, Kind, Message
from stagepost.flow.errors import FlowTooLong, IllegalCall, Refuse
from stagepost.flow.initiation import (
    Initiation,
    Outgoing,
    check_target,
    check_topic,
    declared_type,
    due_moment,
    encode_message,
)
from stagepost.flow.rows import Rows
from stagepost.flow.run import HandlerResult, Limits, MessageRun, OpenUnitOfWork, Properties
from stagepost.flow.target import Position, Target, Topic

M = TypeVar("M")
T = TypeVar("T")


class FailWith(Exception):
    """The exception that ``ctx.fail_with`` raises to leave the handler.

    If the handler catches it, the context still has the reply, and the attempt ends as ``ctx.fail_with`` says.
    """


class Context:
    """The run of one handler on one message. The handlers of a message share its state, its properties and its reply.

    After the handler has returned, the context is closed and refuses calls."""

    def __init__(
        self,
        position: Position,
        envelope: Envelope,
        message: Message,
        index: int,
        *,
        attempt: int,
        is_redelivery: bool,
        unit_of_work: OpenUnitOfWork,
        result: HandlerResult,
        clock: Clock,
        limits: Limits,
        run: MessageRun,
    ) -> None:
        self._position = position
        self._envelope = envelope
        self._index = index
        self._unit_of_work = unit_of_work
        self._clock = clock
        self._limits = limits
        self._result = result
        self._is_closed = False
        self._run = run
        # Ids depend on no other handler and no other message, so each context counts its own sends.
        self._ordinals = result.ordinals if position.handler is None and index == 0 else {}
        self._effects: dict[str, int] = {}
        self._failed_call: Exception | None = None
        self.attempt = attempt
        self.redelivered = is_redelivery
        if position.state_type is not None and run.state is None:
            blank = message.state is NOTHING or bytes(message.state) == b"null"
            run.state = position.state_type() if blank else codec.decode(message.state, position.state_type)

    # The stage and its flow

    @property
    def message_id(self) -> str:
        return self._envelope.message_id

    @property
    def flow_id(self) -> str:
        return self._envelope.flow_id

    @property
    def endpoint(self) -> str:
        return self._position.endpoint

    @property
    def stage(self) -> str:
        """The stage's address: the endpoint's name for its first stage, ``endpoint.stage`` for the others."""
        return self._position.address

    @property
    def sender(self) -> str:
        """The stage that sent this message, or the node that initiated the flow."""
        return self._envelope.sender

    @property
    def started_at(self) -> datetime:
        """The time at which the flow was accepted, UTC."""
        return to_datetime(self._envelope.origin_at)

    @property
    def properties(self) -> Properties:
        """The properties of the flow. Everything that is sent after a change carries it."""
        if self._run.properties is None:
            self._run.properties = dict(self._envelope.properties)
        return Properties(self._run.properties, self._check_open)

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of this envelope, which its sender's sinks wrote. Nothing that is sent carries them on."""
        return MappingProxyType(self._envelope.headers)

    @property
    def state(self) -> Any:
        return self._run.state

    # The database

    def sql(self, statement: str, /, *misplaced: Any, **parameters: Any) -> Rows:
        """Run one statement in the stage's transaction, with ``:name`` for each parameter, on any store.

        Returns all rows. Raises the driver's errors; the attempt fails unless you catch them.
        Raises ``IllegalCall`` if the parameters do not match the statement.
        """
        self._check_open("sql")
        if misplaced:
            raise IllegalCall(
                f"ctx.sql was given {misplaced[0]!r:.100} without a name: write ctx.sql('… WHERE id = :id', id=…), "
                "with a name for each parameter."
            )
        return self._unit_of_work.execute(statement, parameters)

    @property
    def connection(self) -> Any:
        """The driver's own connection (such as ``sqlite3.Connection``), in the stage's transaction, which this begins.

        It refuses commit, rollback, ``with`` and scripts. Stagepost commits the stage's work after the handler has
        returned, together with its message and the messages it sent.
        """
        self._check_open("connection")
        return self._unit_of_work.connection

    @property
    def session(self) -> Any:
        """A SQLAlchemy ``Session`` in the stage's transaction, or the session of ``App(sessions=…)``: see docs/orm.md.

        All handlers of an envelope share it. Stagepost flushes it after each handler, and an error of the flush fails
        the attempt. It refuses commit, rollback and close; ``begin_nested`` is a savepoint. Its first statement begins
        the transaction. Raises ``IllegalCall`` if its package is missing.
        """
        self._check_open("session")
        return self._unit_of_work.user_session

    @property
    def document(self) -> dict[str, Any]:
        """The document of this message, as JSON values: see docs/documents.md. Changes are written after the handler.

        A missing document is empty. Raises ``IllegalCall`` if the handler has no ``@in_document``.
        """
        self._check_open("document")
        return self._unit_of_work.document

    # The services

    def get(self, wanted: type[T]) -> T:
        """Return the service of a type from the scope of this envelope, which all its handlers share.

        A handler's keyword-only parameter does the same. The scope closes after the commit or the rollback.
        Raises ``IllegalCall`` if the app has no scopes, and the errors of its container.
        """
        self._check_open("get")
        found: T = self._unit_of_work.service(wanted)
        return found

    # The outside

    def effect(self, effect: Effect[Q, A], request: Q) -> A:
        """Call something outside that cannot join the stage's transaction, and return its result.

        The log of effects keeps the call and its result, in commits of its own. If this attempt fails, the next one
        gets the known result, and the call is not made again. See docs/idempotency.md for a call whose result is lost.

        Put effects first: while the call runs, no transaction is open, unless the handler used the database before.
        Raises what ``call`` and ``query`` raise, and ``IllegalCall`` for a wrong type or a stage without effects.
        """
        self._check_open("effect")
        if not isinstance(effect, Effect):
            raise IllegalCall(f"{effect!r:.100} is no effect: write ctx.effect(card, …), with card = app.effect(…).")
        ordinal = self._effects.get(effect.name, 0)
        self._effects[effect.name] = ordinal + 1
        handler = self._position.handler or ""
        result: A = self._unit_of_work.effect(effect, self._index, handler, ordinal, request)
        return result

    # The flow

    def request(self, target: Target[M, Any], message: M) -> str:
        """Send a request to ``target``. Each reply runs the next stage of this endpoint, with the present state.

        A run may make many requests. Returns the id of the message sent.
        """
        return self._end_with("request", lambda: self._request(target, message))

    def next(self, message: Any, *, delay: float = 0) -> str:
        """Send ``message`` to the next stage of this endpoint, with the present state."""
        return self._end_with("next", lambda: self._next(message, delay))

    def reply(self, message: Any) -> str | None:
        """Reply to the caller of this endpoint. Returning the message does the same.

        Returns the id of the message sent. Returns None if no caller requested a reply: the message came by a ``send``,
        or by an initiation without ``reply_to``.
        """
        outgoing = self._end_with("reply", lambda: self._reply(message))
        if outgoing is None:
            return None
        self._result.outgoing.append(outgoing)
        return outgoing.envelope.message_id

    def send(self, target: Target[M, Any], message: M, *, delay: float = 0) -> str:
        """Send to ``target`` within this flow, without a reply, due after ``delay`` seconds. A run may send often."""
        self._check_open("send")
        check_target(target)
        return self._send("send", target, message, (), delay=delay)

    def publish(self, topic: Topic[M], message: M, *, delay: float = 0) -> None:
        """Send a copy to every subscriber of ``topic``, of any app, within this flow. A run may publish often.

        The subscribers are those that the store knows when this stage commits. There may be none.
        """
        self._check_open("publish")
        check_topic(topic)
        due_at = due_moment(delay, self._clock)
        encoded = encode_message(topic.scope, topic.message_type, message)
        self._result.outgoing.append(self._outgoing("publish", topic.scope, encoded, (), NOTHING, due_at, topic.name))

    def initiate(self, *, independent: bool = False) -> Initiation:
        """Start other flows: ``with ctx.initiate() as out: out.send(…, flow_id=…)``.

        They start when this stage commits.
        ``independent``: the end of the block commits them, even if this stage fails later. Another attempt with the
        same ids starts nothing twice. On PostgreSQL they start then. An SQLite file has one writer, which is this
        stage: there they wait in a second file, and start when this stage has ended.

        The end of the block raises ``IdConflict`` if a flow id was accepted before with other content. On SQLite the id
        may be accepted after that, while the flow waits: the flow then is a dead letter, ``unsendable``.
        """
        self._check_open("initiate")
        return self._unit_of_work.initiate(independent=independent)

    def after_commit(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Call ``callback`` after the commit, at most once. For work that *must* happen, use ``send``."""
        self._check_open("after_commit")
        if not callable(callback):
            raise IllegalCall(f"after_commit takes a function to call, not {callback!r}")
        self._result.callbacks.append(lambda: callback(*arguments))

    def record_amount(self, amount: Decimal | int) -> None:
        """Write an amount into the journal with the commit of this message, for ``stagepost reconcile --amount``.

        A run may record several amounts, which are added up. An amount has at most 16 digits and 12 decimals.
        """
        self._check_open("record_amount")
        if isinstance(amount, bool) or not isinstance(amount, Decimal | int):
            raise IllegalCall(
                f"ctx.record_amount takes a Decimal or an int, not {amount!r:.60}: other numbers are not exact. Write "
                "Decimal(str(amount)), or count cents as an int."
            )
        try:
            self._result.amount = check_amount((self._result.amount or 0) + check_amount(Decimal(amount)))
        except ValueError as error:
            raise IllegalCall(f"ctx.record_amount: {error}") from error

    def refuse(self, reason: str) -> NoReturn:
        """Roll back, and dead-letter this message at once, because another attempt cannot help."""
        self._check_open("refuse")
        self._result.refusal = Refuse(reason)
        raise self._result.refusal

    def fail_with(self, reply: Any) -> NoReturn:
        """Roll back the work of this run, then reply to the caller with ``reply``.

        To keep the work, return an error as the reply instead.
        """
        self._check_open("fail_with")
        outgoing = self._reply(reply)
        if outgoing is None:
            raise IllegalCall(
                f"{self._position.endpoint} has no caller in this flow, so ctx.fail_with can send no reply. "
                "Use ctx.refuse(reason) to roll back and dead-letter the message."
            )
        self._result.failure_reply = outgoing
        raise FailWith

    def _finish(self, returned: Any) -> None:
        if returned is not None:
            self._finish_with(returned)
        elif self._run.terminal is None and self._envelope.stack:
            self._check_silence()
        self._is_closed = True

    def _finish_with(self, returned: Any) -> None:
        if inspect.iscoroutine(returned):
            returned.close()
            raise IllegalCall(
                f"{self._position.address} returned a coroutine, which is not awaited: make its handler `async def`."
            )
        if self._run.terminal is not None:
            raise IllegalCall(
                f"{self._position.address} called ctx.{self._run.terminal} and then returned a reply: a stage makes "
                "either one or more requests, or one next, or one reply. Return None after the others."
            )
        self.reply(returned)

    def _check_silence(self) -> None:
        """Check a run that returned None although a caller waits, and that left the reply to no other stage.

        Raises ``IllegalCall`` if the handler caught the error of such a call, or if its annotation promises a reply.
        """
        waiting = self._envelope.stack[-1].to
        if self._failed_call is not None:
            raise IllegalCall(
                f"{self._position.address} caught the error of a request, next or reply, and returned None: "
                f"{waiting} would wait forever. Let the error pass, or answer with ctx.reply or ctx.fail_with."
            ) from self._failed_call
        if self._position.promises:
            reply = self._position.reply_type
            name = reply.__name__ if reply is not None else "reply"
            raise IllegalCall(
                f"{self._position.address} returned None, and {waiting} waits for the {name} that its annotation "
                f"promises. Return one on every way through the handler, or annotate `-> {name} | None` if silence is "
                "meant."
            )

    def _check_open(self, call: str) -> None:
        if self._is_closed or self._result.is_closed:
            raise IllegalCall(
                f"ctx.{call} was called after the handler of {self._position.address} had returned; a context is for "
                "the run it was given to. In an async handler, await what you start."
            )
        self._unit_of_work.check_caller(f"ctx.{call}")

    def _end_with(self, call: str, make: Callable[[], T]) -> T:
        """Make a call that ends the run: a request, a next or a reply."""
        try:
            self._check_may_end_with(call)
            made = make()
        except Exception as error:
            # The handler may catch the error.
            self._failed_call = error
            raise
        self._run.terminal = call
        return made

    def _check_may_end_with(self, call: str) -> None:
        self._check_open(call)
        terminal = self._run.terminal
        if terminal is not None and not (terminal == call == "request"):
            raise IllegalCall(
                f"{self._position.address} called ctx.{terminal} and then ctx.{call}: a stage makes either one "
                "or more requests, or one next, or one reply."
            )

    def _request(self, target: Target[Any, Any], message: Any) -> str:
        position = self._position
        check_target(target)
        if position.next is None:
            raise IllegalCall(
                f"{position.address} is the last stage of {position.endpoint}: there is no stage for the reply of "
                f"{target.address} to run. Use ctx.send, or add a stage."
            )
        if target.reply_type is None:
            raise IllegalCall(
                f"{target.address} never replies, so {position.next.address} would never run. Use ctx.send, or let "
                f"{target.address} reply: annotate its last stage's return type."
            )
        if not position.next.takes(target.reply_type):
            raise IllegalCall(
                f"{target.address} replies with a {target.reply_type.__qualname__}, but the next stage "
                f"{position.next.address} takes a "
                f"{' or '.join(each.__qualname__ for each in position.next.message_types)}."
            )
        frame = Frame(to=position.next.address, state=self._encoded_state())
        return self._send("request", target, message, (*self._envelope.stack, frame))

    def _next(self, message: Any, delay: float) -> str:
        following = self._position.next
        if following is None:
            raise IllegalCall(
                f"{self._position.address} is the last stage of {self._position.endpoint}: there is no next one. "
                "Reply, or add a stage."
            )
        return self._send("next", following, message, self._envelope.stack, self._encoded_state(), delay)

    def _encoded_state(self) -> msgspec.Raw:
        if self._position.state_type is None:
            return NOTHING
        return codec.encode(self._run.state, self._position.state_type)

    def _reply(self, message: Any) -> Outgoing | None:
        position = self._position
        if position.reply_type is None:
            raise IllegalCall(
                f"{position.address} replied with a {type(message).__qualname__}, but {position.endpoint} declares no "
                f"reply. Annotate the stage's return type (`-> {type(message).__name__}`) or return None."
            )
        encoded = encode_message(position.endpoint, position.reply_type, message, "replies with")
        self._run.reply = encoded
        return self._encoded_reply(encoded)

    def _encoded_reply(self, encoded: Message) -> Outgoing | None:
        stack = self._envelope.stack
        if not stack:
            return None
        return self._outgoing("reply", stack[-1].to, encoded, stack[:-1], stack[-1].state)

    def _send(
        self,
        kind: Kind,
        target: Target[Any, Any],
        message: Any,
        stack: tuple[Frame, ...],
        state: msgspec.Raw = NOTHING,
        delay: float = 0,
    ) -> str:
        due_at = due_moment(delay, self._clock)
        encoded = encode_message(target.address, declared_type(target, message), message)
        outgoing = self._outgoing(kind, target.address, encoded, stack, state, due_at, is_bare=target.is_bare)
        self._result.outgoing.append(outgoing)
        return outgoing.envelope.message_id

    def _outgoing(
        self,
        kind: Kind,
        address: str,
        encoded: Message,
        stack: tuple[Frame, ...],
        state: msgspec.Raw,
        due_at: int | None = None,
        topic: str | None = None,
        *,
        is_bare: bool = False,
    ) -> Outgoing:
        incoming = self._envelope
        hops = incoming.hops + 1
        if hops > self._limits.hops:
            raise FlowTooLong(
                f"flow {incoming.flow_id} has passed {hops} stages, more than the {self._limits.hops} this app allows: "
                "it probably runs in a circle. Raise max_hops on the App if it does not."
            )
        if len(stack) > self._limits.depth:
            raise FlowTooLong(
                f"flow {incoming.flow_id} is {len(stack)} requests deep, more than the {self._limits.depth} this app "
                "allows: it probably calls itself. Raise max_depth on the App if it does not."
            )
        ordinal = place = self._ordinals.get((kind, address), 0)
        self._ordinals[kind, address] = ordinal + 1
        if self._ordinals is not self._result.ordinals:
            place = self._result.ordinals.get((kind, address), 0)
            self._result.ordinals[kind, address] = place + 1
        position = self._position
        properties = self._run.properties
        envelope = Envelope(
            message_id=ids.derived(
                incoming.message_id, position.address, self._index, kind, address, ordinal, position.handler
            ),
            flow_id=incoming.flow_id,
            kind=kind,
            to=address,
            sender=self._position.address,
            messages=(Message(encoded.type, encoded.body, state),),
            origin_at=incoming.origin_at,
            sent_at=self._clock.now(),
            cause_id=incoming.message_id,
            ordinal=place,
            hops=hops,
            stack=stack,
            properties=incoming.properties if properties is None else dict(properties),
            is_bare=is_bare,
        )
        return Outgoing(envelope, due_at, topic)


def unit_of_work_of(context: Context) -> OpenUnitOfWork:
    """Return the unit of work behind a context, for a handler of Stagepost itself."""
    return context._unit_of_work  # noqa: SLF001 - a context shows its handler no internals


def finish(context: Context, returned: Any) -> None:
    """Take a handler's returned value as its reply, and close its context. Raises ``IllegalCall``."""
    context._finish(returned)  # noqa: SLF001 - a context shows its handler no internals


def reply_again(context: Context, reply: Message | None) -> None:
    """Send a stored reply to the caller of a duplicate, under an id of this message, and close its context."""
    outgoing = None if reply is None else context._encoded_reply(reply)  # noqa: SLF001 - see finish
    if outgoing is not None:
        context._result.outgoing.append(outgoing)  # noqa: SLF001 - see finish
    context._is_closed = True  # noqa: SLF001 - see finish
