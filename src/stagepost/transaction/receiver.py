"""Let a broker's messages into the store: store a window in one durable commit, then settle it at the broker.

The commit writes each message's id into ``accepted`` and its bytes into the queue. Nothing is settled that is not
committed. A message that was committed and not settled comes again, and its id is known by then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from stagepost.flow.claim import Claim
from stagepost.flow.errors import (
    CommitUnknown,
    IdConflict,
    StoreContention,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    Undecodable,
    WrongAddress,
)
from stagepost.flow.initiation import Acceptance, Verdict
from stagepost.ports.broker import BrokerConnection, Delivery, refused_address
from stagepost.ports.dead_letters import DeadLetter, DeathReason
from stagepost.ports.journal import Waypoint, WaypointName
from stagepost.ports.queue import QueueRow
from stagepost.recovery.deadletter import undeliverable
from stagepost.transaction.arrivals import Arrival, Entrance, line_of_arrival, read_arrival
from stagepost.transaction.queue_commit import QueueCommit
from stagepost.transaction.steps import EdgeListener, EdgeStep, unobserved_edge

BYTES_MAX = 4_000_000
# How long a message waits here while another transaction holds its id, or its dead letter cannot be published.
AGAIN_SECONDS = 5.0
# An unknown error that meets the same message alone so often, with other commits in between, is the message's.
UNKNOWN_MAX = 10
# Suspicions that are kept. Another receiver may have stored the message, so its suspicion would stay here.
SUSPICIONS_MAX = 1_000

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Suspicion:
    """Unknown errors that met one message alone: how many, and how many commits there were at the last one."""

    errors: int = 0
    commits: int = -1


class Receiver:
    """The receiver of one thread.

    ``entrances``     the addresses to receive from
    ``store``         the store's uuid
    ``publish_dead``  says whether the broker has confirmed a message that the store refuses. If not, publishes it over
                      a connection of its own. It never waits for the broker
    ``arrived``       counts the deliveries that were stored or recognised, and settled
    """

    def __init__(
        self,
        queue_commit: QueueCommit,
        entrances: Sequence[Entrance],
        store: str,
        publish_dead: Callable[[Delivery], bool],
        listener: EdgeListener = unobserved_edge,
    ) -> None:
        self._queue_commit = queue_commit
        self._session = queue_commit.session
        self._clock = queue_commit.clock
        self._entrances = {each.address: each for each in entrances}
        self._store = store
        self._publish_dead = publish_dead
        self._listener = listener
        self._connection: BrokerConnection | None = None
        self._windows: Mapping[str, int] = {}
        # Deliveries of this connection that are tried again, and the monotonic time of that.
        self._later: list[tuple[float, Delivery]] = []
        self._suspicions: dict[str, Suspicion] = {}
        self._commits = 0
        self.arrived = 0

    def turn(self, connection: BrokerConnection, windows: Mapping[str, int], seconds: float) -> int:
        """Receive from the addresses of ``windows``, store and settle. Returns the number of settled deliveries.

        Waits up to ``seconds`` for a delivery. Raises ``StoreError`` and ``BrokerConnectionLost``. The caller then
        drops the connection: nothing is settled of what the store did not commit, and it comes again.
        """
        return self.store(connection, self.receive(connection, windows, seconds))

    def receive(self, connection: BrokerConnection, windows: Mapping[str, int], seconds: float) -> list[Delivery]:
        """Return deliveries of the addresses of ``windows``, after the earlier ones that are due to be tried again."""
        if connection is not self._connection:
            self._connection, self._windows, self._later = connection, {}, []
        if windows != self._windows:
            connection.subscribe(windows)
            self._windows = dict(windows)
        due = self._due()
        return [*due, *connection.receive(0 if due else seconds)]

    def store(self, connection: BrokerConnection, deliveries: Sequence[Delivery]) -> int:
        """Store and settle deliveries. Returns the number of settled ones. Raises as ``turn`` does."""
        try:
            return sum(self._store_window(connection, each) for each in self._bunches(deliveries))
        except BaseException:
            self._session.rollback()
            raise

    def stop(self, connection: BrokerConnection) -> int:
        """End the subscriptions, and store the deliveries that were pushed already. Raises as ``turn`` does."""
        stored = self.turn(connection, {}, 0)
        while more := self.turn(connection, {}, 0):
            stored += more
        return stored

    def _due(self) -> list[Delivery]:
        now = self._clock.monotonic()
        due = [delivery for at, delivery in self._later if at <= now]
        self._later = [each for each in self._later if each[0] > now]
        return due

    def _bunches(self, deliveries: Sequence[Delivery]) -> Iterator[list[Delivery]]:
        """Divide the deliveries: bounded in bytes, a redelivered one alone, and a suspected one alone and last."""
        bunch: list[Delivery] = []
        size = 0
        alone: list[Delivery] = []
        for each in deliveries:
            if each.redelivered:
                alone.append(each)
                continue
            if bunch and size + len(each.body) > BYTES_MAX:
                yield bunch
                bunch, size = [], 0
            bunch.append(each)
            size += len(each.body)
        if bunch:
            yield bunch
        none = Suspicion()
        for each in sorted(alone, key=lambda delivery: self._suspicions.get(_key(delivery), none).errors):
            yield [each]

    def _store_window(self, connection: BrokerConnection, deliveries: Sequence[Delivery]) -> int:
        """Store and settle a bunch, one by one if its data or a lock stops it. Returns how many were settled."""
        ids = [each.message_id for each in deliveries]
        self._listener(EdgeStep.RECEIVED, ids)
        arrivals = [self.read(each) for each in deliveries]
        self._session.begin()
        try:
            self._write(arrivals)
            self._listener(EdgeStep.STORING, ids)
            self._session.commit()
        except (StoreContention, StoreRefused) as error:
            self._session.rollback()
            if len(deliveries) > 1:
                return sum(self._store_window(connection, [each]) for each in deliveries)
            return self._stopped(connection, arrivals[0], error)
        except (StoreUnavailable, CommitUnknown):
            raise
        except StoreError as error:
            self._session.rollback()
            if len(deliveries) > 1 or not self._is_blamed(deliveries[0]):
                raise
            return self._refuse(connection, arrivals[0], error)
        self._stored(connection, deliveries, ids)
        return len(deliveries)

    def _stored(self, connection: BrokerConnection, deliveries: Sequence[Delivery], ids: Sequence[str]) -> None:
        self._commits += 1
        for each in deliveries:
            self._suspicions.pop(_key(each), None)
        self._listener(EdgeStep.STORED, ids)
        connection.settle(deliveries)
        self.arrived += len(deliveries)
        self._listener(EdgeStep.SETTLED, ids)

    def read(self, delivery: Delivery) -> Arrival:
        """Read the ids of a delivery, which has an ``error`` where that fails."""
        return read_arrival(delivery, self._entrances[delivery.address], self._store, self._clock.now())

    def _write(self, arrivals: Sequence[Arrival]) -> None:
        """Write the ids, the rows and the journal's lines of a window, in the open transaction."""
        now = self._clock.now()
        rows: list[QueueRow] = []
        lines = [self._line(each, "duplicate", "own publication") for each in arrivals if each.is_own]
        arrivals = [each for each in arrivals if not each.is_own]
        verdicts = self._accept([each.acceptance(now) for each in arrivals])
        for each, verdict in zip(arrivals, verdicts, strict=True):
            if verdict.outcome == "repeated" and self._session.edge.clear_mark(*_scope_and_key(each)):
                # A stage consumed it and committed. Whether the broker has what that run sent is not known.
                rows.append(self._row(each))
                lines.append(self._line(each, "doubted", "its run committed, and may not have sent its messages"))
            elif verdict.outcome == "repeated":
                lines.append(self._line(each, "duplicate", "it arrived before"))
            elif verdict.outcome == "conflict" and each.is_derived:
                # The stage that sent it ran again, and its first content was stored.
                lines.append(self._line(each, "duplicate", "differs"))
            elif verdict.outcome == "conflict":
                lines += self._bury_conflict(each, verdict)
            elif each.error is not None:
                lines += self._bury(each, each.error)
            else:
                rows.append(self._row(each))
                lines.append(self._line(each, "arrived"))
        if rows:
            self._session.queue.enqueue(rows)
        self._session.journal.record(lines)

    def _accept(self, acceptances: Sequence[Acceptance]) -> list[Verdict]:
        return self._session.accepted.accept(acceptances, is_patient=False)

    def _row(self, arrival: Arrival) -> QueueRow:
        envelope = arrival.envelope
        ids = arrival.stage, envelope.message_id, envelope.flow_id
        return QueueRow(*ids, 0, 0, 0, envelope.origin_at, arrival.data, None)

    def _line(self, arrival: Arrival, name: WaypointName, detail: str | None = None) -> Waypoint:
        return line_of_arrival(name, arrival, self._clock.now(), self._queue_commit.node, detail)

    def _bury_conflict(self, arrival: Arrival, verdict: Verdict) -> list[Waypoint]:
        """Make a message a dead letter whose id has other content, once for each content."""
        acceptance = arrival.acceptance(self._clock.now())
        apart = Acceptance(acceptance.scope, f"{acceptance.key} {arrival.digest}", arrival.digest, acceptance.outgoing)
        (again,) = self._accept([apart])
        if again.outcome != "started":
            return [self._line(arrival, "duplicate", "it arrived before, with an id that has other content")]
        ids = acceptance.scope, acceptance.key, verdict.digest, arrival.digest
        return self._bury(arrival, IdConflict(*ids, flow_id=arrival.envelope.flow_id))

    def _bury(self, arrival: Arrival, error: Exception) -> list[Waypoint]:
        """Make a message a dead letter in the open transaction. Returns its lines."""
        row = self._row(arrival)
        claim = Claim(0, "", 0, row.stage, row.message_id, row.flow_id, 0, 0, row.origin_at, row.envelope)
        now, node = self._clock.now(), self._queue_commit.node
        letter: DeadLetter = undeliverable(claim, reason_of(error), error, 0, now, node)
        self._session.dead_letters.bury(letter)
        ids = {"message_id": letter.message_id, "flow_id": letter.flow_id}
        logger.error(
            "%s at %s is now a dead letter: %s",
            letter.message_id,
            arrival.delivery.address,
            letter.summary,
            extra={"event": letter.reason, **ids},
        )
        return [self._line(arrival, "arrived"), self._queue_commit.dead_line(letter)]

    def _stopped(self, connection: BrokerConnection, arrival: Arrival, error: StoreError) -> int:
        """Handle a message alone that a lock or its data stopped."""
        if isinstance(error, StoreContention):
            # Another copy of it is being stored. The others go on meanwhile.
            self._try_later(arrival.delivery)
            return 0
        return self._refuse(connection, arrival, error)

    def _refuse(self, connection: BrokerConnection, arrival: Arrival, error: StoreError) -> int:
        """Set a message aside that the store refuses: as a dead letter, or at the broker if that is refused too."""
        delivery = arrival.delivery
        self._session.begin()
        try:
            self._write([replace(arrival, error=error)])
            self._session.commit()
        except (StoreUnavailable, CommitUnknown):
            raise
        except StoreContention:
            self._session.rollback()
            self._try_later(delivery)
            return 0
        except StoreError as letter_error:
            self._session.rollback()
            # An unknown error says nothing about the message. Only a refusal does.
            if not isinstance(letter_error, StoreRefused) and not self._is_blamed(delivery):
                raise
            if not self._set_aside(delivery, letter_error):
                return 0
        self._stored(connection, [delivery], [delivery.message_id])
        return 1

    def _set_aside(self, delivery: Delivery, error: StoreError) -> bool:
        """Publish a delivery to the queue for refused messages. Returns False until the broker has confirmed it."""
        if not self._publish_dead(delivery):
            self._try_later(delivery)
            return False
        logger.error(
            "%s at %s is refused by the store, and so is its dead letter. Its bytes are at %s: %s",
            delivery.message_id,
            delivery.address,
            refused_address(delivery.address),
            error,
            extra={"event": "refused-by-the-store"},
        )
        return True

    def _try_later(self, delivery: Delivery) -> None:
        # It is stored alone then, as a redelivered message is.
        again = delivery._replace(redelivered=True)
        self._later.append((self._clock.monotonic() + AGAIN_SECONDS, again))

    def _is_blamed(self, delivery: Delivery) -> bool:
        """Count an unknown error against a message that met it alone. True once the message is the likely cause."""
        if len(self._suspicions) >= SUSPICIONS_MAX and _key(delivery) not in self._suspicions:
            self._suspicions.clear()
        suspicion = self._suspicions.setdefault(_key(delivery), Suspicion())
        if suspicion.commits != self._commits:
            suspicion.errors += 1
            suspicion.commits = self._commits
        return suspicion.errors >= UNKNOWN_MAX


def reason_of(error: Exception) -> DeathReason:
    if isinstance(error, IdConflict):
        return "conflict"
    if isinstance(error, Undecodable):
        return "undecodable"
    return "hopeless" if isinstance(error, WrongAddress) else "unsendable"


def _scope_and_key(arrival: Arrival) -> tuple[str, str]:
    acceptance = arrival.acceptance(0)
    return acceptance.scope, acceptance.key


def _key(delivery: Delivery) -> str:
    return f"{delivery.address} {delivery.message_id or hash(delivery.body)}"
