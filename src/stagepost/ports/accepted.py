"""The accepted ids: which ids were let in from outside, each with a digest of its content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from stagepost.flow.initiation import Acceptance, Verdict


class Accepted(Protocol):
    """The accepted ids' part of a session."""

    def accept(self, acceptances: Sequence[Acceptance]) -> list[Verdict]:
        """Let each new id in, in the open transaction, and return a verdict for each.

        Raises ``StoreContention`` where another open transaction has let one of the ids in and does not end.
        """
