"""Put messages into the queue, and write the journal's lines about them.

Callers, stages and Spark's bulk initiation start flows by ``judge_acceptances`` and the two functions below it. Each
key is accepted once, and the same transaction puts its envelope into the queue or the outbox.

A publication is sent to the subscribers that the store knows when the publishing transaction commits.

Every new row gets its stage from a ``Routing``. With a broker, a message to another store is an *outbound row*.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence

import msgspec

from stagepost.flow import ids
from stagepost.flow.claim import Claim
from stagepost.flow.codec import encode_envelope
from stagepost.flow.envelope import Envelope
from stagepost.flow.initiation import Acceptance, Outgoing, Verdict
from stagepost.flow.produced import Produced
from stagepost.flow.target import OUTBOUND_PREFIX, broker_address_of_reply, store_of_reply
from stagepost.ports.broker import is_topic, topic_address
from stagepost.ports.dead_letters import DeadLetter
from stagepost.ports.journal import Waypoint, WaypointName
from stagepost.ports.queue import QueueRow
from stagepost.ports.session import JoinedSession


class Routing:
    """Decide where a new message waits. This one is for apps without a broker: every message waits for its stage."""

    def places(self, session: JoinedSession, outgoing: Sequence[Outgoing]) -> list[str]:
        """Return the stage of the queue row of each message, in the transaction that sends it."""
        return [each.envelope.to for each in outgoing]

    def has_subscribers_here(self, published: Outgoing) -> bool:
        """Say whether a publication sends copies to the subscribers of this store."""
        return True

    def publication(self, published: Outgoing, topic: str) -> list[Outgoing]:
        """Return the publication for the subscribers of other stores, if there can be any."""
        return []


class BrokerRouting(Routing):
    """Send over the broker what no app of this store declares.

    ``own``       the stages of this app
    ``store``     returns the store's uuid, which private reply addresses name
    ``is_local``  False sends every message over the broker, also those to stages of this store
    ``direct``    the stages that consume from the broker directly. All that they send goes over it, also if a stored
                  copy of a message runs. So the copies of a first run are recognised by their ids.

    The declarations are read in the sender's transaction, and only for addresses that are not the app's own. A copy of
    a publication is for a subscriber of this store. It stays here, even if its app no longer declares the subscriber.
    """

    def __init__(
        self, own: Collection[str], store: Callable[[], str], *, is_local: bool, direct: Collection[str] = ()
    ) -> None:
        self._own = own
        self._store = store
        self._is_local = is_local
        self._direct = direct

    def places(self, session: JoinedSession, outgoing: Sequence[Outgoing]) -> list[str]:
        staying = [each for each in outgoing if self._may_stay(each)]
        ours = self._ours(session, staying) if staying else set()
        return [
            to if to in ours and self._may_stay(each) else f"{OUTBOUND_PREFIX}{broker_address_of_reply(to) or to}"
            for each, to in ((each, each.envelope.to) for each in outgoing)
        ]

    def _may_stay(self, outgoing: Outgoing) -> bool:
        return self._is_local and outgoing.envelope.sender not in self._direct

    def has_subscribers_here(self, published: Outgoing) -> bool:
        return self._may_stay(published)

    def publication(self, published: Outgoing, topic: str) -> list[Outgoing]:
        by = self._store() if self._may_stay(published) else None
        envelope = msgspec.structs.replace(published.envelope, to=topic_address(topic), published_by=by)
        return [Outgoing(envelope, published.due_at)]

    def _ours(self, session: JoinedSession, outgoing: Sequence[Outgoing]) -> set[str]:
        ours: set[str] = set()
        others: set[str] = set()
        for each in outgoing:
            to = each.envelope.to
            store = store_of_reply(to)
            is_copy = each.envelope.kind == "publish" and not is_topic(to)
            if to in self._own or is_copy or (store is not None and store == self._store()):
                ours.add(to)
            elif store is None and not is_topic(to):
                others.add(to)
        return ours | session.declarations.declared(sorted(others)) if others else ours


WITHOUT_BROKER = Routing()


def judge_acceptances(
    session: JoinedSession,
    acceptances: Sequence[Acceptance],
    now: int,
    node: str,
    routing: Routing,
    *,
    is_patient: bool = True,
) -> list[Verdict]:
    """Accept and enqueue the new ones in the open transaction, and return all verdicts. Conflicts change nothing."""
    verdicts = session.accepted.accept(acceptances, is_patient=is_patient)
    started: list[tuple[Outgoing, str | None]] = []
    for each, verdict in zip(acceptances, verdicts, strict=True):
        if verdict.outcome == "started":
            sent = [each.outgoing]
            started += [
                (outgoing, each.run_id)
                for outgoing in (sent if each.outgoing.topic is None else addressed(session, sent, routing))
            ]
    if started:
        rows: list[QueueRow] = []
        waypoints: list[Waypoint] = []
        places = routing.places(session, [outgoing for outgoing, _ in started])
        for (outgoing, run_id), place in zip(started, places, strict=True):
            data = encode_envelope(outgoing.envelope)
            rows.append(new_row(outgoing, data, place))
            waypoints.append(accepted_line(outgoing.envelope, place, run_id, len(data), now, node))
        session.queue.enqueue(rows)
        session.journal.record(waypoints)
    return verdicts


def judge_held(
    session: JoinedSession, acceptances: Sequence[Acceptance], now: int, node: str, *, is_patient: bool = True
) -> list[Verdict]:
    """Accept the new ones, whose queue is in another database, and return all verdicts. Conflicts change nothing.

    The outbox holds their envelopes. The relay sends them to the queue and journals them.
    """
    verdicts = session.accepted.accept(acceptances, is_patient=is_patient)
    started = [each for each, verdict in zip(acceptances, verdicts, strict=True) if verdict.outcome == "started"]
    if started:
        session.outbox.hold(started, now, node)
    return verdicts


def hold_acceptances(session: JoinedSession, acceptances: Sequence[Acceptance], now: int, node: str) -> list[Verdict]:
    """Write acceptances whose queue is in another database, all or none. Raises ``IdConflict``."""
    verdicts = judge_held(session, acceptances, now, node)
    check_verdicts(acceptances, verdicts)
    return verdicts


def write_acceptances(
    session: JoinedSession, acceptances: Sequence[Acceptance], now: int, node: str, routing: Routing
) -> list[Verdict]:
    """Write acceptances, all or none. Raises ``IdConflict`` for the first key that was accepted with other content."""
    verdicts = judge_acceptances(session, acceptances, now, node, routing)
    check_verdicts(acceptances, verdicts)
    return verdicts


def check_verdicts(acceptances: Sequence[Acceptance], verdicts: Sequence[Verdict]) -> None:
    """Raise ``IdConflict`` for the first key that was accepted with other content."""
    for each, verdict in zip(acceptances, verdicts, strict=True):
        if verdict.outcome == "conflict":
            raise each.conflict(verdict)


def addressed(session: JoinedSession, outgoing: Sequence[Outgoing], routing: Routing) -> Sequence[Outgoing]:
    """Replace each publication by a copy for each subscriber. Reads the store only if there is a publication.

    With a broker the publication itself leaves too, for the subscribers of other stores.

    A copy's id follows from the publication's id and the subscriber, and so depends on no other subscriber. Its ordinal
    is its place among the copies for this subscriber.
    """
    if all(each.topic is None for each in outgoing):
        return outgoing
    topics = {each.topic for each in outgoing if each.topic is not None and routing.has_subscribers_here(each)}
    subscribers: defaultdict[str, list[str]] = defaultdict(list)
    for subscription in sorted(session.subscriptions.listed(sorted(topics)) if topics else []):
        subscribers[subscription.topic].append(subscription.subscriber)
    ordinals: Counter[str] = Counter()
    copies: list[Outgoing] = []
    for each in outgoing:
        if each.topic is None:
            copies.append(each)
            continue
        for subscriber in subscribers[each.topic]:
            copies.append(_copy(each, subscriber, ordinals[subscriber]))
            ordinals[subscriber] += 1
        copies += routing.publication(each, each.topic)
    return copies


def _copy(published: Outgoing, subscriber: str, ordinal: int) -> Outgoing:
    envelope = published.envelope
    message_id = ids.of_copy(envelope.message_id, envelope.to, subscriber)
    copy = msgspec.structs.replace(envelope, message_id=message_id, to=subscriber, ordinal=ordinal)
    return Outgoing(copy, published.due_at)


def new_row(outgoing: Outgoing, data: bytes, place: str) -> QueueRow:
    """Build the queue row of a sent envelope and its encoding. ``place`` is the row's stage, from a ``Routing``."""
    to = outgoing.envelope
    return QueueRow(place, to.message_id, to.flow_id, 0, 0, 0, to.origin_at, data, outgoing.due_at)


