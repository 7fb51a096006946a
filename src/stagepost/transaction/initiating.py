"""Write acceptances: accept each key once, and in the same transaction put its envelope into the queue.

``app.start``, ``app.initiate``, a stage's own initiations and Spark's bulk initiation all use this module.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagepost.flow.envelope import encode_envelope
from stagepost.flow.errors import IdConflict
from stagepost.flow.initiation import Acceptance, Outgoing, Verdict
from stagepost.ports.journal import Waypoint
from stagepost.ports.session import JoinedSession
from stagepost.transaction.publishing import addressed
from stagepost.transaction.rows import accepted_line, new_row


def judge_acceptances(session: JoinedSession, acceptances: Sequence[Acceptance], now: int, node: str) -> list[Verdict]:
    """Accept the new ones in the open transaction, and return a verdict for each. Conflicts change nothing."""
    verdicts = session.accepted.accept(acceptances)
    started: list[tuple[Outgoing, bytes]] = []
    waypoints: list[Waypoint] = []
    for each, verdict in zip(acceptances, verdicts, strict=True):
        if verdict.outcome == "started":
            sent = [each.outgoing]
            for outgoing in sent if each.outgoing.topic is None else addressed(session, sent):
                data = encode_envelope(outgoing.envelope)
                started.append((outgoing, data))
                waypoints.append(accepted_line(outgoing.envelope, each.run_id, len(data), now, node))
    if started:
        session.queue.enqueue([new_row(outgoing, data) for outgoing, data in started])
        session.journal.record(waypoints)
    return verdicts


def hold_acceptances(session: JoinedSession, acceptances: Sequence[Acceptance], now: int, node: str) -> list[Verdict]:
    """Write acceptances whose queue is in another database, all or none. Raises ``IdConflict``.

    The outbox holds their envelopes. The relay sends them to the queue and journals them.
    """
    verdicts = session.accepted.accept(acceptances)
    _check(acceptances, verdicts)
    started = [each for each, verdict in zip(acceptances, verdicts, strict=True) if verdict.outcome == "started"]
    if started:
        session.outbox.hold(started, now, node)
    return verdicts


def write_acceptances(session: JoinedSession, acceptances: Sequence[Acceptance], now: int, node: str) -> list[Verdict]:
    """Write acceptances, all or none. Raises ``IdConflict`` for the first key that was accepted with other content."""
    verdicts = judge_acceptances(session, acceptances, now, node)
    _check(acceptances, verdicts)
    return verdicts


def _check(acceptances: Sequence[Acceptance], verdicts: Sequence[Verdict]) -> None:
    for each, verdict in zip(acceptances, verdicts, strict=True):
        if verdict.outcome == "conflict":
            raise IdConflict(each.scope, each.key, verdict.digest, each.digest, flow_id=each.outgoing.envelope.flow_id)
