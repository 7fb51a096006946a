"""Writing what comes from outside: the key is let in once, and with it the envelope is put into the queue.

``app.start``, ``app.initiate``, a stage's own initiations and Spark's bulk initiation all come through here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from stagepost.flow.envelope import Envelope, encode_envelope
from stagepost.flow.errors import IdConflict
from stagepost.flow.initiation import Acceptance, Outgoing, Verdict
from stagepost.flow.waypoint import Waypoint
from stagepost.transaction.publishing import addressed
from stagepost.transaction.seams import Outbox, Recording, Sender


class OutboxSession(Recording, Protocol):
    @property
    def outbox(self) -> Outbox: ...


def judge_acceptances(
    session: Recording, sender: Sender, acceptances: Sequence[Acceptance], now: int, node: str
) -> list[Verdict]:
    """Let in what is new, in the open transaction, and say of each what became of it; conflicts change nothing."""
    verdicts = session.accept(acceptances)
    started: list[tuple[Outgoing, bytes]] = []
    waypoints: list[Waypoint] = []
    for each, verdict in zip(acceptances, verdicts, strict=True):
        if verdict.outcome == "started":
            for outgoing in addressed(session, [each.outgoing]):
                data = encode_envelope(outgoing.envelope)
                started.append((outgoing, data))
                waypoints.append(accepted(outgoing.envelope, each.run_id, len(data), now, node))
    if started:
        sender.put(started)
        session.record(waypoints)
    return verdicts


def hold_acceptances(session: OutboxSession, acceptances: Sequence[Acceptance], now: int, node: str) -> list[Verdict]:
    """Like ``write_acceptances``, where the queue is in another database: a relay brings it there, and journals it."""
    verdicts = session.accept(acceptances)
    _check(acceptances, verdicts)
    started = [each for each, verdict in zip(acceptances, verdicts, strict=True) if verdict.outcome == "started"]
    if started:
        session.outbox.hold(started, now, node)
    return verdicts


def write_acceptances(
    session: Recording, sender: Sender, acceptances: Sequence[Acceptance], now: int, node: str
) -> list[Verdict]:
    """All or nothing: raises ``IdConflict`` for the first key that stood for other content."""
    verdicts = judge_acceptances(session, sender, acceptances, now, node)
    _check(acceptances, verdicts)
    return verdicts


def _check(acceptances: Sequence[Acceptance], verdicts: Sequence[Verdict]) -> None:
    for each, verdict in zip(acceptances, verdicts, strict=True):
        if verdict.outcome == "conflict":
            raise IdConflict(each.scope, each.key, verdict.digest, each.digest, flow_id=each.outgoing.envelope.flow_id)


def accepted(envelope: Envelope, run_id: str | None, size: int, now: int, node: str) -> Waypoint:
    return Waypoint(
        waypoint="accepted",
        at=now,
        node=node,
        stage=envelope.to,
        message_id=envelope.message_id,
        flow_id=envelope.flow_id,
        attempt=0,
        origin_at=envelope.origin_at,
        kind=envelope.kind,
        ordinal=envelope.ordinal,
        bytes=size,
        detail=run_id,
    )
