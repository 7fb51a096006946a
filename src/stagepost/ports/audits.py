"""Capability: the findings of audits, each kept once however often an audit repeats it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

FindingKind = Literal["lost", "doubled", "stuck"]


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """A message about which an audit found something. It holds nothing that differs between two audits.

    ``detail``  how a message was doubled, or an empty text
    """

    kind: FindingKind
    stage: str
    message_id: str
    flow_id: str
    detail: str = ""


class KeptFinding(NamedTuple):
    """A finding of the store, with the moments of the first and of the latest audit that made it."""

    finding: AuditFinding
    first_at: int
    last_at: int


class Audits(Protocol):
    """The audits' part of a session. Writes happen in its open transaction."""

    def note(self, findings: Sequence[AuditFinding], now: int) -> None:
        """Keep findings. One that is known gets a new ``last_at``."""

    def findings(self, limit: int) -> list[KeptFinding]:
        """Return the latest findings, by ``last_at``, then by kind, stage and message."""
