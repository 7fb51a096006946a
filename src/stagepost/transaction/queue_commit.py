"""The commit of the queue's database: take a claimed message, put the produced envelopes, and check a lost answer.

Every mode uses it, because in every mode one commit of the queue's database settles a message. The mode ``single``
needs no other commit, so it is here too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from msgspec import structs

from stagepost.flow.claim import Claim
from stagepost.flow.clock import Clock
from stagepost.flow.codec import encode_envelope
from stagepost.flow.errors import CommitUnknown, LeaseLost, StoreUnavailable
from stagepost.flow.initiation import Acceptance, Outgoing, Verdict
from stagepost.flow.produced import Produced
from stagepost.ports.dead_letters import DeadLetter
from stagepost.ports.inbox import Handled
from stagepost.ports.journal import Waypoint, WaypointName
from stagepost.ports.queue import QueueRow
from stagepost.ports.session import Session
from stagepost.recovery.deadletter import unsendable
from stagepost.transaction.effects import EffectLog
from stagepost.transaction.enqueueing import (
    WITHOUT_BROKER,
    Routing,
    addressed,
    attempt_of,
    committed_line,
    line_of_claim,
    line_of_letter,
    new_row,
    row_again,
    row_revived,
    sent_line,
    write_acceptances,
)
from stagepost.transaction.outcome import Completed
from stagepost.transaction.steps import Step, StepListener, unobserved

logger = logging.getLogger(__name__)


@contextmanager
def committing(session: Session, *, is_durable: bool = True) -> Iterator[None]:
    """Open a transaction, and commit it at the end of the block. An exception rolls it back."""
    session.begin(is_durable=is_durable)
    try:
        yield
        session.commit()
    except BaseException:
        session.rollback()
        raise


class QueueCommit:
    """The queue's transaction of one thread. ``effects`` is the log of effects; None for an app without effects."""

    def __init__(
        self,
        session: Session,
        clock: Clock,
        node: str,
        listener: StepListener = unobserved,
        routing: Routing = WITHOUT_BROKER,
        effects: EffectLog | None = None,
    ) -> None:
        self.session = session
        self.clock = clock
        self.node = node
        self.listener = listener
        self.routing = routing
        self.effects = effects

    def take(self, claim: Claim) -> None:
        """Open a transaction whose first statement takes the message."""
        self.session.begin()
        self.consume(claim)

    def consume(self, claim: Claim) -> None:
        """Take the message in the open transaction. Raises ``LeaseLost`` here or with the commit."""
        self.session.queue.take(claim)

    def produced(self, claim: Claim, outgoing: Sequence[Outgoing], ms: float, detail: str | None = None) -> Produced:
        """Build the result of a run, with encoded envelopes."""
        sends = [(each, encode_envelope(each.envelope)) for each in outgoing]
        return Produced(self.clock.now(), self.node, attempt_of(claim), ms, detail, sends)

    def put(self, claim: Claim, produced: Produced) -> None:
        """Enqueue the produced envelopes and write the journal, in the open transaction."""
        self.put_all([(claim, produced)])

    def put_all(self, handled: Sequence[tuple[Claim, Produced]]) -> None:
        """Do as ``put`` for several messages that share the transaction."""
        rows: list[QueueRow] = []
        waypoints: list[Waypoint] = []
        for claim, unaddressed in handled:
            produced = self.addressed(unaddressed)
            waypoints.append(committed_line(claim, produced))
            places = self.routing.places(self.session, [each for each, _ in produced.sends])
            for (each, data), place in zip(produced.sends, places, strict=True):
                rows.append(new_row(each, data, place))
                waypoints.append(sent_line(each.envelope, place, len(data), produced.at, produced.node))
        if rows:
            self.session.queue.enqueue(rows)
        self.session.journal.record(waypoints)

    def send(self, outgoing: Sequence[Outgoing]) -> None:
        """Enqueue messages that no run produced, and journal them as sent, in the open transaction."""
        if outgoing:
            places = self.routing.places(self.session, outgoing)
            encoded = [encode_envelope(each.envelope) for each in outgoing]
            sends = list(zip(outgoing, encoded, places, strict=True))
            self.session.queue.enqueue([new_row(each, data, place) for each, data, place in sends])
            now = self.clock.now()
            self.session.journal.record(
                [sent_line(each.envelope, place, len(data), now, self.node) for each, data, place in sends]
            )

    def addressed(self, produced: Produced) -> Produced:
        """Return ``produced`` with a copy for each subscriber in place of each publication."""
        if all(each.topic is None for each, _ in produced.sends):
            return produced
        encoded = {each.envelope.message_id: data for each, data in produced.sends if each.topic is None}
        copies = addressed(self.session, [each for each, _ in produced.sends], self.routing)
        sends = [(each, encoded.get(each.envelope.message_id) or encode_envelope(each.envelope)) for each in copies]
        return structs.replace(produced, sends=sends)

    def put_one(self, outgoing: Outgoing, data: bytes, produced: Produced) -> None:
        (place,) = self.routing.places(self.session, [outgoing])
        self.session.queue.enqueue([new_row(outgoing, data, place)])
        self.session.journal.record([sent_line(outgoing.envelope, place, len(data), produced.at, produced.node)])

    def bury(self, outgoing: Outgoing, data: bytes, error: BaseException) -> DeadLetter:
        """Make an envelope that the queue refuses a dead letter of the stage at which it would have waited."""
        (place,) = self.routing.places(self.session, [outgoing])
        letter = unsendable(outgoing.envelope, place, data, error, self.clock.now(), self.node)
        self.session.dead_letters.bury(letter)
        ids = {"message_id": letter.message_id, "flow_id": letter.flow_id}
        logger.error(
            "%s to %s cannot be sent, now a dead letter: %s",
            letter.message_id,
            letter.stage,
            letter.summary,
            extra={"event": "unsendable", **ids},
        )
        return letter

    def bury_unsendable(self, outgoing: Outgoing, data: bytes, produced: Produced, error: BaseException) -> None:
        """Bury a stage's outgoing envelope, and journal it as sent and dead."""
        letter = self.bury(outgoing, data, error)
        line = sent_line(outgoing.envelope, letter.stage, len(data), produced.at, produced.node)
        self.session.journal.record([line, self.dead_line(letter)])

    def dead_line(self, letter: DeadLetter) -> Waypoint:
        """Build the journal's line of a message that died before its stage saw it."""
        return line_of_letter("dead", letter, letter.dead_at, self.node, f"{letter.reason} {letter.fingerprint}")

    def defer(self, claim: Claim, after: int, *, failures: int, deaths: int) -> None:
        """Put the claimed message back, due ``after`` microseconds. Raises ``LeaseLost``."""
        if not self.session.queue.remove(claim):
            raise LeaseLost.of(claim.message_id, claim.stage)
        self.session.queue.enqueue([row_again(claim, self.clock.now() + after, failures, deaths)])

    def revive(self, letter: DeadLetter, *, failures: int = 0) -> None:
        """Put a dead letter's message back. One that killed its process stays a suspect: it may do so again."""
        deaths = 1 if letter.deaths else 0
        self.session.queue.enqueue([row_revived(letter, self.clock.now(), deaths=deaths, failures=failures)])

    def note(self, claim: Claim, name: WaypointName, detail: str, ms: float | None = None) -> None:
        self.session.journal.record([line_of_claim(name, claim, self.clock.now(), self.node, detail, ms)])

    def commit(self, claim: Claim) -> None:
        """Commit. Raises ``StoreUnavailable`` if the answer was lost and the commit did not take effect."""
        try:
            self.session.commit()
        except CommitUnknown:
            self._check_committed([claim])

    def commit_completed(self, claims: Sequence[Claim]) -> None:
        """Commit completed messages. Raises as ``commit`` does.

        Raises ``LeaseLost`` if the commit did not take effect and the messages belong to another owner by now.
        """
        try:
            self.session.commit()
        except CommitUnknown:
            self._check_committed(claims)
            # Another owner may have claimed a message during the outage. The journal shows which commit took effect.
            lost = [each for each in claims if not self.session.journal.has_committed(each.stage, each.message_id)]
            if lost:
                raise LeaseLost.of(lost[0].message_id, lost[0].stage) from None

    def _check_committed(self, claims: Sequence[Claim]) -> None:
        """Raise ``StoreUnavailable`` if a row still has this owner's claim: the commit did not take effect then."""
        self.session.reconnect()
        for claim in claims:
            if self.session.queue.holds(claim):
                raise StoreUnavailable(
                    f"the commit of {claim.message_id} at {claim.stage} did not take effect"
                ) from None


