"""Send requests from outside any stage. Their replies come to this very process."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from stagepost.edge.reply_future import PendingReply, ReplyFuture
from stagepost.edge.reply_listener import ReplyListener
from stagepost.flow.envelope import Frame
from stagepost.flow.errors import AlreadyStarted, IllegalCall
from stagepost.flow.ids import node_name
from stagepost.flow.initiation import Acceptance, Outgoing, acceptance, check_target
from stagepost.flow.target import M, R, Target
from stagepost.runtime.callers_sessions import CallersSession
from stagepost.runtime.engine import Engine
from stagepost.runtime.flow_starter import ROLE, as_initiation_errors


class Requester:
    """The requests of one app from this process. One reply listener serves them; the first request opens it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._listener: ReplyListener | None = None
        self._opening = threading.Lock()

    def request(
        self,
        target: Target[M, R],
        message: M,
        *,
        flow_id: str,
        message_id: str | None,
        properties: Mapping[str, Any] | None,
        caller: CallersSession | None = None,
    ) -> ReplyFuture[R]:
        """Start one flow, and return the future of its reply. Raises as ``app.request`` does."""
        with as_initiation_errors():
            listener = self._listening()
        pending = PendingReply(flow_id, target.address, self._engine.ids.mint())
        assert target.reply_type is not None
        plain = acceptance(
            target,
            message,
            flow_id=flow_id,
            message_id=message_id,
            reply_to=Target(listener.address, target.reply_type, None),
            properties=properties,
            node=node_name(ROLE),
            now=self._engine.clock.now(),
        )
        wanted = _with_token(plain, listener.address, pending.token)
        listener.expect(pending)
        starter = self._engine.flow_starter
        (verdict,) = starter.write([wanted]) if caller is None else starter.write_joined(caller, [wanted])
        if verdict.outcome != "started":
            raise AlreadyStarted(
                f"{target.address} has had this request before, in flow {flow_id!r}. Nothing was started now, and the "
                "reply goes to the first request. Use another flow_id for a new request, or let the flow write its "
                f"result to the database. See: stagepost trace {flow_id}",
                [wanted.key],
            )
        if caller is not None:
            caller.follow()
        return ReplyFuture(target, wanted.key, pending, caller)

    def close(self) -> None:
        """Close the listener. Each request that waits learns that no reply will come here."""
        with self._opening:
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def _listening(self) -> ReplyListener:
        with self._opening:
            if self._listener is not None and not self._listener.is_listening:
                self._listener.close()
                self._listener = None
            if self._listener is None:
                self._listener = ReplyListener(self._engine)
            return self._listener


def check_may_request(target: Target[Any, Any], *, is_in_stage: bool, connection: object) -> None:
    """Raise ``IllegalCall`` for a request that could get no reply."""
    check_target(target)
    if is_in_stage:
        raise IllegalCall(
            f"app.request to {target.address} was called inside a stage: it would hold its transaction open while it "
            "waits for another. Use ctx.request there; the reply runs the next stage."
        )
    if connection is not None:
        raise IllegalCall(
            f"app.request to {target.address} was given a connection: the flow would start when its transaction "
            "commits, and Stagepost cannot see when that is. Give a session= of SQLAlchemy or Django, or start the "
            "flow with app.initiate(connection=…) and a reply_to."
        )
    if target.reply_type is None:
        raise IllegalCall(
            f"{target.address} never replies, so no reply would come. Use app.start, or let it reply: annotate its "
            "last stage's return type."
        )


def _with_token(wanted: Acceptance, address: str, token: str) -> Acceptance:
    """Put the token into the call stack, with which the reply brings it back."""
    frame = Frame(to=address, state=msgspec.Raw(msgspec.json.encode(token)))
    envelope = msgspec.structs.replace(wanted.outgoing.envelope, stack=(frame,))
    return replace(wanted, outgoing=Outgoing(envelope))