def row_again(claim: Claim, due_at: int, failures: int, deaths: int) -> QueueRow:
    """Build the queue row of a claimed message that is put back."""
    ids = claim.stage, claim.message_id, claim.flow_id
    return QueueRow(*ids, failures, deaths, claim.deliveries, claim.origin_at, claim.envelope, due_at)


def row_revived(letter: DeadLetter, now: int, *, deaths: int, failures: int = 0) -> QueueRow:
    """Build the queue row of a dead letter's message; with ``deaths`` it is a suspect, due at once."""
    ids = letter.stage, letter.message_id, letter.flow_id
    due_at = now if deaths else None
    return QueueRow(*ids, failures, deaths, letter.deliveries, letter.origin_at, letter.envelope, due_at)


def attempt_of(claim: Claim) -> int:
    """Return the number of the claim's attempt, from 1 on."""
    return claim.failures + claim.deaths + 1


def line_of_claim(
    name: WaypointName, claim: Claim, now: int, node: str, detail: str | None = None, ms: float | None = None
) -> Waypoint:
    """Build a line about a claimed message."""
    flow = claim.message_id, claim.flow_id, attempt_of(claim), claim.origin_at
    return Waypoint(name, now, node, claim.stage, *flow, ms=ms, detail=detail)


def line_of_letter(name: WaypointName, letter: DeadLetter, now: int, node: str, detail: str) -> Waypoint:
    """Build a line about a dead letter."""
    flow = letter.message_id, letter.flow_id, letter.failures + letter.deaths, letter.origin_at
    return Waypoint(name, now, node, letter.stage, *flow, detail=detail)


