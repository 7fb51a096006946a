"""The departures of messages that a handler hands to a system outside, such as a consumer of the gateway.

The attempt writes a stamp before the call, in a commit of its own. So a later attempt knows whether an earlier one may
have been taken, even if the earlier process died. The attempt's end removes the stamp, unless its outcome is not known.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagepost.flow.claim import Claim
from stagepost.flow.errors import LeaseLost
from stagepost.ports.dead_letters import DeadLetter
from stagepost.ports.session import Session
from stagepost.recovery.suspicion import is_suspect_after
from stagepost.transaction.outcome import Died, Returned
from stagepost.transaction.queue_commit import QueueCommit, committing


def stamp(queue_commit: QueueCommit, claim: Claim) -> int | None:
    """Write the stamp and commit. Return the moment of an earlier departure whose end is not known, None for none.

    Raises ``LeaseLost`` if the message belongs to another owner by now, and ``StoreError``.
    """
    session = queue_commit.session
    left_at = session.edge.left_at([claim]).get(claim.message_id) if claim.deliveries > 1 else None
    with committing(session):
        # Inside the transaction, so that no stamp is left behind by an owner that stood still.
        if not session.queue.holds(claim):
            raise LeaseLost.of(claim.message_id, claim.stage)
        session.edge.stamp([claim], queue_commit.clock.now())
    return left_at


def unstamp(queue_commit: QueueCommit, claim: Claim, *, has_ended: bool) -> None:
    """Remove the stamp in the open transaction; if the outcome is not known, note only that no process died."""
    if has_ended:
        queue_commit.session.edge.clear([claim])
    else:
        queue_commit.session.edge.forget_deaths(claim)


def judge_death(session: Session, claim: Claim, died: Died) -> Died | Returned:
    """Decide in the open transaction whether a process that died makes its message a suspect.

    A call to a consumer rarely kills a process, so the first deaths during deliveries count for nothing.
    """
    deaths = session.edge.count_death(claim) if claim.deaths == 0 else 0
    if deaths and not is_suspect_after(deaths):
        return Returned(died.after, f"{died.how}, during its delivery")
    return died


def restamp(queue_commit: QueueCommit, letters: Sequence[DeadLetter]) -> None:
    """Let the departures of replayed messages begin now, in the open transaction: an operator wants them sent again."""
    again = [each for each in letters if each.reason == "maybe-delivered"]
    if again:
        queue_commit.session.edge.clear(again)
        queue_commit.session.edge.stamp(again, queue_commit.clock.now())
