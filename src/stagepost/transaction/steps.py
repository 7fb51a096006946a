"""The named points of one attempt. Logs, tests and crash points all use these names.

In the mode ``single``, where queue and data are in one database, they are:

``claimed``       the envelope is ours, and that is on record
``begun``         a database transaction is open, and its first statement took the incoming message, fenced
``admitted``      the message is new to this stage
``handled``       every handler returned
``recorded``      what it produced is serialised and in the transaction
``committing``    the last check passed: the transaction is still ours
``committed``     the commit returned; no transaction is open
``after_commit``  the callbacks were handed to their pool

In ``outbox``, where the queue is in another database, ``admitted`` is by the inbox, ``committed`` is the commit of the
stage's own database, and before ``after_commit`` come:

``dispatched``    what it produced is in the queue
``confirmed``     and its database said so
``marked``        the inbox row says so too; the bytes are cleared, the id stays
``settled``       the message is taken: with the database as the transport, by the commit that dispatched

In ``two_phase``, between ``committing`` and ``committed``:

``prepared``      the queue's side is prepared: it can be committed whatever happens
``decided``       the stage's own database committed its work, and with it that the queue's side is to be
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

from stagepost.flow.claim import Claim
from stagepost.transaction.stage import Mode


class Step(StrEnum):
    CLAIMED = "claimed"
    BEGUN = "begun"
    ADMITTED = "admitted"
    HANDLED = "handled"
    RECORDED = "recorded"
    COMMITTING = "committing"
    PREPARED = "prepared"
    DECIDED = "decided"
    COMMITTED = "committed"
    DISPATCHED = "dispatched"
    CONFIRMED = "confirmed"
    MARKED = "marked"
    SETTLED = "settled"
    AFTER_COMMIT = "after_commit"


_COMMON = (Step.CLAIMED, Step.BEGUN, Step.ADMITTED, Step.HANDLED, Step.RECORDED, Step.COMMITTING)

# What each mode passes. Begun and admitted come before handled where the handler touched the database.
STEPS: Mapping[Mode, tuple[Step, ...]] = {
    "single": (*_COMMON, Step.COMMITTED, Step.AFTER_COMMIT),
    "outbox": (
        *_COMMON,
        Step.COMMITTED,
        Step.DISPATCHED,
        Step.CONFIRMED,
        Step.MARKED,
        Step.SETTLED,
        Step.AFTER_COMMIT,
    ),
    "two_phase": (*_COMMON, Step.PREPARED, Step.DECIDED, Step.COMMITTED, Step.AFTER_COMMIT),
}

StepListener = Callable[[Step, Claim], None]


class Halt(BaseException):
    """Raised by a step listener to stop an attempt dead, as a killed process would: nothing is settled or tidied."""


def unobserved(step: Step, claim: Claim) -> None:
    """The listener of those who only want it done."""