def accepted_line(
    envelope: Envelope, place: str, run_id: str | None, size: int, now: int, node: str, *, is_direct: bool = False
) -> Waypoint:
    """Build the line of an envelope that was accepted from outside. ``place`` is its row's stage.

    An ``is_direct`` envelope goes over the broker without a row.
    """
    flow = envelope.message_id, envelope.flow_id, int(is_direct), envelope.origin_at, None
    kind = envelope.kind, envelope.ordinal
    return Waypoint("accepted", now, node, place, *flow, *kind, None, size, run_id)


def sent_line(
    envelope: Envelope,
    place: str,
    size: int,
    now: int,
    node: str,
    sender: str | None = None,
    *,
    is_direct: bool = False,
) -> Waypoint:
    """Build the line of an envelope that a stage sent. ``sender`` replaces the envelope's own.

    An ``is_direct`` envelope goes over the broker without a row.
    """
    flow = envelope.message_id, envelope.flow_id, int(is_direct), envelope.origin_at, envelope.cause_id
    kind = envelope.kind, envelope.ordinal
    return Waypoint("sent", now, node, place, *flow, *kind, None, size, sender or envelope.sender)


def confirmed_line(envelope: Envelope, place: str, now: int, node: str, detail: str) -> Waypoint:
    """Build the line of an envelope that a stage sent over the broker itself. ``place`` is its outbound stage."""
    flow = envelope.message_id, envelope.flow_id, 1, envelope.origin_at
    return Waypoint("confirmed", now, node, place, *flow, detail=detail)


def doubted_line(envelope: Envelope, place: str, now: int, node: str) -> Waypoint:
    """Build the line of an envelope that was started again, because its first start may not have sent it."""
    flow = envelope.message_id, envelope.flow_id, 0, envelope.origin_at
    return Waypoint("doubted", now, node, place, *flow, detail="it was started again, and may have been sent before")


def committed_line(claim: Claim, produced: Produced) -> Waypoint:
    """Build the line of a handled message. An outbox may send it long after the handler ran."""
    flow = claim.message_id, claim.flow_id, produced.attempt, claim.origin_at
    return Waypoint("committed", produced.at, produced.node, claim.stage, *flow, ms=produced.ms, detail=produced.detail)
