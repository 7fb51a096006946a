"""Start flows under ``best_effort``: the database commits the ids, and then the broker gets the messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from stagepost.flow.codec import encode_envelope
from stagepost.flow.initiation import Acceptance, Outgoing, Verdict
from stagepost.ports.broker import BrokerConnection, Publication
from stagepost.ports.journal import Waypoint
from stagepost.ports.session import Session
from stagepost.transaction.enqueueing import (
    Routing,
    accepted_line,
    addressed,
    check_verdicts,
    confirmed_line,
    doubted_line,
    new_row,
)
from stagepost.transaction.publication import publication_at


class DirectSend(NamedTuple):
    """A message to send after the commit of its id, and the acceptance that it belongs to."""

    acceptance: Acceptance
    outgoing: Outgoing
    data: bytes
    place: str

    @property
    def publication(self) -> Publication:
        envelope = self.outgoing.envelope
        return publication_at(self.place, envelope.message_id, envelope.flow_id, self.data)

    def waits(self, connection: BrokerConnection) -> bool:
        """Say whether the broker cannot take it now."""
        limit = connection.features.body_bytes_max
        return self.outgoing.due_at is not None or (limit is not None and len(self.data) > limit)


def accept_directly(
    session: Session,
    acceptances: Sequence[Acceptance],
    connection: BrokerConnection,
    now: int,
    node: str,
    routing: Routing,
) -> tuple[list[Verdict], list[DirectSend]]:
    """Accept and mark the new ids in the open transaction. Returns the messages to send after its commit.

    A known id with a mark belongs to a start whose messages may not have left. Outbound rows send them now. If one new
    message cannot go to the broker at once, all new ones become outbound rows. Raises ``IdConflict``.
    """
    verdicts = session.accepted.accept([replace(each, is_direct=True) for each in acceptances])
    check_verdicts(acceptances, verdicts)
    new = [each for each, verdict in zip(acceptances, verdicts, strict=True) if verdict.outcome == "started"]
    keys = {(each.scope, each.key) for each in new}
    again = [
        each
        for each in acceptances
        if (each.scope, each.key) not in keys and session.edge.clear_mark(each.scope, each.key)
    ]
    lines: list[Waypoint] = []
    sends = _sends(session, new, routing)
    rows = _sends(session, again, routing)
    lines += [doubted_line(each.outgoing.envelope, each.place, now, node) for each in rows]
    is_direct = not (connection.is_blocked or any(each.waits(connection) for each in sends))
    lines += [
        accepted_line(each.outgoing.envelope, each.place, None, len(each.data), now, node, is_direct=is_direct)
        for each in sends
    ]
    if not is_direct:
        rows, sends = [*rows, *sends], []
        for each in new:
            session.edge.clear_mark(each.scope, each.key)
    if rows:
        session.queue.enqueue([new_row(each.outgoing, each.data, each.place) for each in rows])
    if lines:
        session.journal.record(lines)
    return verdicts, sends


def note_confirmed(session: Session, sends: Sequence[DirectSend], now: int, node: str) -> None:
    """Journal messages that the broker has, and remove the marks of their ids, in the open transaction."""
    session.journal.record([confirmed_line(each.outgoing.envelope, each.place, now, node, "") for each in sends])
    for scope, key in sorted({(each.acceptance.scope, each.acceptance.key) for each in sends}):
        session.edge.clear_mark(scope, key)


def _sends(session: Session, acceptances: Sequence[Acceptance], routing: Routing) -> list[DirectSend]:
    pairs = [(each, sent) for each in acceptances for sent in addressed(session, [each.outgoing], routing)]
    places = routing.places(session, [sent for _, sent in pairs])
    return [
        DirectSend(each, sent, encode_envelope(sent.envelope), place)
        for (each, sent), place in zip(pairs, places, strict=True)
    ]
