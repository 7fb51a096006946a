"""Writing what comes from outside: the key is let in once, and with it the envelope is put into the queue.

``app.start``, ``app.initiate``, a stage's own initiations and Spark's bulk initiation all come through here.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagepost.flow.envelope import encode_envelope
from stagepost.flow.errors import IdConflict
from stagepost.flow.initiation import Acceptance, Outgoing, Verdict
from stagepost.flow.waypoint import Waypoint
from stagepost.transaction.seams import Recording, Sender


def judge_acceptances(
    session: Recording, sender: Sender, acceptances: Sequence[Acceptance], now: int, node: str
) -> list[Verdict]:
    """Let in what is new, in the open transaction, and say of each what became of it; conflicts change nothing."""
    verdicts: list[Verdict] = []
    started: list[tuple[Outgoing, bytes]] = []
    waypoints: list[Waypoint] = []
    for each in acceptances:
        verdict = session.accept(each)
        verdicts.append(verdict)
        if verdict.outcome == "started":
            data = encode_envelope(each.outgoing.envelope)
            started.append((each.outgoing, data))
            waypoints.append(_accepted(each, len(data), now, node))
    if started:
        sender.put(started)
        session.record(waypoints)
    return verdicts


def write_acceptances(
    session: Recording, sender: Sender, acceptances: Sequence[Acceptance], now: int, node: str
) -> list[Verdict]:
    """All or nothing: raises ``IdConflict`` for the first key that stood for other content."""
    verdicts = judge_acceptances(session, sender, acceptances, now, node)
    for each, verdict in zip(acceptances, verdicts, strict=True):
        if verdict.outcome == "conflict":
            raise IdConflict(each.scope, each.key, verdict.digest, each.digest, flow_id=each.outgoing.envelope.flow_id)
    return verdicts


def _accepted(acceptance: Acceptance, size: int, now: int, node: str) -> Waypoint:
    envelope = acceptance.outgoing.envelope
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
        detail=acceptance.run_id,
    )
