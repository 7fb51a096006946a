"""The modes ``best_effort`` and ``transport``: a stage consumes from the broker, and sends over it.

``best_effort``  commits the stage's database. Then the broker gets what the stage sends, and the delivery is settled.
``transport``    has no database transaction. The broker's transaction has the delivery and what the stage sends.

A broker without transactions confirms what was sent, and then the delivery is settled. Only a fresh delivery whose run
succeeds is settled so. Every other delivery takes the receiver's way: one commit writes its id and its queue row, then
it is settled, and the message runs from the store in the mode ``single``. See docs/decisions/063.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

from stagepost.flow.claim import Claim
from stagepost.flow.clock import Clock
from stagepost.flow.errors import BrokerConnectionLost, BrokerRefused, CommitUnknown, LeaseLost, StoreError
from stagepost.flow.initiation import Acceptance, Verdict
from stagepost.flow.produced import Produced
from stagepost.flow.texts import as_sentence
from stagepost.ports.broker import AtomicConnection, BrokerConnection, Publication, PublishResult, is_topic
from stagepost.ports.inbox import Handled
from stagepost.ports.journal import Waypoint
from stagepost.ports.session import Session
from stagepost.transaction.arrivals import Arrival, line_of_arrival
from stagepost.transaction.dispatcher import CONFIRM_SECONDS
from stagepost.transaction.enqueueing import (
    Routing,
    committed_line,
    confirmed_line,
    row_again,
    sent_line,
    write_acceptances,
)
from stagepost.transaction.inbox_guard import InboxGuard
from stagepost.transaction.outcome import Completed
from stagepost.transaction.publication import publication_at
from stagepost.transaction.queue_commit import QueueCommit, committing
from stagepost.transaction.steps import Step, StepListener
from stagepost.transaction.stored_copies import note_copy

logger = logging.getLogger(__name__)


class DirectCommit(QueueCommit):
    """The queue's transaction of a thread that consumes from a broker. The id of a message takes the place of its row.

    A transaction *takes* a delivered message by inserting its id into ``accepted``, as a receiver does. So of a run and
    a stored copy only one commits.

    ``is_abandoned``  the run gave its delivery up, because its connection is lost or the commit's answer is
    """

    connection: BrokerConnection
    arrival: Arrival

    def __init__(self, session: Session, clock: Clock, node: str, listener: StepListener, routing: Routing) -> None:
        super().__init__(session, clock, node, listener, routing)
        self.is_abandoned = False

    def handle(self, connection: BrokerConnection, arrival: Arrival) -> None:
        """Begin with the next delivery."""
        self.connection, self.arrival, self.is_abandoned = connection, arrival, False

    def take(self, claim: Claim) -> None:
        self.session.begin()
        self.consume(claim)

    def consume(self, claim: Claim) -> None:
        self.admit(claim, is_direct=False)

    def admit(self, claim: Claim, *, is_direct: bool) -> None:
        """Insert the id in the open transaction. Raises ``LeaseLost`` where a stored copy has it."""
        self.accept_id(claim, is_direct=is_direct)
        self.session.journal.record([line_of_arrival("arrived", self.arrival, self.clock.now(), self.node)])

    def accept_id(self, claim: Claim, *, is_direct: bool) -> None:
        """Do as ``admit`` does, for a message whose arrival is not journalled yet."""
        acceptance = replace(self.arrival.acceptance(self.clock.now()), is_direct=is_direct)
        (verdict,) = self.session.accepted.accept([acceptance], is_patient=False)
        if verdict.outcome != "started":
            raise LeaseLost.of(claim.message_id, claim.stage)

    def clear_mark(self) -> bool:
        """Note that the broker has what the run sent. Returns False where a receiver took the id over before."""
        acceptance = self.arrival.acceptance(0)
        return self.session.edge.clear_mark(acceptance.scope, acceptance.key)

    def defer(self, claim: Claim, after: int, *, failures: int, deaths: int) -> None:
        self.consume(claim)
        self.session.queue.enqueue([row_again(claim, self.clock.now() + after, failures, deaths)])

    def commit(self, claim: Claim) -> None:
        """Commit. Raises ``BrokerConnectionLost`` if the answer was lost: the redelivery shows whether it stood."""
        try:
            self.session.commit()
        except CommitUnknown as error:
            raise self.abandon(str(error)) from error

    def commit_completed(self, claims: Sequence[Claim]) -> None:
        self.commit(claims[0])

    def publications(self, produced: Produced) -> list[Publication] | None:
        """Return what goes to the broker at once, or None where some of it must wait in the store.

        The broker neither delays messages nor takes oversized ones. A dispatcher does the one, and reports the other.
        """
        limit = self.connection.features.body_bytes_max
        if self.connection.is_blocked or any(
            outgoing.due_at is not None or (limit is not None and len(data) > limit)
            for outgoing, data in produced.sends
        ):
            return None
        return [
            publication_at(place, sent.message_id, sent.flow_id, data)
            for (sent, data), place in zip(
                [(outgoing.envelope, data) for outgoing, data in produced.sends], self._places(produced), strict=True
            )
        ]

    def lines(self, claim: Claim, produced: Produced) -> list[Waypoint]:
        """Build the lines of a handled message and of what it sent."""
        sends = zip(produced.sends, self._places(produced), strict=True)
        return [
            committed_line(claim, produced),
            *(
                sent_line(each.envelope, place, len(data), produced.at, self.node, is_direct=True)
                for (each, data), place in sends
            ),
        ]

    def confirmed_lines(self, produced: Produced, results: Sequence[PublishResult]) -> list[Waypoint]:
        now = self.clock.now()
        sends = zip(produced.sends, self._places(produced), results, strict=True)
        return [
            confirmed_line(each.envelope, place, now, self.node, "" if result == "confirmed" else "no subscriber")
            for (each, _), place, result in sends
        ]

    def exchange(self, publications: Sequence[Publication]) -> list[PublishResult]:
        """Publish, with the settlement of the delivery in the same transaction where the broker has transactions.

        Raises ``BrokerRefused`` where a transaction was not committed, and ``BrokerConnectionLost``.
        """
        with self._over_the_broker():
            if self.connection.features.is_atomic:
                atomic = cast("AtomicConnection", self.connection)
                atomic.transact([self.arrival.delivery], publications, CONFIRM_SECONDS)
                return ["confirmed"] * len(publications)
            results = self.connection.publish(publications, CONFIRM_SECONDS) if publications else []
        if {"lost", "unconfirmed"} & set(results):
            raise self.abandon(f"{len(publications)} messages were published, and not all were confirmed")
        return results

    def settle(self) -> None:
        """Settle the delivery. A transaction of the broker may have settled it before."""
        with self._over_the_broker():
            self.connection.settle([self.arrival.delivery])

    def check_alive(self) -> None:
        """Check that the broker was heard lately. Waits for nothing, because a transaction is open."""
        if not self.connection.is_alive(0):
            raise self.abandon("the broker was not heard lately")

    def abandon(self, reason: str) -> BrokerConnectionLost:
        """Drop the connection, so that the broker delivers the message again. Returns the error to raise."""
        self.is_abandoned = True
        self.connection.close()
        return BrokerConnectionLost(
            f"{as_sentence(reason)} The broker delivers {self.arrival.envelope.message_id} again."
        )

    def _places(self, produced: Produced) -> list[str]:
        return self.routing.places(self.session, [each for each, _ in produced.sends])

    @contextmanager
    def _over_the_broker(self) -> Iterator[None]:
        try:
            yield
        except BrokerConnectionLost:
            self.is_abandoned = True
            raise


class DirectMode:
    """The common part of both modes: what they produce, and the commit through the store."""

    has_inbox = False
    looks_first = False

    def __init__(self, commit: DirectCommit) -> None:
        self._commit = commit
        # They go to the broker. None where the commit puts them into the store.
        self._publications: list[Publication] | None = None

    @property
    def session(self) -> Session:
        return self._commit.session

    def recognise(self, claim: Claim) -> None:
        """Do nothing: only the first attempt at a fresh delivery runs here."""

    def conclude(self, claim: Claim, handled: Handled) -> None:
        raise AssertionError("the direct modes recognise no message")

    def rollback(self) -> None:
        self._commit.session.rollback()

    def idle(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing: the session is the caller's."""

    def _produced(self, claim: Claim, completed: Completed) -> Produced:
        return self._commit.addressed(self._commit.produced(claim, completed.outgoing, completed.ms, completed.detail))

    def _settle(self, claim: Claim) -> None:
        self._commit.settle()
        self._commit.listener(Step.SETTLED, claim)


