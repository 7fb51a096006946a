"""Asking at the edge: a request from outside any stage, whose reply comes to the very process that asked."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol

import msgspec

from stagepost.flow import codec
from stagepost.flow.clock import SECONDS_MAX, is_span
from stagepost.flow.envelope import Frame
from stagepost.flow.errors import FlowDied, IllegalCall, ReplyTimeout
from stagepost.flow.initiation import Acceptance, Outgoing, acceptance, check_target
from stagepost.flow.target import M, R, Target
from stagepost.ports.dead_letters import KeptLetter

if TYPE_CHECKING:
    from stagepost.app.app import App

State = Literal["waiting", "being taken", "replied", "over"]


class ReplyFuture(Generic[R]):
    """What ``app.request`` has asked. ``message_id`` is that of the request; ``unattended`` says that no worker lived
    for it when the listener last looked, and is empty where one did."""

    def __init__(self, flow_id: str, message_id: str, target: Target[Any, R], token: str) -> None:
        self.flow_id = flow_id
        self.message_id = message_id
        self.token = token
        self.unattended = ""
        self._target = target
        self._changed = threading.Condition()
        self._state: State = "waiting"
        self._reply = b""
        self._why_over = ""
        self._died_as: KeptLetter | None = None

    @property
    def address(self) -> str:
        return self._target.address

    @property
    def is_waiting(self) -> bool:
        return self._state == "waiting"

    def result(self, timeout: float) -> R:
        """The reply, waited for at most so many seconds. Raises ``ReplyTimeout``, or ``FlowDied`` as soon as a dead
        letter stands where the reply would have come from; from then on whenever it is asked."""
        if not is_span(timeout):
            raise IllegalCall(f"timeout must be a number of seconds from 0 to {SECONDS_MAX:.0f}, not {timeout!r}")
        with self._changed:
            self._changed.wait_for(lambda: self._state in ("replied", "over"), timeout)
            # What is being taken at this very moment is journalled as taken, or not: that decides.
            self._changed.wait_for(lambda: self._state != "being taken")
            if self._state == "waiting":
                self._end(f"did not reply within {timeout:g} s")
            if self._died_as is not None:
                raise self._flow_died(self._died_as)
            if self._state == "over":
                unattended = (
                    f" {self.unattended} Start a worker: stagepost worker MODULE:APP." if self.unattended else ""
                )
                raise ReplyTimeout(
                    f"{self._target.address} {self._why_over} in flow {self.flow_id!r}.{unattended} The flow itself "
                    "goes on, unless it has ended in a dead letter; its reply will be journalled as expired. See: "
                    f"stagepost trace {self.flow_id}",
                    self.flow_id,
                )
        assert self._target.reply_type is not None
        reply: R = codec.decode(self._reply, self._target.reply_type)
        return reply

    def __repr__(self) -> str:
        return f"<ReplyFuture {self._target.address} in {self.flow_id}: {self._state}>"

    def _flow_died(self, kept: KeptLetter) -> FlowDied:
        letter = kept.letter
        return FlowDied(
            f"{self._target.address} will not reply in flow {self.flow_id!r}: {letter.message_id} at {letter.stage} is "
            f"dead letter {kept.id} ({letter.reason}): {letter.summary}. Mend the cause, then run: stagepost dead "
            f"replay {kept.id}. The flow goes on then, and its reply will be journalled as expired: this wait is over.",
            self.flow_id,
            kept.id,
            letter.summary,
        )

    # For the one who listens

    def take(self) -> bool:
        """Whether somebody still waits. Then nobody gives up before it is put back, or replied."""
        with self._changed:
            if self._state != "waiting":
                return False
            self._state = "being taken"
            return True

    def put_back(self) -> None:
        self._become("waiting")

    def reply(self, body: bytes) -> None:
        self._reply = body
        self._become("replied")

    def end(self, why: str) -> None:
        """No reply will come to this process any more."""
        with self._changed:
            if self._state == "waiting":
                self._end(why)

    def die(self, kept: KeptLetter) -> None:
        """A dead letter stands where the reply would have come from."""
        with self._changed:
            if self._state == "waiting":
                self._died_as = kept
                self._end("died")

    def _become(self, state: State) -> None:
        with self._changed:
            self._state = state
            self._changed.notify_all()

    def _end(self, why: str) -> None:
        self._why_over = why
        self._state = "over"
        self._changed.notify_all()


class ReplyListener(Protocol):
    """Hears the replies at ``address``, which is private to one process and to one listener in it.

    To be heard of when it is gone it has to prove that it lives, which is a room above: the package binds the two.
    """

    address: str

    def __init__(self, app: App) -> None:
        """Raises ``StoreError``."""

    @property
    def is_listening(self) -> bool:
        """False in a forked child, and where nobody can see that it lives."""

    def expect(self, asked: ReplyFuture[Any]) -> None: ...

    def close(self) -> None: ...


def check_may_ask(target: Target[Any, Any], *, is_in_stage: bool, connection: object) -> None:
    """Raises ``IllegalCall``."""
    check_target(target)
    if is_in_stage:
        raise IllegalCall(
            f"app.request to {target.address} was called inside a stage: it would hold its transaction open, and wait "
            "for another's. Use ctx.request there; the reply runs the next stage."
        )
    if connection is not None:
        raise IllegalCall(
            f"app.request to {target.address} was given a connection: the flow would begin when its transaction "
            "commits, and so never while its reply is waited for. Commit first, or start the flow with "
            "app.initiate(connection=…) and a reply_to."
        )
    if target.reply_type is None:
        raise IllegalCall(
            f"{target.address} never replies, so its reply would be waited for in vain. Use app.start, or let it "
            "reply: annotate its last stage's return type."
        )


def request_of(
    target: Target[M, R],
    message: M,
    address: str,
    token: str,
    *,
    flow_id: str,
    message_id: str | None,
    properties: Mapping[str, Any] | None,
    node: str,
    now: int,
) -> Acceptance:
    """``token`` is what the reply brings back. Raises ``InvalidId`` and ``IllegalCall``."""
    assert target.reply_type is not None
    wanted = acceptance(
        target,
        message,
        flow_id=flow_id,
        message_id=message_id,
        reply_to=Target(address, target.reply_type, None),
        properties=properties,
        node=node,
        now=now,
    )
    frame = Frame(to=address, state=msgspec.Raw(msgspec.json.encode(token)))
    envelope = msgspec.structs.replace(wanted.outgoing.envelope, stack=(frame,))
    return replace(wanted, outgoing=Outgoing(envelope))
