"""Receive the replies to this process's requests: one thread, one address, for any number of requests.

The address belongs to an incarnation, so that other processes know when it is gone. The listener takes a reply as a
worker takes a message: it claims the reply, and then removes it in a transaction of its own, with its journal line. A
reply that no request waits for any more expires here. A reply to a process that is gone expires at a worker
(``runtime.housekeeper``).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing
from weakref import WeakValueDictionary

from stagepost.edge.looks import Attendance, Deaths, Look, Predecessors, token_of
from stagepost.edge.reply_future import PendingReply
from stagepost.flow.claim import Claim
from stagepost.flow.codec import decode_envelope
from stagepost.flow.envelope import Message
from stagepost.flow.errors import DeclarationError, StoreError, Undecodable
from stagepost.flow.ids import node_name
from stagepost.liveness.incarnation import ROLE, listening, reply_address
from stagepost.ports.liveness import Incarnation
from stagepost.runtime.access import Access
from stagepost.runtime.assembly import queue_commit_of
from stagepost.runtime.engine import Engine
from stagepost.runtime.prefetch import Wakeup
from stagepost.runtime.service import Service
from stagepost.runtime.watchdog import Watchdog
from stagepost.transaction.database_wait import retried
from stagepost.transaction.forks import forks
from stagepost.transaction.outcome import Completed, Expired
from stagepost.transaction.settling import Settlement

AT_ONCE_MAX = 100

logger = logging.getLogger(__name__)


class ReplyListener(Service):
    """Listens at ``address``, which is private to it, until it is closed or its process ends."""

    def __init__(self, engine: Engine) -> None:
        super().__init__("reply-listener", self._listen, logs_error=True)
        self._engine = engine
        self._node = node_name(ROLE)
        self._forks = forks.count
        self._incarnation, self._owner = _incarnated(engine, self._node)
        self.address = reply_address(self._owner, engine.store_uuid if engine.databases.broker else None)
        listening.add(self._owner)
        # Weak values: a caller that drops its future no longer waits.
        self._pending: WeakValueDictionary[str, PendingReply] = WeakValueDictionary()
        self._wakeup = Wakeup()
        self._is_seen = True
        self._is_unsure = False
        self._undecided: list[tuple[Claim, PendingReply, bytes]] = []
        self.start()
        self._watchdog: Watchdog | None = None
        if self._incarnation is not None:
            self._watchdog = Watchdog(self._incarnation, on_orphaned=self._unseen)
            self._watchdog.start()

    @property
    def is_listening(self) -> bool:
        """False in a forked child, and where other processes cannot see that this one lives."""
        return self._is_seen and self.is_alive

    def expect(self, pending: PendingReply) -> None:
        self._pending[pending.token] = pending
        self._wakeup.saw_work()

    def close(self) -> None:
        if forks.count != self._forks:
            # The listener is the parent's.
            return
        self.stop()
        self._wakeup.ring()
        self.join()
        if self._watchdog is not None:
            self._watchdog.close()
        listening.discard(self._owner)
        for pending in self._waiting():
            pending.end("had not replied when the app was closed")

    def _waiting(self) -> list[PendingReply]:
        # Copied in one step: other threads add requests meanwhile.
        referred = [each() for each in self._pending.valuerefs()]
        return [each for each in referred if each is not None and each.is_waiting]

    def _unseen(self, reason: str) -> None:
        logger.error("replies may expire, for %s", reason, extra={"event": "orphaned"})
        self._is_seen = False

    def _listen(self) -> None:
        access = retried(logger, self._engine.access, self, (StoreError,))
        if access is None:
            return
        looks: list[Look] = [Deaths(access.session.dead_letters, self.address, self._engine.clock)]
        predecessors: Predecessors | None = None
        if self._incarnation is not None:
            predecessors = Predecessors(self._engine, access, self._node)
            looks.append(Attendance(self._engine, access.session))
        with closing(access):
            retried(logger, lambda: self._hear_until_stopped(access, looks, predecessors), self, (StoreError,))

    def _hear_until_stopped(self, access: Access, looks: Sequence[Look], predecessors: Predecessors | None) -> None:
        while not self.is_stopped:
            try:
                self._hear(access, looks, predecessors)
            except StoreError:
                self._is_unsure = True
                raise

    def _hear(self, access: Access, looks: Sequence[Look], predecessors: Predecessors | None) -> None:
        """Take the replies that are there, or wait until more may be."""
        self._decide(access)
        if predecessors is not None and predecessors.is_due:
            predecessors.look([])
        claims = access.session.queue.owned(self._owner) if self._is_unsure else []
        self._is_unsure = False
        claims = claims or access.claimer.claim([self.address], AT_ONCE_MAX, self._owner, self._node)
        settlement = Settlement(queue_commit_of(self._engine, access, self._node))
        for claim in claims:
            self._settle(settlement, claim)
        # This comes after the replies, so that a reply that has come counts.
        for each in looks:
            if each.is_due:
                each.look(self._waiting())
        if claims:
            self._wakeup.saw_work()
            return
        while not (self._wakeup.wait() or access.session.queue.changed() or self.is_stopped):
            if predecessors is not None and predecessors.is_due:
                return
            if any(each.is_due for each in looks) and self._waiting():
                return

    def _settle(self, settlement: Settlement, claim: Claim) -> None:
        reply = _reply(claim)
        pending = self._pending.get(token_of(reply.state)) if reply is not None else None
        if reply is None or pending is None or not pending.take():
            why = "not a reply" if reply is None else "no request waits for it any more"
            settlement.settle(None, claim, Expired(why))
            return
        is_taken = False
        try:
            is_taken = isinstance(settlement.settle(None, claim, Completed([], [], 0.0)), Completed)
        except StoreError:
            self._undecided.append((claim, pending, bytes(reply.body)))
            raise
        finally:
            if is_taken:
                pending.complete(bytes(reply.body))
            else:
                # The reply is still there, and will be claimed again.
                pending.put_back()

    def _decide(self, access: Access) -> None:
        """Find out whether a commit stood whose answer was lost. If it did, the reply cannot be claimed again."""
        while self._undecided:
            claim, pending, body = self._undecided[-1]
            is_ours = not access.session.queue.holds(claim) and access.session.journal.has_committed(
                claim.stage, claim.message_id
            )
            if is_ours and pending.take():
                pending.complete(body)
            self._undecided.pop()


def _incarnated(engine: Engine, node: str) -> tuple[Incarnation | None, str]:
    """Return the incarnation and its owner name. A store that ends with this process keeps no incarnations."""
    try:
        engine.store.liveness(engine.clock)
    except DeclarationError:
        return None, f"{engine.name}/{engine.ids.mint()}"
    incarnation = engine.incarnate(node)
    return incarnation, incarnation.owner


def _reply(claim: Claim) -> Message | None:
    try:
        messages = decode_envelope(claim.envelope).messages
    except Undecodable:
        return None
    return messages[0] if messages else None
