"""The accepted ids: the ids of started flows, each with a digest of its content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from stagepost.flow.initiation import Acceptance, Verdict


class Accepted(Protocol):
    """The accepted ids' part of a session."""

    def accept(self, acceptances: Sequence[Acceptance], *, is_patient: bool = True) -> list[Verdict]:
        """Accept each new id in the open transaction, and return a verdict for each.

        Raises ``StoreContention`` where another open transaction has accepted one of the ids and does not end: after
        half a minute, or after two seconds for a caller that is not patient.
        """
