"""Capability: the findings of audits, each kept once, and the states from which audits continue."""

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


class NamedState(NamedTuple):
    """The state from which the next audit of a series continues: its folder, and the journal's position it ends at."""

    folder: str
    position: str


class Audits(Protocol):
    """The audits' part of a session. Writes happen in its open transaction."""

    def note(self, findings: Sequence[AuditFinding], now: int) -> None:
        """Keep findings. One that is known gets a new ``last_at``."""

    def findings(self, limit: int) -> list[KeptFinding]:
        """Return the latest findings, by ``last_at``, then by kind, stage and message."""

    def state(self, series: str) -> NamedState | None:
        """Return the named state of a series of audits, or None."""

    def name_state(self, series: str, former: NamedState | None, state: NamedState, now: int) -> bool:
        """Name a state in place of ``former``. Returns False, and changes nothing, if another one is named by now."""
