"""How a stage's work, its message and what it sends come to be one: the seam between an attempt and its mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from stagepost.flow.claim import Claim
from stagepost.flow.inbox import Handled
from stagepost.flow.initiation import Acceptance, Verdict
from stagepost.transaction.outcome import Completed
from stagepost.transaction.seams import Session


class Demarcation(Protocol):
    """One thread's; ``session`` is the one that handlers work on."""

    @property
    def session(self) -> Session: ...

    def recognise(self, claim: Claim) -> None:
        """Before a message that may have been handled before is handled. Raises ``AlreadyHandled``, and ``IdConflict``
        where its id stood for other content then; ``StoreError``."""

    def begin(self, claim: Claim) -> None:
        """Open the handler's transaction, and let the message in. Raises what ``recognise`` raises, and
        ``LeaseLost``, at the latest with the commit."""

    def accept(self, acceptances: Sequence[Acceptance]) -> Sequence[Verdict]:
        """Start flows in the open transaction. Raises ``IdConflict``."""

    def complete(self, claim: Claim, completed: Completed, begin: Callable[[], None]) -> None:
        """Commit the work, the message and what it sends; ``begin`` opens the transaction where it is not open yet.

        Raises what ``begin`` raises: then nothing was settled, and it may be tried again.
        """

    def conclude(self, claim: Claim, handled: Handled) -> None:
        """Settle a message that was recognised. Raises as ``complete`` does."""

    def rollback(self) -> None:
        """Undo whatever is open."""

    def close(self) -> None:
        """No more attempts come."""
