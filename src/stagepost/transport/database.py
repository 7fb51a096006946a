"""The database as the transport: messages wait in tables beside the user's own, and commit with them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from stagepost.flow.claim import Claim
from stagepost.flow.clock import Clock
from stagepost.flow.errors import ClaimUnknown, CommitUnknown, StoreUnavailable
from stagepost.flow.initiation import Outgoing
from stagepost.flow.queue import Look, Pending, QueueRow
from stagepost.flow.waypoint import Waypoint, WaypointName
from stagepost.recovery.deadletter import DeadLetter
from stagepost.recovery.pausing import Probe, Streak
from stagepost.transaction.seams import Reader, Streaks

logger = logging.getLogger(__name__)

# Delayed messages that come due together are moved in bounded helpings, so that no claim takes long.
PROMOTION_MAX = 500


class Queue(Protocol):
    """The queue's verbs of a store's session. All but the reading ones happen in its open transaction."""

    def look(self, stages: Sequence[str], now: int) -> Look: ...

    def promote(self, stages: Sequence[str], now: int, limit: int) -> int: ...

    def claim(self, stages: Sequence[str], limit: int, owner: str) -> list[Claim]: ...

    def claim_suspect(self, stages: Sequence[str], now: int, owner: str) -> Claim | None: ...

    def enqueue(self, rows: Sequence[QueueRow]) -> None: ...

    def take(self, claim: Claim) -> None:
        """Raises ``LeaseLost``, at the latest with the commit."""

    def take_all(self, claims: Sequence[Claim]) -> None: ...

    def remove(self, claim: Claim) -> bool: ...

    def release(self, claim: Claim) -> bool: ...

    def holds(self, claim: Claim) -> bool: ...

    def owned(self, owner: str) -> list[Claim]: ...

    def unattended(self, owner: str, *, is_paused: bool = False) -> list[Claim]: ...

    def owners(self) -> list[str]: ...

    def waiting_stages(self) -> list[str]: ...

    def pending(self, stages: Sequence[str]) -> Pending: ...

    def changed(self) -> bool: ...


class QueueSession(Protocol):
    @property
    def queue(self) -> Queue: ...

    @property
    def streaks(self) -> Streaks: ...

    @property
    def reader(self) -> Reader: ...

    def begin(self, *, is_durable: bool = True) -> None: ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def reconnect(self) -> None: ...

    def record(self, waypoints: Sequence[Waypoint]) -> None: ...


class DatabaseSender:
    """Implements ``transaction.seams.Sender``: all that one needs who only starts flows."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def put(self, outgoing: Sequence[tuple[Outgoing, bytes]]) -> None:
        self._queue.enqueue([_new_row(each, data) for each, data in outgoing])


