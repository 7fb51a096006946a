"""The three ways in which the bytes of an inbox row are cleared after they were sent.

A row stays unmarked until then. ``worker``: the thread that sent them marks rows in batches. ``message``: a message
``stagepost.dispatched`` leaves with them in the same commit, and its stage marks the row. ``sweep``: the relay's sweep
marks the row after its lease.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Literal, Protocol

import msgspec
from msgspec import structs

from stagepost.flow import codec, ids
from stagepost.flow.claim import Claim
from stagepost.flow.clock import Clock
from stagepost.flow.codec import encode_envelope
from stagepost.flow.context import Context, unit_of_work_of
from stagepost.flow.envelope import Envelope, Message
from stagepost.flow.errors import StoreError
from stagepost.flow.initiation import Outgoing
from stagepost.flow.produced import Produced
from stagepost.flow.target import Position
from stagepost.ports.session import Session
from stagepost.recovery.redelivery import Redelivery
from stagepost.transaction.queue_commit import committing
from stagepost.transaction.stage import Handler, Stage

Clearing = Literal["worker", "message", "sweep"]
CLEARINGS: tuple[Clearing, ...] = ("worker", "message", "sweep")

# A busy thread commits its marks so often at most, or as soon as there are so many.
MARKS_SECONDS = 0.1
MARKS_MAX = 100
DISPATCHED = "stagepost.dispatched"

logger = logging.getLogger(__name__)


class SentMarks(Protocol):
    """The marks of one thread on inbox rows whose messages were sent."""

    def with_mark(self, claim: Claim, produced: Produced) -> Produced:
        """Return what the commit that sends the messages of a row puts into the queue."""

    def sent(self, claim: Claim) -> None:
        """Note that the messages of a row were sent."""

    def flush(self) -> None:
        """Mark the rows that were noted."""


class BatchedMarks:
    """Marks rows in commits of the thread itself. A crash leaves the noted ones to the sweep."""

    def __init__(self, work: Session, clock: Clock, on_marked: Callable[[Claim], None]) -> None:
        self._work = work
        self._clock = clock
        self._on_marked = on_marked
        self._noted: list[Claim] = []
        self._flushed_at = -math.inf

    def with_mark(self, claim: Claim, produced: Produced) -> Produced:
        return produced

    def sent(self, claim: Claim) -> None:
        self._noted.append(claim)
        if len(self._noted) >= MARKS_MAX or self._clock.monotonic() - self._flushed_at >= MARKS_SECONDS:
            self.flush()

    def flush(self) -> None:
        if not self._noted:
            return
        noted, self._noted = self._noted, []
        try:
            # The relay's sweep repeats marks that a crash loses.
            with committing(self._work, is_durable=False):
                for each in noted:
                    self._work.inbox.mark(each.stage, each.message_id)
        except StoreError as error:
            logger.warning(
                "%d messages, the last one %s at %s, are settled, but cannot be marked as sent yet: %s",
                len(noted),
                noted[-1].message_id,
                noted[-1].stage,
                error,
                extra={"event": "not-marked"},
            )
        self._flushed_at = self._clock.monotonic()
        for each in noted:
            self._on_marked(each)


class SweptMarks:
    """Leaves the marks to the sweep of the relay."""

    def with_mark(self, claim: Claim, produced: Produced) -> Produced:
        return produced

    def sent(self, claim: Claim) -> None:
        """Do nothing: the row's lease ends, and the sweep finds its commit in the journal."""

    def flush(self) -> None:
        """Do nothing."""


class Dispatched(msgspec.Struct, frozen=True):
    """The message to the stage that marks the row of another message."""

    stage: str
    message_id: str


class MessageMarks(SweptMarks):
    """Sends a message to the stage that marks the row. To mark twice changes nothing."""

    def __init__(self, address: str) -> None:
        self._address = address

    def with_mark(self, claim: Claim, produced: Produced) -> Produced:
        outgoing = Outgoing(self._envelope(claim, produced.at), None)
        return structs.replace(produced, sends=[*produced.sends, (outgoing, encode_envelope(outgoing.envelope))])

    def _envelope(self, claim: Claim, at: int) -> Envelope:
        body = codec.encode(Dispatched(claim.stage, claim.message_id), Dispatched)
        return Envelope(
            message_id=ids.derived(claim.message_id, claim.stage, 0, DISPATCHED, self._address, 0),
            flow_id=claim.flow_id,
            kind="send",
            to=self._address,
            sender=claim.stage,
            messages=(Message(DISPATCHED, body),),
            origin_at=claim.origin_at,
            sent_at=at,
            cause_id=claim.message_id,
        )


def address_of_marks(app: str) -> str:
    return f"{app}.{DISPATCHED}"


def marking_stage(app: str) -> Stage:
    """Build the stage that marks the rows of an app's inbox."""
    address = address_of_marks(app)
    position = Position(address, address, None, None, None)
    return Stage(
        position=position,
        handlers=[Handler(position, Dispatched, _mark, takes_state=False, services={})],
        by_type=None,
        is_async=False,
        redelivery=Redelivery(),
        time_limit_seconds=60.0,
        declared_at="clearing='message'",
        mode="outbox",
        guards={DISPATCHED: "none"},
    )


def _mark(ctx: Context, dispatched: Dispatched) -> None:
    unit_of_work_of(ctx).mark_sent(dispatched.stage, dispatched.message_id)
