"""The periodic checks of a reply listener: workers, dead letters, and earlier listeners that are gone."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from contextlib import closing

import msgspec

from stagepost.edge.reply_future import PendingReply
from stagepost.flow.clock import Clock, to_datetime
from stagepost.flow.codec import decode_envelope
from stagepost.flow.envelope import Frame
from stagepost.flow.errors import Undecodable
from stagepost.liveness.incarnation import is_edge
from stagepost.ports.dead_letters import DeadLetter, DeadLetters, Selection
from stagepost.ports.liveness import EVERY_APP
from stagepost.ports.session import Session
from stagepost.runtime.access import Access
from stagepost.runtime.engine import Engine

DEATHS_SECONDS = 0.5
ATTENDANCE_SECONDS = 1.0
# How long a worker that was alive needs no second look.
LIVING_SECONDS = 5.0
# An end on another machine is detected only by looking again and again.
PREDECESSORS_SECONDS = 15.0

logger = logging.getLogger(__name__)

_token = msgspec.json.Decoder(str)


class Look:
    """A check that runs at most once in ``seconds``. One thread uses it."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._next_look = -math.inf

    @property
    def is_due(self) -> bool:
        return self._clock.monotonic() > self._next_look

    def look(self, waiting: Sequence[PendingReply]) -> None:
        """Look on behalf of the requests that wait. Raises ``StoreError``."""
        self._next_look = self._clock.monotonic() + self._seconds


class Attendance(Look):
    """Looks whether a worker that can reply is alive, so that a timeout can say when none was.

    It looks only for requests that have waited from one look to the next.
    """

    def __init__(self, engine: Engine, session: Session) -> None:
        super().__init__(engine.clock, ATTENDANCE_SECONDS)
        self._session = session
        self._has_broker = engine.databases.broker is not None
        self._detector = engine.detector(EVERY_APP)
        self._waited: set[str] = set()
        self._logged: set[str] = set()

    def look(self, waiting: Sequence[PendingReply]) -> None:
        super().look(waiting)
        unanswered = [each for each in waiting if each.token in self._waited]
        self._waited = {each.token for each in waiting}
        if not unanswered:
            return
        missing = self._missing({each.address for each in unanswered})
        at = f"{to_datetime(self._clock.now()):%H:%M:%S} UTC"
        for each in unanswered:
            each.unattended = f"At {at} {missing[each.address]}." if each.address in missing else ""
        for address in missing.keys() - self._logged:
            logger.warning("request to %s has no worker: %s", address, missing[address], extra={"event": "no-worker"})
        self._logged = set(missing)
        if not missing:
            self._next_look += LIVING_SECONDS - ATTENDANCE_SECONDS

    def _missing(self, addresses: set[str]) -> dict[str, str]:
        """Return, by address, why nothing can reply. An address for which a worker is alive is left out."""
        apps = {each.stage: each.app for each in self._session.declarations.listed()}
        with closing(self._detector) as detector:
            records = [each.record for each in detector.look() if each.state != "dead"]
        living = {record.owner.rpartition("/")[0] for record in records if not is_edge(record.node)}
        found = {}
        for address in addresses:
            app = apps.get(address)
            if app is None and self._has_broker:
                # Another service replies, and no store shows its workers.
                continue
            if app is None:
                found[address] = "no app had declared it in this store"
            elif app not in living:
                found[address] = f"no worker of app {app!r}, which declares it, was alive"
        return found


class Deaths(Look):
    """Looks for dead letters in place of replies to this process. It reads each letter once while a request waits.

    The envelope's call stack shows whether a dead message would have replied: a side branch carries no frame of the
    process that asked. ``address`` is where the replies go.
    """

    def __init__(self, dead_letters: DeadLetters, address: str, clock: Clock) -> None:
        super().__init__(clock, DEATHS_SECONDS)
        self._dead_letters = dead_letters
        self._address = address
        self._seen: set[int] = set()

    def look(self, waiting: Sequence[PendingReply]) -> None:
        """End the wait of each request whose reply a dead letter owes."""
        super().look(waiting)
        found = set(self._dead_letters.ids_of(sorted({each.flow_id for each in waiting}))) if waiting else set()
        by_token = {each.token: each for each in waiting}
        for new in sorted(found - self._seen):
            for kept in self._dead_letters.select(Selection("id", new)):
                for token in self._owed(kept.letter) & by_token.keys():
                    by_token[token].die(kept)
        self._seen = found

    def _owed(self, letter: DeadLetter) -> set[str]:
        """Return the tokens of the requests that the message would have answered."""
        try:
            envelope = decode_envelope(letter.envelope)
        except Undecodable:
            return set()
        # A reply that could not be sent has left the stack: it carries its own token.
        itself = [Frame(envelope.to, each.state) for each in envelope.messages]
        return {token_of(each.state) for each in (*envelope.stack, *itself) if each.to == self._address}


class Predecessors(Look):
    """Takes over from processes that only asked and are gone. In an app without workers no other process does."""

    def __init__(self, engine: Engine, access: Access, node: str) -> None:
        super().__init__(engine.clock, PREDECESSORS_SECONDS)
        self._queue = access.session.queue
        self._claimer = access.claimer
        self._node = node
        self._detector = engine.detector()

    def look(self, waiting: Sequence[PendingReply]) -> None:
        """Release what they held, and remove their records."""
        super().look(waiting)
        # No connection is kept from one look to the next.
        with closing(self._detector) as detector:
            for each in detector.look():
                if each.state == "dead" and is_edge(each.record.node):
                    self._claimer.release(self._queue.owned(each.record.owner, is_unattended=True), self._node)
                    detector.forget(each)


def token_of(state: msgspec.Raw) -> str:
    """Return the token that a request sent along, or an empty one if ``state`` is something else."""
    try:
        return _token.decode(state)
    except msgspec.DecodeError:
        return ""
