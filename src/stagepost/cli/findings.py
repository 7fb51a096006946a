"""Keep an audit's findings: as rows of the store, and as messages to an endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from stagepost.app.app import App
from stagepost.flow.ids import from_key
from stagepost.flow.target import Target
from stagepost.ports.audits import AuditFinding, FindingKind
from stagepost.ports.session import Session

KINDS: tuple[FindingKind, ...] = ("lost", "doubled", "stuck")
APP = "stagepost.audit"
FLOW_PREFIX = "audit:"


def findings_of(found: Mapping[str, Any]) -> list[AuditFinding]:
    """Return the listed findings of a report: at most 100 of each kind."""
    return [
        AuditFinding(kind, row["stage"], row["message_id"], row["flow_id"], row.get("how", ""))
        for kind in KINDS
        for row in found[kind]
    ]


def keep(session: Session, findings: list[AuditFinding], now: int) -> None:
    """Write the findings into the store, in a transaction of its own."""
    if not findings:
        return
    session.begin()
    try:
        session.audits.note(findings, now)
    except BaseException:
        session.rollback()
        raise
    session.commit()


def send(endpoint: str, database: str | None, findings: list[AuditFinding]) -> int:
    """Start a flow for each finding, and return how many are new.

    The flow id follows from the finding, so a repeated audit sends each finding once. A finding about a message that
    was sent here is left out: it would make another one in the next audit, and so on.
    """
    others = [each for each in findings if not each.flow_id.startswith(FLOW_PREFIX)]
    with closing(App(APP, database=database)) as app:
        target: Target[AuditFinding, Any] = app.remote(endpoint, AuditFinding)
        return sum(app.start(target, each, flow_id=flow_id_of(each)).is_new for each in others)


def flow_id_of(finding: AuditFinding) -> str:
    # Stages and ids may be as long as a flow id may be, so the flow id holds a digest of them.
    digest = from_key(finding.message_id, f"{finding.stage} {finding.detail}", 0)
    return f"{FLOW_PREFIX}{finding.kind}:{digest}"
