"""Negative controls of the edge: each breaks one of its guarantees, in the processes of one campaign."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from stagepost.broker.activemq.connection import ActiveMQConnection
from stagepost.broker.activemq.frames import Frame
from stagepost.broker.activemq.messages import send_frame
from stagepost.broker.activemq.subscriptions import ANSWER_SECONDS, ack_frame
from stagepost.flow.claim import Claim
from stagepost.flow.errors import LeaseLost
from stagepost.flow.initiation import Acceptance, Verdict
from stagepost.ports.broker import Delivery, Publication
from stagepost.store.postgres.writer import PostgresAccepted
from stagepost.store.sqlite.writer import SqliteAccepted
from stagepost.transaction.arrivals import Arrival, line_of_arrival
from stagepost.transaction.direct import DirectCommit
from stagepost.transaction.dispatcher import Dispatcher
from stagepost.transaction.receiver import Receiver


def settle_before_commit() -> None:
    """The broker forgets a message before the store has it."""
    write = Receiver._write

    def write_settled(self: Receiver, arrivals: Sequence[Arrival]) -> None:
        assert self._connection is not None
        self._connection.settle([each.delivery for each in arrivals])
        write(self, arrivals)

    Receiver._write = write_settled  # type: ignore[method-assign]


def nothing_accepted() -> None:
    """Each delivery is new."""

    def accept(self: object, acceptances: Sequence[Acceptance], *, is_patient: bool = True) -> list[Verdict]:
        return [Verdict("started", each.digest) for each in acceptances]

    SqliteAccepted.accept = accept  # type: ignore[method-assign]
    PostgresAccepted.accept = accept  # type: ignore[method-assign]


def scope_of_an_initiation() -> None:
    """A receiver accepts an id in the scope in which ``app.start`` did."""
    acceptance = Arrival.acceptance

    def accept(self: Arrival, now: int) -> Acceptance:
        return replace(acceptance(self, now), scope=self.delivery.address)

    Arrival.acceptance = accept  # type: ignore[method-assign]


def ungated_commit() -> None:
    """A transaction of ActiveMQ is committed, whatever the broker answered to its frames."""

    def transact(
        self: ActiveMQConnection, settled: Sequence[Delivery], publications: Sequence[Publication], seconds: float
    ) -> None:
        tokens = self._subscriptions.open_tokens(settled)
        self._transactions += 1
        name = f"t{self._transactions}"
        transaction = {"transaction": name}
        sends = [send_frame(each) for each in publications]
        frames = [
            Frame("BEGIN", transaction),
            *(ack_frame(each, name) for each in tokens),
            *(Frame("SEND", {**each.headers, **transaction}, each.body) for each in sends),
        ]
        self._session.demand(frames, ANSWER_SECONDS)
        self._session.demand([Frame("COMMIT", transaction)], ANSWER_SECONDS)
        self._subscriptions.close_tokens(tokens)

    ActiveMQConnection.transact = transact  # type: ignore[method-assign]


def cumulative_acknowledgement() -> None:
    """An acknowledgement takes all earlier deliveries of its connection along."""
    # Not where its client is missing.
    from stagepost.broker.rabbitmq.connection import RabbitConnection

    RabbitConnection._prefix = lambda self, tags: len(tags)  # type: ignore[method-assign]


def no_incarnation() -> None:
    """A dispatcher cannot tell which claims are those of a dead one. It takes all that are not its own."""
    claim = Dispatcher._claim

    def claim_all(self: Dispatcher) -> list[Claim]:
        for owner in self._session.queue.owners():
            if owner != self._owner:
                claims = self._session.queue.owned(owner)
                self._release([each for each in claims if each.stage.startswith("@")])
        return claim(self)

    Dispatcher._claim = claim_all  # type: ignore[method-assign]


def direct_run_without_its_key() -> None:
    """A direct run looks whether its id is known, and does not insert it."""

    def admit(self: DirectCommit, claim: Claim, *, is_direct: bool) -> None:
        acceptance = self.arrival.acceptance(self.clock.now())
        accepted = self.session.accepted
        assert isinstance(accepted, SqliteAccepted)
        if accepted._run("find_accepted", (acceptance.scope, acceptance.key)).fetchone() is not None:
            raise LeaseLost.of(claim.message_id, claim.stage)
        self.session.journal.record([line_of_arrival("arrived", self.arrival, self.clock.now(), self.node)])

    DirectCommit.admit = admit  # type: ignore[method-assign]


SABOTAGES: dict[str, Callable[[], None]] = {
    each.__name__.replace("_", "-"): each
    for each in (
        settle_before_commit,
        nothing_accepted,
        scope_of_an_initiation,
        ungated_commit,
        cumulative_acknowledgement,
        no_incarnation,
        direct_run_without_its_key,
    )
}


def apply(name: str) -> None:
    SABOTAGES[name]()
