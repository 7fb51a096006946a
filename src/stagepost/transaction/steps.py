"""The steps of an attempt. Logs, tests and crash points all use these names.

The mode ``single``, whose queue and data are in one database, has these:

``claimed``       the envelope is claimed, and the claim is committed
``begun``         a database transaction is open, and its first statement took the incoming message, fenced
``admitted``      the message is new to this stage
``handled``       every handler returned, and so did ``before_commit`` of every sink
``recorded``      the produced envelopes are encoded and in the transaction
``committing``    the last check passed: the transaction is still open
``committed``     the commit returned; no transaction is open; ``success`` of every sink ran
``after_commit``  the callbacks were handed to their pool

In ``outbox``, whose queue is in another database, the inbox decides ``admitted``, and ``committed`` is the commit of
the stage's own database. These follow it, before ``after_commit``:

``dispatched``    the produced envelopes are in the queue
``confirmed``     the queue's database has confirmed its commit
``marked``        the inbox row is marked as sent; the bytes are cleared, the id stays
``settled``       the message is taken; with the queue in a database, the commit of ``dispatched`` took it

A handler that calls an effect passes these before ``handled``, for each call:

``intended``      the log of effects has the intent of the call
``called``        the call returned; the log does not have its result yet
``known``         the log has the result

The mode ``two_phase`` has these between ``committing`` and ``committed``:

``prepared``      the queue's transaction is prepared: it can still commit after a crash
``decided``       the stage's own database committed its work, and with it the decision to commit the prepared one

A stage in a direct mode consumes from the broker. ``claimed`` is an unsettled delivery there. ``best_effort`` has these
after ``committed``, in the order of its list; on ActiveMQ one commit of the broker is ``confirmed`` and ``settled``:

``confirmed``     the broker confirmed each sent message
``marked``        the id's mark is removed: the broker is known to have them
``settled``       the delivery is settled

``transport`` has no database transaction, so it lacks ``begun``, ``admitted`` and ``committed``. Its ``marked`` says
that the journal has the run.

A stage whose data is a document has these, ``fenced`` before ``handled`` and the others before ``recorded``:

``fenced``        no earlier attempt can write the document any more
``listed``        the outgoing messages are kept beside the document
``written``       the document is written, with the message's id in it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

from stagepost.flow.claim import Claim
from stagepost.transaction.stage import Mode


class Step(StrEnum):
    CLAIMED = "claimed"
    BEGUN = "begun"
    ADMITTED = "admitted"
    INTENDED = "intended"
    CALLED = "called"
    KNOWN = "known"
    FENCED = "fenced"
    HANDLED = "handled"
    LISTED = "listed"
    WRITTEN = "written"
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


# Those of a stage whose data is a document. FENCED comes with a message that may have been handled.
DOCUMENT_STEPS = (Step.FENCED, Step.LISTED, Step.WRITTEN)
EFFECT_STEPS = (Step.INTENDED, Step.CALLED, Step.KNOWN)
_COMMON = (Step.CLAIMED, Step.BEGUN, Step.ADMITTED, Step.HANDLED, Step.RECORDED, Step.COMMITTING)

# The steps of each mode. BEGUN and ADMITTED come before HANDLED if the handler used the database.
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
    "best_effort": (*_COMMON, Step.COMMITTED, Step.CONFIRMED, Step.MARKED, Step.SETTLED, Step.AFTER_COMMIT),
    "transport": (
        Step.CLAIMED,
        Step.HANDLED,
        Step.RECORDED,
        Step.COMMITTING,
        Step.CONFIRMED,
        Step.SETTLED,
        Step.MARKED,
        Step.AFTER_COMMIT,
    ),
}

StepListener = Callable[[Step, Claim], None]


class EdgeStep(StrEnum):
    """The steps of the messages that enter and leave the store through a broker.

    A receiver passes ``received``, ``storing``, ``stored`` and ``settled``. Between ``storing`` and ``stored`` is its
    commit, and between ``stored`` and ``settled`` the acknowledgement. A dispatcher passes ``claimed``, ``published``,
    ``removing`` and ``removed``. Between ``claimed`` and ``published`` the broker gets the messages, and between
    ``removing`` and ``removed`` is the commit that removes the confirmed rows. The sweep of the inbox passes
    ``resending`` and ``resent``. Between them is the commit that turns stored bytes into rows.
    """

    RECEIVED = "received"
    STORING = "storing"
    STORED = "stored"
    SETTLED = "settled"
    CLAIMED = "claimed"
    PUBLISHED = "published"
    REMOVING = "removing"
    REMOVED = "removed"
    RESENDING = "resending"
    RESENT = "resent"


# It gets the ids of the messages that pass the step together.
EdgeListener = Callable[[EdgeStep, Sequence[str]], None]


class Halt(BaseException):
    """A step listener raises it to stop an attempt as a killed process would: nothing is settled or cleaned up."""


def unobserved(step: Step, claim: Claim) -> None:
    """Ignore a step: the default listener."""


def unobserved_edge(step: EdgeStep, message_ids: Sequence[str]) -> None:
    """Ignore a step at the edge: the default listener."""
