"""Build the rows that a transaction writes: rows of the queue, and lines of the journal."""

from __future__ import annotations

from stagepost.flow.claim import Claim
from stagepost.flow.envelope import Envelope
from stagepost.flow.initiation import Outgoing
from stagepost.flow.produced import Produced
from stagepost.ports.dead_letters import DeadLetter
from stagepost.ports.journal import Waypoint, WaypointName
from stagepost.ports.queue import QueueRow


def new_row(outgoing: Outgoing, data: bytes) -> QueueRow:
    """Build the queue row of a sent envelope and its encoding."""
    to = outgoing.envelope
    return QueueRow(to.to, to.message_id, to.flow_id, 0, 0, 0, to.origin_at, data, outgoing.due_at)


def row_again(claim: Claim, due_at: int, failures: int, deaths: int) -> QueueRow:
    """Build the queue row of a claimed message that is put back."""
    ids = claim.stage, claim.message_id, claim.flow_id
    return QueueRow(*ids, failures, deaths, claim.deliveries, claim.origin_at, claim.envelope, due_at)


def row_revived(letter: DeadLetter, now: int, *, deaths: int, failures: int = 0) -> QueueRow:
    """Build the queue row of a dead letter's message; with ``deaths`` it is a suspect, due at once."""
    ids = letter.stage, letter.message_id, letter.flow_id
    due_at = now if deaths else None
    return QueueRow(*ids, failures, deaths, letter.deliveries, letter.origin_at, letter.envelope, due_at)


def line_of_claim(
    name: WaypointName, claim: Claim, now: int, node: str, detail: str | None = None, ms: float | None = None
) -> Waypoint:
    """Build a line about a claimed message."""
    flow = claim.message_id, claim.flow_id, claim.attempt, claim.origin_at
    return Waypoint(name, now, node, claim.stage, *flow, ms=ms, detail=detail)


def line_of_letter(name: WaypointName, letter: DeadLetter, now: int, node: str, detail: str) -> Waypoint:
    """Build a line about a dead letter."""
    flow = letter.message_id, letter.flow_id, letter.failures + letter.deaths, letter.origin_at
    return Waypoint(name, now, node, letter.stage, *flow, detail=detail)


def accepted_line(envelope: Envelope, run_id: str | None, size: int, now: int, node: str) -> Waypoint:
    """Build the line of an envelope that was accepted from outside."""
    flow = envelope.message_id, envelope.flow_id, 0, envelope.origin_at, None
    kind = envelope.kind, envelope.ordinal
    return Waypoint("accepted", now, node, envelope.to, *flow, *kind, None, size, run_id)


def sent_line(envelope: Envelope, size: int, now: int, node: str, sender: str | None = None) -> Waypoint:
    """Build the line of an envelope that a stage sent. ``sender`` replaces the envelope's own."""
    flow = envelope.message_id, envelope.flow_id, 0, envelope.origin_at, envelope.cause_id
    kind = envelope.kind, envelope.ordinal
    return Waypoint("sent", now, node, envelope.to, *flow, *kind, None, size, sender or envelope.sender)


def committed_line(claim: Claim, produced: Produced) -> Waypoint:
    """Build the line of a handled message. An outbox may send it long after the handler ran."""
    flow = claim.message_id, claim.flow_id, produced.attempt, claim.origin_at
    return Waypoint("committed", produced.at, produced.node, claim.stage, *flow, ms=produced.ms, detail=produced.detail)