class DatabaseTransport(DatabaseSender):
    """Implements ``transaction.seams.Transport`` on one session."""

    def __init__(
        self, session: QueueSession, clock: Clock, next_held_at: Callable[[], int | None] = lambda: None
    ) -> None:
        """``next_held_at``: when something that is held elsewhere is to be sent here, if anything is."""
        super().__init__(session.queue)
        self._session = session
        self._clock = clock
        self._next_held_at = next_held_at

    def take(self, claim: Claim) -> None:
        self._queue.take(claim)

    def take_all(self, claims: Sequence[Claim]) -> None:
        self._queue.take_all(claims)

    def defer(self, claim: Claim, *, due_at: int, failures: int, deaths: int) -> bool:
        if not self._queue.remove(claim):
            return False
        self._queue.enqueue([_row_again(claim, due_at, failures, deaths)])
        return True

    def revive(self, letter: DeadLetter, *, deaths: int, failures: int = 0) -> None:
        due_at = self._clock.now() if deaths else None
        self._queue.enqueue(
            [
                QueueRow(
                    letter.stage,
                    letter.message_id,
                    letter.flow_id,
                    failures,
                    deaths,
                    letter.deliveries,
                    letter.origin_at,
                    letter.envelope,
                    due_at,
                )
            ]
        )

    def holds(self, claim: Claim) -> bool:
        return self._queue.holds(claim)

    def claim(self, stages: Sequence[str], limit: int, owner: str, node: str) -> list[Claim]:
        found = self._queue.look(stages, self._clock.now())
        if not any(found):
            return []
        claims: list[Claim] = []
        resumed: list[Streak] = []
        try:
            with self._transaction(is_durable=False) as now:
                self._queue.promote(stages, now, PROMOTION_MAX)
                if found.probes:
                    self._probe(stages, limit, owner, now, claims, resumed)
                claims += self._queue.claim(stages, limit - len(claims), owner)
                self._session.record([_waypoint("received", each, now, node) for each in claims])
        except CommitUnknown:
            claims = self._found_ours(claims)
        for each in resumed:
            logger.warning(
                "%s succeeded with a probe and is paused no more", each.stage, extra={"event": "stage-resumed"}
            )
        # RETURNING promises no order.
        return sorted(claims, key=lambda claim: (claim.origin_at, claim.row))

    def _probe(
        self, stages: Sequence[str], limit: int, owner: str, now: int, claims: list[Claim], resumed: list[Streak]
    ) -> None:
        """Of each paused stage whose time it is: see what became of its probe, and claim the next one."""
        streaks = self._session.streaks
        for streak in streaks.due(stages, now)[:limit]:
            pause = streak.pause
            assert pause is not None, "only paused stages are probed"
            probe = pause.probe
            if probe is not None and streaks.is_claimed(probe.row):
                continue
            if probe is not None and self._session.reader.has_committed(streak.stage, probe.message_id):
                streaks.forget(streak.stage)
                resumed.append(streak)
                continue
            claim = streaks.claim_probe(streak.stage, owner, pause.next_end)
            if claim is not None:
                claims.append(claim)
            streaks.keep(streak.probing(None if claim is None else Probe(claim.row, claim.message_id)))

    def claim_suspect(self, stages: Sequence[str], owner: str, node: str) -> Claim | None:
        due_at = self._queue.pending(stages).next_suspect_at
        if due_at is None or due_at > self._clock.now():
            return None
        claim = None
        try:
            with self._transaction() as now:
                claim = self._queue.claim_suspect(stages, now, owner)
                if claim is not None:
                    self._session.record([_waypoint("received", claim, now, node, "alone")])
        except CommitUnknown:
            return next(iter(self._found_ours([claim] if claim else [])), None)
        return claim

    def release(self, claims: Sequence[Claim], node: str) -> None:
        if not claims:
            return
        with self._transaction() as now:
            returned = [each for each in claims if self._give_back(each, now)]
            self._session.record([_waypoint("returned", each, now, node) for each in returned])

    def owned(self, owner: str) -> list[Claim]:
        return self._queue.owned(owner)

    def unattended(self, owner: str, *, is_paused: bool = False) -> list[Claim]:
        return self._queue.unattended(owner, is_paused=is_paused)

    def owners(self) -> list[str]:
        return self._queue.owners()

    def waiting_stages(self) -> list[str]:
        return self._queue.waiting_stages()

    def pending(self, stages: Sequence[str]) -> Pending:
        pending = self._queue.pending(stages)
        held_at = self._next_held_at()
        moments = [each for each in (pending.next_due_at, held_at) if each is not None]
        stalled_probes = pending.stalled_probes if held_at is None else None
        return replace(pending, next_due_at=min(moments, default=None), stalled_probes=stalled_probes)

    def changed(self) -> bool:
        return self._queue.changed()

    def _found_ours(self, claims: Sequence[Claim]) -> list[Claim]:
        """Those whose rows say so: a claim that was made and forgotten would stay ours for as long as we live."""
        try:
            self._session.reconnect()
            return [claim for claim in claims if self._queue.holds(claim)]
        except StoreUnavailable as error:
            raise ClaimUnknown(str(error), claims) from error

    @contextmanager
    def _transaction(self, *, is_durable: bool = True) -> Iterator[int]:
        """Gives the time at which it began: other writers may have kept it waiting."""
        self._session.begin(is_durable=is_durable)
        try:
            yield self._clock.now()
            self._session.commit()
        except BaseException:
            self._session.rollback()
            raise

    def _give_back(self, claim: Claim, now: int) -> bool:
        if claim.deaths == 0:
            return self._queue.release(claim)
        return self.defer(claim, due_at=now, failures=claim.failures, deaths=claim.deaths)


def _new_row(outgoing: Outgoing, data: bytes) -> QueueRow:
    envelope = outgoing.envelope
    return QueueRow(
        envelope.to, envelope.message_id, envelope.flow_id, 0, 0, 0, envelope.origin_at, data, outgoing.due_at
    )


def _row_again(claim: Claim, due_at: int, failures: int, deaths: int) -> QueueRow:
    return QueueRow(
        claim.stage,
        claim.message_id,
        claim.flow_id,
        failures,
        deaths,
        claim.deliveries,
        claim.origin_at,
        claim.envelope,
        due_at,
    )


def _waypoint(name: WaypointName, claim: Claim, now: int, node: str, detail: str | None = None) -> Waypoint:
    return Waypoint(
        name,
        now,
        node,
        claim.stage,
        claim.message_id,
        claim.flow_id,
        claim.attempt,
        claim.origin_at,
        detail=detail,
    )
