"""The queue of a store: the messages that wait, and the claims on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from stagepost.flow.claim import Claim

# So many delayed messages become claimable with one claim, at most.
PROMOTION_MAX = 500


class QueueRow(NamedTuple):
    """A message to enqueue.

    The values decide where it waits: a message with ``deaths`` is a suspect, one with a ``due_at`` is delayed, and any
    other can run now.
    """

    stage: str
    message_id: str
    flow_id: str
    failures: int
    deaths: int
    deliveries: int
    origin_at: int
    envelope: bytes
    due_at: int | None


class Look(NamedTuple):
    """The answer of ``look``: there are messages to claim, or probes of paused stages to claim or to check."""

    messages: bool
    probes: bool


@dataclass(frozen=True, slots=True)
class Pending:
    """The work that is left for some stages.

    ``ready``            a message can run now; messages of a paused stage do not count
    ``claimed``          a message is claimed by some owner
    ``next_due_at``      when the first delayed message, or the first probe of a paused stage, is due; None for neither
    ``next_suspect_at``  when the first suspect is due; None where there is none
    ``stalled_probes``   where only messages of paused stages are left and several probes failed, how many failed;
                         else None
    """

    ready: bool
    claimed: bool
    next_due_at: int | None
    next_suspect_at: int | None
    stalled_probes: int | None = None

    @property
    def is_drained_but_for_suspects(self) -> bool:
        return not (self.ready or self.claimed) and self.next_due_at is None

    @property
    def is_drained(self) -> bool:
        return self.is_drained_but_for_suspects and self.next_suspect_at is None


@dataclass(frozen=True, slots=True)
class Depth:
    """The number of messages of one stage that wait, run, or are dead letters.

    ``oldest_at``  when the oldest waiting flow began; None where none waits
    """

    stage: str
    ready: int
    claimed: int
    delayed: int
    suspect: int
    dead: int
    oldest_at: int | None


class Queue(Protocol):
    """The queue's part of a session. Writes happen in the session's open transaction."""

    def look(self, stages: Sequence[str], now: int) -> Look:
        """Say cheaply whether ``claim`` would find anything. Needs no open transaction."""

    def claim(self, stages: Sequence[str], limit: int, owner: str, now: int) -> list[Claim]:
        """Claim up to ``limit`` messages that can run now, of the oldest flows first; the result has no order.

        First it makes delayed messages claimable whose time has come: those that are due first, up to
        ``PROMOTION_MAX`` of them. Skips messages of paused stages, and rows that another open transaction has locked.
        """

    def claim_suspect(self, stages: Sequence[str], now: int, owner: str) -> Claim | None:
        """Claim the due suspect with the fewest deaths, to be run alone."""

    def enqueue(self, rows: Sequence[QueueRow]) -> None:
        """Add messages."""

    def take(self, *claims: Claim) -> None:
        """Remove the claimed messages for good.

        Raises ``LeaseLost`` where row, owner and deliveries of one no longer match: now, or with the next call of the
        session, the commit at the latest.
        """

    def remove(self, claim: Claim) -> bool:
        """Remove the claimed message now. Returns False where it is no longer this claim's."""

    def release(self, claim: Claim, *, kept_failures: int | None = None) -> bool:
        """Give the message back uncounted. Returns False where it is no longer this claim's.

        With ``kept_failures`` its owner keeps it instead: the row gets this number of failures and one more delivery.
        """

    def holds(self, claim: Claim) -> bool:
        """Say whether the message is still this claim's. It tells after ``CommitUnknown`` whether the commit stood."""

    def owned(self, owner: str, *, is_unattended: bool = False, is_paused: bool = False) -> list[Claim]:
        """Return the claims of that owner: all, or with ``is_unattended`` those which no open transaction holds.

        Where the owner's process ``is_paused``, a database that can do so ends the process's idle transactions; a later
        call then returns the claims that they held.
        """

    def owners(self) -> list[str]:
        """Return all owners of claims. Read this before the list of living workers, never after it."""

    def waiting_stages(self) -> list[str]:
        """Return the stages, of any app, with messages that can be claimed."""

    def pending(self, stages: Sequence[str]) -> Pending:
        """Say what is left to do for these stages."""

    def depths(self) -> list[Depth]:
        """Return the depth of each stage that has messages or dead letters. Needs no open transaction."""

    def changed(self) -> bool:
        """Say whether a message may have been added or released since the last call. Cheap; may err towards True."""
