"""One thread's hold on the queue: taking a claimed message, putting what was produced, and knowing whether it stood.

Every mode ends in it, for in every mode one commit of the queue's database says that a message is done.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from msgspec import structs

from stagepost.flow.claim import Claim
from stagepost.flow.clock import Clock
from stagepost.flow.envelope import Envelope, encode_envelope
from stagepost.flow.errors import CommitUnknown, LeaseLost, StoreUnavailable
from stagepost.flow.initiation import Outgoing
from stagepost.flow.produced import Produced
from stagepost.flow.waypoint import Waypoint, WaypointName
from stagepost.recovery.deadletter import DeadLetter, unsendable
from stagepost.transaction.publishing import addressed
from stagepost.transaction.seams import Session, Transport
from stagepost.transaction.steps import StepListener

logger = logging.getLogger(__name__)


class Post:
    def __init__(self, session: Session, transport: Transport, clock: Clock, node: str, listener: StepListener) -> None:
        self.session = session
        self.transport = transport
        self.clock = clock
        self.node = node
        self.listener = listener

    def take(self, claim: Claim) -> None:
        """Open a transaction, whose first statement takes the message."""
        self.session.begin()
        self.transport.take(claim)

    def produced(self, claim: Claim, outgoing: Sequence[Outgoing], ms: float, detail: str | None = None) -> Produced:
        """What the run came to, serialised."""
        sends = [(each, encode_envelope(each.envelope)) for each in outgoing]
        return Produced(self.clock.now(), self.node, claim.attempt, ms, detail, sends)

    def put(self, claim: Claim, produced: Produced) -> None:
        """Send it, and say so in the journal, in the open transaction."""
        self.put_all([(claim, produced)])

    def put_all(self, handled: Sequence[tuple[Claim, Produced]]) -> None:
        """Of several messages that share it."""
        sends: list[tuple[Outgoing, bytes]] = []
        waypoints: list[Waypoint] = []
        for claim, unaddressed in handled:
            produced = self.addressed(unaddressed)
            waypoints.append(_committed(claim, produced))
            waypoints += [_sent(each.envelope, len(data), produced.at, produced.node) for each, data in produced.sends]
            sends += produced.sends
        if sends:
            self.transport.put(sends)
        self.session.record(waypoints)

    def addressed(self, produced: Produced) -> Produced:
        """With a copy for each subscriber in place of what it publishes."""
        if all(each.topic is None for each, _ in produced.sends):
            return produced
        encoded = {each.envelope.message_id: data for each, data in produced.sends if each.topic is None}
        copies = addressed(self.session, [each for each, _ in produced.sends])
        sends = [(each, encoded.get(each.envelope.message_id) or encode_envelope(each.envelope)) for each in copies]
        return structs.replace(produced, sends=sends)

    def put_one(self, outgoing: Outgoing, data: bytes, produced: Produced) -> None:
        self.transport.put([(outgoing, data)])
        self.session.record([_sent(outgoing.envelope, len(data), produced.at, produced.node)])

    def bury(self, envelope: Envelope, data: bytes, error: BaseException) -> DeadLetter:
        """What the queue will never take."""
        letter = unsendable(envelope, data, error, self.clock.now(), self.node)
        self.session.bury(letter)
        ids = {"message_id": letter.message_id, "flow_id": letter.flow_id}
        logger.error(
            "%s to %s cannot be sent, and is a dead letter: %s",
            letter.message_id,
            letter.stage,
            letter.summary,
            extra={"event": "unsendable", **ids},
        )
        return letter

    def bury_unsendable(self, outgoing: Outgoing, data: bytes, produced: Produced, error: BaseException) -> None:
        """It was sent, as far as its stage is concerned, and died on its way."""
        envelope = outgoing.envelope
        letter = self.bury(envelope, data, error)
        self.session.record([_sent(envelope, len(data), produced.at, produced.node), self.dead_on_its_way(letter)])

    def dead_on_its_way(self, letter: DeadLetter) -> Waypoint:
        flow = letter.message_id, letter.flow_id, 0, letter.origin_at
        detail = f"{letter.reason} {letter.fingerprint}"
        return Waypoint("dead", letter.dead_at, self.node, letter.stage, *flow, detail=detail)

    def note(self, claim: Claim, name: WaypointName, detail: str, ms: float | None = None) -> None:
        at = self.clock.now()
        flow = claim.message_id, claim.flow_id, claim.attempt, claim.origin_at
        self.session.record([Waypoint(name, at, self.node, claim.stage, *flow, ms=ms, detail=detail)])

    def commit(self, claim: Claim) -> None:
        """Raises ``StoreUnavailable`` where an unanswered commit turns out not to have stood."""
        try:
            self.session.commit()
        except CommitUnknown:
            self._check_let_go([claim])

    def commit_completed(self, claims: Sequence[Claim]) -> None:
        """What says of each that it was committed. Raises as ``commit`` does, and ``LeaseLost`` where it did not stand
        and they are somebody else's by now."""
        try:
            self.session.commit()
        except CommitUnknown:
            self._check_let_go(claims)
            # One that was taken over while nobody answered is not ours any more either; the journal tells them apart.
            lost = [each for each in claims if not self.session.reader.has_committed(each.stage, each.message_id)]
            if lost:
                raise LeaseLost(lost[0].message_id) from None

    def _check_let_go(self, claims: Sequence[Claim]) -> None:
        """The row itself knows: still as we claimed it, the commit did not stand."""
        self.session.reconnect()
        for claim in claims:
            if self.transport.holds(claim):
                raise StoreUnavailable(f"the commit of {claim.message_id} at {claim.stage} did not stand") from None


def _committed(claim: Claim, produced: Produced) -> Waypoint:
    return Waypoint(
        "committed",
        produced.at,
        produced.node,
        claim.stage,
        claim.message_id,
        claim.flow_id,
        produced.attempt,
        claim.origin_at,
        ms=produced.ms,
        detail=produced.detail,
    )


def _sent(envelope: Envelope, size: int, now: int, node: str) -> Waypoint:
    return Waypoint(
        "sent",
        now,
        node,
        envelope.to,
        envelope.message_id,
        envelope.flow_id,
        0,
        envelope.origin_at,
        envelope.cause_id,
        envelope.kind,
        envelope.ordinal,
        None,
        size,
        envelope.sender,
    )
