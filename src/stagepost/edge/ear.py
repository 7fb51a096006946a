"""Listening for the replies to what this process asked: one thread, one address, for any number of requests.

The address belongs to an incarnation, so that others know when nobody listens there any more. A reply is taken as a
worker takes a message: claimed, and then removed in a transaction of its own, with its line in the journal. What nobody
waits for any more expires here; what comes when this process is gone expires at a worker's (``liveness.orphans``).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any, Protocol
from weakref import WeakValueDictionary

from stagepost.app.app import App
from stagepost.app.asking import Asked
from stagepost.app.stores import Access
from stagepost.edge.attendance import Attendance
from stagepost.edge.deaths import Deaths, token_of
from stagepost.edge.predecessors import Predecessors
from stagepost.flow.claim import Claim
from stagepost.flow.envelope import Message, decode_envelope
from stagepost.flow.errors import StoreError, Undecodable
from stagepost.liveness.incarnation import Incarnation
from stagepost.liveness.proof import incarnate
from stagepost.liveness.replies import ROLE, listening, reply_address
from stagepost.liveness.vigil import Vigil
from stagepost.liveness.wakeup import Wakeup
from stagepost.store.memory.store import MemoryStore
from stagepost.transaction.forks import forks
from stagepost.transaction.outcome import Completed, Expired
from stagepost.transaction.settling import Settlement

AT_ONCE_MAX = 100
PAUSE_SECONDS = 1.0

logger = logging.getLogger(__name__)


class Look(Protocol):
    """What is looked at now and then for those who wait."""

    @property
    def is_to_look(self) -> bool: ...

    def look(self, waiting: Sequence[Asked[Any]]) -> None:
        """Raises ``StoreError``."""


class Ear:
    """Implements ``app.asking.Ear``. It listens from when it is made until it is closed, or its process ends."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._node = app.node(ROLE)
        self._forks = forks.count
        self._incarnation, self._owner = _incarnated(app, self._node)
        self.address = reply_address(self._owner)
        listening.add(self._owner)
        # Who has let go of what he asked waits for nothing.
        self._asked: WeakValueDictionary[str, Asked[Any]] = WeakValueDictionary()
        self._wakeup = Wakeup()
        self._stop = threading.Event()
        self._is_seen = True
        self._is_unsure = False
        self._undecided: list[tuple[Claim, Asked[Any], bytes]] = []
        self._thread = threading.Thread(target=self._listen, name="ear", daemon=True)
        self._thread.start()
        self._vigil: Vigil | None = None
        if self._incarnation is not None:
            self._vigil = Vigil(self._incarnation, [], on_stuck=lambda _: None, on_orphaned=self._unseen)
            self._vigil.start()

    @property
    def is_listening(self) -> bool:
        return self._is_seen and self._thread.is_alive()

    def expect(self, asked: Asked[Any]) -> None:
        self._asked[asked.token] = asked
        self._wakeup.saw_work()

    def close(self) -> None:
        if forks.count != self._forks:
            # The parent's.
            return
        self._stop.set()
        self._wakeup.ring()
        self._thread.join()
        if self._vigil is not None:
            self._vigil.stop()
        if self._incarnation is not None:
            self._incarnation.close()
        listening.discard(self._owner)
        for asked in self._waiting():
            asked.end("had not replied when the app was closed")

    def _waiting(self) -> list[Asked[Any]]:
        # Copied in one step: others ask meanwhile.
        referred = [each() for each in self._asked.valuerefs()]
        return [each for each in referred if each is not None and each.is_waiting]

    def _unseen(self, reason: str) -> None:
        logger.error("replies may expire, for %s", reason, extra={"event": "orphaned"})
        self._is_seen = False

    def _listen(self) -> None:
        access: Access | None = None
        predecessors: Predecessors | None = None
        looks: list[Look] = []
        while not self._stop.is_set():
            try:
                if access is None:
                    access = self._app.access()
                    looks = [Deaths(access.session.reader, self.address, self._app.clock)]
                    if self._incarnation is not None:
                        predecessors = Predecessors(self._app, access, self._node)
                        looks.append(Attendance(self._app, access.session))
                self._hear(access, looks, predecessors)
            except StoreError as error:
                logger.warning("waiting for the database: %s", error, extra={"event": "database-unavailable"})
                self._is_unsure = True
                self._stop.wait(PAUSE_SECONDS)
        if access is not None:
            access.close()

    def _hear(self, access: Access, looks: Sequence[Look], predecessors: Predecessors | None) -> None:
        """Take what has come, or wait until more may have."""
        self._decide(access)
        if predecessors is not None and predecessors.is_to_look:
            predecessors.tidy_up()
        claims = access.transport.owned(self._owner) if self._is_unsure else []
        self._is_unsure = False
        claims = claims or access.transport.claim([self.address], AT_ONCE_MAX, self._owner, self._node)
        settlement = Settlement(
            access.session, access.transport, self._app.clock, self._node, listener=self._app.listener
        )
        for claim in claims:
            self._settle(settlement, claim)
        # After the replies: one that has come counts.
        for each in looks:
            if each.is_to_look:
                each.look(self._waiting())
        if claims:
            self._wakeup.saw_work()
            return
        while not (self._wakeup.wait() or access.transport.changed() or self._stop.is_set()):
            if predecessors is not None and predecessors.is_to_look:
                return
            if any(each.is_to_look for each in looks) and self._waiting():
                return

    def _settle(self, settlement: Settlement, claim: Claim) -> None:
        reply = _reply(claim)
        asked = self._asked.get(token_of(reply.state)) if reply is not None else None
        if reply is None or asked is None or not asked.take():
            why = "not a reply" if reply is None else "nobody waits for it any more"
            settlement.settle(None, claim, Expired(why))
            return
        is_taken = False
        try:
            is_taken = isinstance(settlement.settle(None, claim, Completed([], [], 0.0)), Completed)
        except StoreError:
            self._undecided.append((claim, asked, bytes(reply.body)))
            raise
        finally:
            if is_taken:
                asked.reply(bytes(reply.body))
            else:
                # It is still there, and will be claimed again.
                asked.put_back()

    def _decide(self, access: Access) -> None:
        """What the database did not answer, it may have done: then there is nothing to be claimed again."""
        while self._undecided:
            claim, asked, body = self._undecided[-1]
            is_ours = not access.transport.holds(claim) and access.session.reader.has_committed(
                claim.stage, claim.message_id
            )
            if is_ours and asked.take():
                asked.reply(body)
            self._undecided.pop()


def _incarnated(app: App, node: str) -> tuple[Incarnation | None, str]:
    """With its owner's name. Where the store ends with this process, nobody need know whether it lives."""
    if isinstance(app.store, MemoryStore):
        return None, f"{app.name}/{app.ids.mint()}"
    incarnation = incarnate(app, node)
    return incarnation, incarnation.owner


def _reply(claim: Claim) -> Message | None:
    try:
        messages = decode_envelope(claim.envelope).messages
    except Undecodable:
        return None
    return messages[0] if messages else None
