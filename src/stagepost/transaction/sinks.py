"""Sinks: the user's own code around the handling of one envelope.

``SinkChain`` has the sinks of one envelope. They are initialized in the order of their registration. Each later call
reaches them in reverse order.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec

from stagepost.flow.claim import Claim
from stagepost.flow.envelope import Envelope, check_header
from stagepost.flow.errors import IllegalCall
from stagepost.flow.initiation import Outgoing
from stagepost.transaction.attempt_monitor import AttemptMonitor
from stagepost.transaction.enqueueing import attempt_of
from stagepost.transaction.steps import Halt

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class IncomingEnvelope:
    """The envelope that a sink is made for.

    ``stage``        the address of the stage that handles it
    ``sender``       the stage that sent it, or the node that initiated the flow
    ``attempt``      the number of this attempt, from 1 on
    ``redelivered``  whether a handler may have seen it before
    ``headers``      its headers, which its sender's sinks wrote
    ``properties``   the properties of its flow
    """

    stage: str
    message_id: str
    flow_id: str
    sender: str
    attempt: int
    redelivered: bool
    headers: Mapping[str, str]
    properties: Mapping[str, Any]


class OutgoingEnvelope:
    """An envelope that the handlers sent. A sink may change its ``headers``, texts by name."""

    def __init__(self, envelope: Envelope) -> None:
        self.to = envelope.to
        self.kind = envelope.kind
        self.message_id = envelope.message_id
        self.flow_id = envelope.flow_id
        self.headers = dict(envelope.headers)

    def __repr__(self) -> str:
        return f"<OutgoingEnvelope {self.kind} {self.message_id} to {self.to}>"


class Sink:
    """Code around the handling of one envelope. Override the methods that you need, all of them plain functions.

    An error of ``initialize`` or ``before_commit`` fails the attempt, as an error of a handler does. An error of the
    other three is logged, and changes nothing.
    """

    def initialize(self, incoming: IncomingEnvelope) -> None:
        """Prepare for the handlers. Context variables that are set here are visible to them."""

    def before_commit(self, outgoing: Sequence[OutgoingEnvelope]) -> None:
        """Prepare for the commit, or raise an error to prevent it. The handlers of all messages returned."""

    def success(self) -> None:
        """Take note that the stage's work is committed. A process that dies after the commit does not call this."""

    def failure(self, error: BaseException | None) -> None:
        """Take note that the stage's work is rolled back.

        ``error`` is None if the handler answered with ``ctx.fail_with``, or if the message was handled before or
        belongs to another worker by now.
        """

    def dispose(self) -> None:
        """Release what ``initialize`` took. It is called after ``success`` or ``failure``."""


SinkFactory = Callable[[], Sink]


class SinkChain:
    """The sinks of one envelope, in a context of their own, so that no context variable reaches another envelope.

    ``context``           the context in which the handlers run, too
    ``end_forked_child``  ends this process if a sink forked it

    ``initialize`` and ``before_commit`` raise the error of the first sink that fails. ``end`` raises no sink's error.
    """

    def __init__(
        self,
        factories: Sequence[SinkFactory],
        claim: Claim,
        monitor: AttemptMonitor,
        end_forked_child: Callable[[], None],
    ) -> None:
        self._factories = factories
        self._claim = claim
        self._monitor = monitor
        self._end_forked_child = end_forked_child
        self._initialized: list[Sink] = []
        self.context: Context = copy_context()

    def initialize(self, envelope: Envelope) -> None:
        incoming = _incoming(self._claim, envelope)
        for factory in self._factories:
            sink = self._call(factory)
            if not isinstance(sink, Sink):
                raise IllegalCall(f"a sink's factory returned {sink!r:.100}; let it return a stagepost.Sink.")
            self._call(sink.initialize, incoming)
            self._initialized.append(sink)

    def before_commit(self, outgoing: list[Outgoing]) -> None:
        """Call each sink, and replace the envelopes in ``outgoing`` whose headers it changed."""
        shown = [OutgoingEnvelope(each.envelope) for each in outgoing]
        for sink in reversed(self._initialized):
            self._call(sink.before_commit, tuple(shown))
            for each in shown:
                for name, value in each.headers.items():
                    check_header(name, value, type(sink).__qualname__)
        for index, (sent, each) in enumerate(zip(outgoing, shown, strict=True)):
            if each.headers != sent.envelope.headers:
                envelope = msgspec.structs.replace(sent.envelope, headers=dict(each.headers))
                outgoing[index] = msgspec.structs.replace(sent, envelope=envelope)

    def end(self, *, is_committed: bool, error: BaseException | None = None) -> None:
        """Call ``success`` or ``failure``, and then ``dispose``. A second call finds no sinks."""
        ended, self._initialized = self._initialized[::-1], []
        for sink in ended:
            if is_committed:
                self._tell(sink, sink.success)
            else:
                self._tell(sink, sink.failure, error)
        for sink in ended:
            self._tell(sink, sink.dispose)

    def _tell(self, sink: Sink, call: Callable[..., None], *arguments: Any) -> None:
        try:
            self.context.run(self._call, call, *arguments)
        except Halt:
            raise
        except BaseException as error:
            # The outcome stands, and the other sinks are still called.
            logger.exception(
                "%s of %s raised %s at %s; the outcome of the message is unchanged",
                getattr(call, "__name__", call),
                type(sink).__qualname__,
                type(error).__name__,
                self._claim.stage,
                extra={"event": "sink-failed", "message_id": self._claim.message_id, "flow_id": self._claim.flow_id},
            )

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a sink within the stage's time limit. Each call has that time for itself."""
        try:
            with self._monitor.handling(None):
                returned = function(*arguments)
        finally:
            self._end_forked_child()
            self._monitor.handled()
        if inspect.iscoroutine(returned):
            returned.close()
            raise IllegalCall(f"{function!r} of a sink is `async def`; make it a plain function.")
        return returned


def _incoming(claim: Claim, envelope: Envelope) -> IncomingEnvelope:
    return IncomingEnvelope(
        claim.stage,
        envelope.message_id,
        envelope.flow_id,
        envelope.sender,
        attempt_of(claim),
        redelivered=claim.deliveries > 1,
        headers=MappingProxyType(envelope.headers),
        properties={name: msgspec.json.decode(value) for name, value in envelope.properties.items()},
    )
