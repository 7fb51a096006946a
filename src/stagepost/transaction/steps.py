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
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from stagepost.flow.claim import Claim


class Step(StrEnum):
    CLAIMED = "claimed"
    BEGUN = "begun"
    ADMITTED = "admitted"
    HANDLED = "handled"
    RECORDED = "recorded"
    COMMITTING = "committing"
    COMMITTED = "committed"
    AFTER_COMMIT = "after_commit"


StepListener = Callable[[Step, Claim], None]


class Halt(BaseException):
    """Raised by a step listener to stop an attempt dead, as a killed process would: nothing is settled or tidied."""


def unobserved(step: Step, claim: Claim) -> None:
    """The listener of those who only want it done."""