class Single:
    """The mode ``single``: queue and data are in one database. Implements ``mode.TransactionMode``.

    One commit has the message, the work and the sent messages. The queue row serves as the inbox. The transaction's
    first statement removes it if message, owner and fencing token match. An owner that cannot remove it may not
    commit.

    Stored copies of a stage in the mode ``transport`` run here too, and may use the database no more than there.
    """

    has_inbox = False
    looks_first = False

    def __init__(self, queue_commit: QueueCommit, *, has_database: bool = True) -> None:
        self.session: Session = queue_commit.session
        self.has_database = has_database
        self._queue_commit = queue_commit

    def recognise(self, claim: Claim) -> None:
        """Do nothing: the commit of a handled message removed it from the queue."""

    def begin(self, claim: Claim) -> None:
        self._queue_commit.take(claim)

    def accept(self, acceptances: Sequence[Acceptance]) -> Sequence[Verdict]:
        queue_commit = self._queue_commit
        now = queue_commit.clock.now()
        return write_acceptances(queue_commit.session, acceptances, now, queue_commit.node, queue_commit.routing)

    def complete(self, claim: Claim, completed: Completed) -> Produced:
        produced = self._queue_commit.produced(claim, completed.outgoing, completed.ms, completed.detail)
        self._queue_commit.put(claim, produced)
        self._queue_commit.listener(Step.RECORDED, claim)
        self._queue_commit.listener(Step.COMMITTING, claim)
        self._queue_commit.commit_completed([claim])
        return produced

    def deliver(self, claim: Claim, produced: Produced) -> None:
        """Report the commit. It took the message and put what was produced."""
        self._queue_commit.listener(Step.COMMITTED, claim)

    def conclude(self, claim: Claim, handled: Handled) -> None:
        raise AssertionError("the mode single recognises no message")

    def rollback(self) -> None:
        self._queue_commit.session.rollback()

    def idle(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing: the session is the caller's."""


def may_share(claim: Claim) -> bool:
    """Say whether a message may be part of a batch. A redelivered one may undo the batch, or kill its process."""
    return claim.deliveries == 1 and not claim.failures
