"""The reply to a request from outside any stage, and the wait for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Generic, Literal

from stagepost.flow import codec
from stagepost.flow.clock import SECONDS_MAX, is_span
from stagepost.flow.errors import FlowDied, IllegalCall, ReplyTimeout
from stagepost.flow.target import R, Target
from stagepost.ports.dead_letters import KeptLetter
from stagepost.runtime.callers_sessions import CallersSession

State = Literal["waiting", "being taken", "replied", "over"]


class PendingReply:
    """The state of one request: the thread that waits and the reply listener share it.

    ``token``       comes back with the reply
    ``unattended``  says that no worker lived that could reply when the listener last checked; empty if one lived
    ``reply``       the bytes of the reply; None before it came
    ``died_as``     the dead letter in place of the reply
    ``end_reason``  why the wait ended without a reply
    """

    def __init__(self, flow_id: str, address: str, token: str) -> None:
        self.flow_id = flow_id
        self.address = address
        self.token = token
        self.unattended = ""
        self.state: State = "waiting"
        self.reply: bytes | None = None
        self.died_as: KeptLetter | None = None
        self.end_reason = ""
        self._changed = threading.Condition()
        self._watchers: list[Callable[[], object]] = []

    @property
    def is_waiting(self) -> bool:
        return self.state == "waiting"

    def wait(self, seconds: float) -> None:
        """Wait for the reply, for a dead letter in its place, or until the time has passed. Then end the wait."""
        with self._changed:
            self._changed.wait_for(lambda: self.state in ("replied", "over"), seconds)
            # A reply that is being taken is journalled as taken or not. That decides, and does not take long.
            self._changed.wait_for(lambda: self.state != "being taken")
            if self.state == "waiting":
                self._end(f"did not reply within {seconds:g} s")

    async def wait_on_loop(self, seconds: float) -> None:
        """Do as ``wait``, without blocking the running event loop. A cancelled wait ends: nobody takes the reply."""
        changed = asyncio.Event()
        with self._watched(changed, asyncio.get_running_loop()):
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        while self.state not in ("replied", "over"):
                            await changed.wait()
                            changed.clear()
                # As in ``wait``: the decision does not take long.
                while self.state == "being taken":
                    await changed.wait()
                    changed.clear()
            except asyncio.CancelledError:
                self.end("was given up by its caller, whose task was cancelled")
                raise
            self.end(f"did not reply within {seconds:g} s")

    @contextmanager
    def _watched(self, changed: asyncio.Event, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Set ``changed`` on its loop after each change of the state."""

        def wake() -> None:
            # The loop may have been closed by now.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(changed.set)

        with self._changed:
            self._watchers.append(wake)
        try:
            yield
        finally:
            with self._changed:
                self._watchers.remove(wake)

    def take(self) -> bool:
        """Claim the right to reply, and return whether a thread still waits. The wait goes on until ``put_back`` or
        ``complete``."""
        with self._changed:
            if self.state != "waiting":
                return False
            self.state = "being taken"
            return True

    def put_back(self) -> None:
        self._become("waiting")

    def complete(self, body: bytes) -> None:
        self.reply = body
        self._become("replied")

    def end(self, reason: str) -> None:
        """End the wait: no reply will come to this process any more."""
        with self._changed:
            if self.state == "waiting":
                self._end(reason)

    def die(self, kept: KeptLetter) -> None:
        """End the wait: there is a dead letter in place of the reply."""
        with self._changed:
            if self.state == "waiting":
                self.died_as = kept
                self._end("died")

    def _become(self, state: State) -> None:
        with self._changed:
            self.state = state
            self._changed.notify_all()
            for wake in self._watchers:
                wake()

    def _end(self, reason: str) -> None:
        self.end_reason = reason
        self._become("over")


class ReplyFuture(Generic[R]):
    """The future reply to a request: see ``app.request``.

    ``flow_id`` and ``message_id`` are those of the request.
    """

    def __init__(
        self, target: Target[Any, R], message_id: str, pending: PendingReply, caller: CallersSession | None = None
    ) -> None:
        self.flow_id = pending.flow_id
        self.message_id = message_id
        self._target = target
        self._pending = pending
        self._caller = caller

    @property
    def unattended(self) -> str:
        """Says that no worker lived that could reply, when the process last checked; empty if one lived."""
        return self._pending.unattended

    def result(self, timeout: float) -> R:
        """Wait for the reply, for at most ``timeout`` seconds, and return it.

        Raises ``ReplyTimeout``, and ``FlowDied`` as soon as there is a dead letter in place of the reply. After that,
        each further call raises the same. Raises ``IllegalCall`` while the transaction of ``session=`` is open, because
        the flow starts when that commits.
        """
        self._check(timeout)
        self._pending.wait(timeout)
        return self._result()

    async def aresult(self, timeout: float) -> R:
        """Do as ``result``, without blocking the event loop. If its task is cancelled, nobody waits any more, and the
        reply expires."""
        self._check(timeout)
        await self._pending.wait_on_loop(timeout)
        return self._result()

    def _check(self, timeout: float) -> None:
        if not is_span(timeout):
            raise IllegalCall(f"timeout must be a number of seconds from 0 to {SECONDS_MAX:.0f}, not {timeout!r}")
        if self._caller is not None and self._caller.is_open:
            raise IllegalCall(
                f"the reply of {self._target.address} was waited for before the transaction of session= had ended, and "
                f"flow {self.flow_id!r} starts when that commits. Commit first, and then wait."
            )

    def _result(self) -> R:
        pending = self._pending
        if pending.died_as is not None:
            raise self._flow_died(pending.died_as)
        if pending.reply is None:
            unattended = f" {self.unattended} Start a worker: stagepost worker MODULE:APP." if self.unattended else ""
            raise ReplyTimeout(
                f"{self._target.address} {pending.end_reason} in flow {self.flow_id!r}.{unattended} The flow itself "
                "goes on, unless it has ended in a dead letter; its reply will be journalled as expired. See: "
                f"stagepost trace {self.flow_id}",
                self.flow_id,
            )
        assert self._target.reply_type is not None
        reply: R = codec.decode(pending.reply, self._target.reply_type)
        return reply

    def __repr__(self) -> str:
        return f"<ReplyFuture {self._target.address} in {self.flow_id}: {self._pending.state}>"

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