class BestEffort(DirectMode):
    """The mode ``best_effort``. Implements ``mode.TransactionMode``.

    The id has a mark from the stage's commit until the broker has confirmed what the stage sent. A receiver that meets
    the mark cannot know whether it was sent, and stores the message to run again. Where the stage has a guard, the
    stored copy runs no handler. It sends the bytes that the inbox row keeps until the broker has confirmed them.

    ``inbox``  None for stages without a guard
    """

    has_database = True

    def __init__(self, commit: DirectCommit, inbox: InboxGuard | None = None) -> None:
        super().__init__(commit)
        self._inbox = inbox
        self.has_inbox = inbox is not None

    def recognise(self, claim: Claim) -> None:
        if self._inbox is not None:
            self._inbox.recognise(claim)

    def begin(self, claim: Claim) -> None:
        self._commit.session.begin()
        self._commit.admit(claim, is_direct=True)
        if self._inbox is not None:
            self._inbox.begin(claim)

    def conclude(self, claim: Claim, handled: Handled) -> None:
        """Store the id of a copy whose message was handled, and what that run may not have sent.

        The id was purged before the inbox row, or the store ran a sibling's copy. The caller settles the delivery.
        """
        self._commit.session.begin()
        self._commit.accept_id(claim, is_direct=False)
        note_copy(self._commit, claim)
        self._commit.commit(claim)

    def accept(self, acceptances: Sequence[Acceptance]) -> Sequence[Verdict]:
        commit = self._commit
        return write_acceptances(commit.session, acceptances, commit.clock.now(), commit.node, commit.routing)

    def complete(self, claim: Claim, completed: Completed) -> Produced:
        commit = self._commit
        produced = self._produced(claim, completed)
        self._publications = commit.publications(produced)
        if self._publications is None:
            commit.put(claim, produced)
        else:
            commit.session.journal.record(commit.lines(claim, produced))
        if not self._publications:
            commit.clear_mark()
        if self._inbox is not None:
            self._inbox.record(claim, completed.outgoing, produced if self._publications else None)
        commit.listener(Step.RECORDED, claim)
        commit.check_alive()
        commit.listener(Step.COMMITTING, claim)
        commit.commit(claim)
        return produced

    def deliver(self, claim: Claim, produced: Produced) -> None:
        """Send over the broker and settle. Raises ``BrokerConnectionLost``, and the redelivery is in doubt."""
        self._commit.listener(Step.COMMITTED, claim)
        if self._publications:
            results = self._exchange(self._publications)
            self._commit.listener(Step.CONFIRMED, claim)
            self._mark(claim, produced, results)
            self._commit.listener(Step.MARKED, claim)
        self._settle(claim)

    def _exchange(self, publications: Sequence[Publication]) -> list[PublishResult]:
        try:
            results = self._commit.exchange(publications)
        except BrokerRefused as error:
            raise self._commit.abandon(str(error)) from error
        if not have_left(publications, results):
            raise self._commit.abandon(f"the broker did not take all messages: {', '.join(results)}")
        return results

    def _mark(self, claim: Claim, produced: Produced, results: Sequence[PublishResult]) -> None:
        commit = self._commit
        try:
            # A mark that a crash brings back makes a redelivery run again, and its copies have the same ids.
            with committing(commit.session, is_durable=False):
                commit.session.journal.record(commit.confirmed_lines(produced, results))
                commit.clear_mark()
                if self._inbox is not None:
                    self._inbox.mark(claim)
        except (StoreError, CommitUnknown) as error:
            log_unnoted(claim, error)


