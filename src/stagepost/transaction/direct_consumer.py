"""Consume from a broker directly: run a fresh delivery, and let every other one take the receiver's way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stagepost.flow.claim import Claim
from stagepost.flow.errors import BrokerConnectionLost
from stagepost.ports.broker import BrokerConnection, Delivery
from stagepost.transaction.attempt import AttemptRunner
from stagepost.transaction.direct import DirectCommit
from stagepost.transaction.outcome import Abandoned, Completed, Lost
from stagepost.transaction.outcome_log import log_outcome
from stagepost.transaction.receiver import Receiver


class DirectConsumer:
    """The direct consumer of one thread.

    ``receiver``  stores the deliveries that are not run
    ``runner``    runs attempts on ``commit``, in the direct mode of each stage
    ``owner``     the incarnation that runs them
    """

    def __init__(self, receiver: Receiver, runner: AttemptRunner, commit: DirectCommit, owner: str) -> None:
        self._receiver = receiver
        self._runner = runner
        self._commit = commit
        self._owner = owner

    def turn(self, connection: BrokerConnection, windows: Mapping[str, int], seconds: float) -> int:
        """Receive from the addresses of ``windows``, and run or store each delivery. Returns how many were settled.

        Waits up to ``seconds`` for a delivery. Raises ``StoreError``, and ``BrokerConnectionLost``, after which the
        broker delivers again what is not settled.
        """
        return self.handle(connection, windows, self.receive(connection, windows, seconds))

    def receive(self, connection: BrokerConnection, windows: Mapping[str, int], seconds: float) -> list[Delivery]:
        """Return deliveries of the addresses of ``windows``, as a receiver does."""
        return self._receiver.receive(connection, windows, seconds)

    def handle(self, connection: BrokerConnection, windows: Mapping[str, int], deliveries: Sequence[Delivery]) -> int:
        """Run or store each delivery. Returns how many were settled. Raises as ``turn`` does."""
        settled = 0
        for each in deliveries:
            may_run = each.address in windows and not each.redelivered and not connection.is_blocked
            if may_run and self._is_settled(connection, each):
                settled += 1
            else:
                settled += self._receiver.store(connection, [each])
        return settled

    def stop(self, connection: BrokerConnection) -> int:
        """End the subscriptions, and store the deliveries that were pushed already. Raises as ``turn`` does."""
        return self._receiver.stop(connection)

    def close(self) -> None:
        """End the use of the session, which is the caller's."""
        self._runner.close()

    def _is_settled(self, connection: BrokerConnection, delivery: Delivery) -> bool:
        """Run a delivery. Returns False where it must take the receiver's way."""
        arrival = self._receiver.read(delivery)
        if arrival.error is not None or arrival.is_own:
            return False
        envelope = arrival.envelope
        ids = arrival.stage, envelope.message_id, envelope.flow_id
        claim = Claim(0, self._owner, 1, *ids, 0, 0, envelope.origin_at, arrival.data)
        self._commit.handle(connection, arrival)
        outcome = self._runner.run(claim)
        if self._commit.is_abandoned or isinstance(outcome, Abandoned):
            raise BrokerConnectionLost(f"the run of {claim.message_id} at {claim.stage} lost its delivery.")
        if isinstance(outcome, Lost):
            # Its id is known, so it is a copy. The receiver decides which one it is.
            return False
        if not isinstance(outcome, Completed):
            # The outcome's commit stored it.
            log_outcome(claim, outcome)
            connection.settle([delivery])
        return True