class Transport(DirectMode):
    """The mode ``transport``. Implements ``mode.TransactionMode``. The journal follows the broker's commit."""

    has_database = False

    def begin(self, claim: Claim) -> None:
        """Do nothing: there is no transaction but the broker's."""

    def accept(self, acceptances: Sequence[Acceptance]) -> Sequence[Verdict]:
        raise AssertionError("the mode transport refuses the use of the database")

    def complete(self, claim: Claim, completed: Completed) -> Produced:
        commit = self._commit
        produced = self._produced(claim, completed)
        self._publications = commit.publications(produced)
        if self._publications is not None:
            commit.listener(Step.RECORDED, claim)
            commit.listener(Step.COMMITTING, claim)
            if self._is_exchanged(self._publications):
                commit.listener(Step.CONFIRMED, claim)
                return produced
            self._publications = None
        # The broker does not take it as it is. The dispatcher sends it from the store, with the same ids.
        commit.take(claim)
        commit.put(claim, produced)
        commit.commit(claim)
        return produced

    def deliver(self, claim: Claim, produced: Produced) -> None:
        commit = self._commit
        self._settle(claim)
        if self._publications is None:
            return
        arrived = line_of_arrival("arrived", commit.arrival, produced.at, commit.node)
        try:
            with committing(commit.session, is_durable=False):
                lines = [arrived, *commit.lines(claim, produced), *commit.confirmed_lines(produced, self._results)]
                commit.session.journal.record(lines)
        except (StoreError, CommitUnknown) as error:
            log_unnoted(claim, error)
        commit.listener(Step.MARKED, claim)

    def _is_exchanged(self, publications: Sequence[Publication]) -> bool:
        try:
            self._results = self._commit.exchange(publications)
        except BrokerRefused as error:
            logger.warning("the broker refused a transaction: %s", error, extra={"event": "broker-refused"})
            return False
        return have_left(publications, self._results)


def have_left(publications: Sequence[Publication], results: Sequence[PublishResult]) -> bool:
    """Say whether the broker has every message. A topic without a subscriber has done its part."""
    return all(
        result == "confirmed" or (result == "unroutable" and is_topic(each.address))
        for each, result in zip(publications, results, strict=True)
    )


def log_unnoted(claim: Claim, error: Exception) -> None:
    logger.warning(
        "%s at %s is sent, but the store cannot note it yet: %s",
        claim.message_id,
        claim.stage,
        error,
        extra={"event": "not-marked", "message_id": claim.message_id, "flow_id": claim.flow_id},
    )
