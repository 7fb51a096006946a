"""A connection to ActiveMQ Classic, or to Artemis without its transactions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from stagepost.broker.activemq.examination import Examination
from stagepost.broker.activemq.frames import Frame
from stagepost.broker.activemq.messages import (
    HEADERS_RESERVE,
    destination_of,
    is_oversized,
    says_full,
    says_oversized,
    send_frame,
)
from stagepost.broker.activemq.ownership import Marks
from stagepost.broker.activemq.session import Answer, StompSession
from stagepost.broker.activemq.subscriptions import ANSWER_SECONDS, Subscriptions, Token, ack_frame, subscribe_frame
from stagepost.flow.clock import Clock
from stagepost.flow.errors import BrokerConnectionLost, BrokerDenied, BrokerError, BrokerRefused
from stagepost.ports.broker import (
    BrokerFeatures,
    Delivery,
    EdgeAddresses,
    Publication,
    PublishResult,
    is_topic,
    refused_address,
)
from stagepost.ports.findings import Finding

# ActiveMQ keeps each message that was acknowledged in a transaction until its connection ends. A fresh connection after
# so many transactions keeps the speed level.
TRANSACTIONS_MAX: Final = 1_000
# ActiveMQ tells a lack of room only in answer to a publication. It is asked again after this time.
BLOCKED_SECONDS: Final = 5.0


class ActiveMQConnection:
    """Implements ``BrokerConnection``, ``ExaminableConnection``, and ``AtomicConnection`` where ``features.is_atomic``.

    ``open_session``  opens another session to the same host, for at most some seconds
    ``configuration``  the broker's configuration file, which only ``examine`` reads
    """

    def __init__(
        self,
        session: StompSession,
        open_session: Callable[[float], StompSession],
        clock: Clock,
        *,
        heartbeat_seconds: float,
        frame_bytes_max: int,
        configuration: Path | None = None,
    ) -> None:
        self._configuration = configuration
        self._session = session
        self._open_session = open_session
        self._clock = clock
        self._heartbeat_seconds = heartbeat_seconds
        self._frame_bytes_max = frame_bytes_max
        self._subscriptions = Subscriptions(lambda: self._session)
        self._marks = Marks(lambda: self._session)
        self._transactions = 0
        self._blocked_until = clock.monotonic()
        # The broker has not yet taken a publication on this connection, or has refused the last one for lack of room.
        self._is_doubtful = True
        self.features = features_of(session.connected, frame_bytes_max)

    def prepare(self, addresses: Sequence[str], store: str) -> None:
        queues = [each for each in addresses if not is_topic(each)]
        for each in queues:
            if not each.startswith("_"):
                self._marks.claim(each, store)
        # ActiveMQ makes a queue when it is first named, keeps it over a restart, and copies the messages of a topic
        # only to the queues that exist.
        beside = [refused_address(each) for each in queues if not each.startswith("_")]
        for each in [*queues, *beside]:
            frames = [subscribe_frame("prepared", each, 1), Frame("UNSUBSCRIBE", {"id": "prepared"})]
            error, _ = self._session.demand(frames, ANSWER_SECONDS)
            if error is not None:
                raise BrokerDenied(
                    f"{self._session.place} refused the queue of {each}: {error}. Give the user of the broker URL the "
                    "rights to read, to write and to create it."
                )

    def release(self, address: str, store: str) -> bool:
        return self._marks.release(address, store)

    def subscribe(self, windows: Mapping[str, int]) -> None:
        self._subscriptions.replace(windows)

    def receive(self, seconds: float) -> list[Delivery]:
        self._session.wait(self._subscriptions.has_arrived, seconds)
        return self._subscriptions.take()

    def settle(self, deliveries: Sequence[Delivery]) -> None:
        tokens = self._subscriptions.open_tokens(deliveries)
        self._session.check()
        self._subscriptions.settle(tokens)

    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        tokens = self._subscriptions.open_tokens(deliveries)
        self._session.check()
        self._subscriptions.give_back(tokens)

    def publish(self, publications: Sequence[Publication], seconds: float) -> list[PublishResult]:
        self._session.check()
        deadline = self._clock.monotonic() + seconds
        frames = [send_frame(each) for each in publications]
        results: dict[int, PublishResult] = {
            place: "oversized" for place, each in enumerate(frames) if is_oversized(each, self._frame_bytes_max)
        }
        has_sent = False
        while waiting := [place for place in range(len(frames)) if place not in results]:
            if self._session.is_lost:
                missing: PublishResult = "unconfirmed" if self._session.is_ours_to_blame else "lost"
                results |= dict.fromkeys(waiting, missing)
                break
            # A full broker answers each publication only after some seconds, so one message asks for all.
            window = waiting[:1] if self._is_doubtful else waiting
            left = max(0.0, deadline - self._clock.monotonic())
            try:
                answers = self._session.ask([frames[each] for each in window], left)
            except BrokerConnectionLost:
                if not has_sent:
                    raise
                # The heart-beat thread found the loss after the last window. The answers that came are kept.
                continue
            has_sent = True
            answered = {
                place: self._result_of(each) for place, each in zip(window, answers, strict=True) if each is not None
            }
            results |= answered
            unanswered = [place for place in window if place not in answered]
            if unanswered and says_oversized(self._session.fatal_error):
                # ActiveMQ answers a SEND before it reads the next one, so it has not read the later ones.
                results[unanswered[0]] = "oversized"
                self._recycle()
            elif self.is_blocked and len(window) < len(waiting):
                results |= dict.fromkeys(waiting[1:], "refused")
        return [results[place] for place in range(len(frames))]

    def transact(self, settled: Sequence[Delivery], publications: Sequence[Publication], seconds: float) -> None:
        tokens = self._subscriptions.open_tokens(settled)
        self._session.check()
        if not self.features.is_atomic:
            raise BrokerRefused(
                f"{self._session.place} has no transactions over STOMP: it is {self.features.product}. Use the mode "
                "outbox."
            )
        deadline = self._clock.monotonic() + seconds
        sends = self._checked(settled, tokens, publications, seconds)
        self._transactions += 1
        name = f"t{self._transactions}"
        transaction = {"transaction": name}
        acks = [ack_frame(each, name) for each in tokens]
        sends = [Frame("SEND", {**each.headers, **transaction}, each.body) for each in sends]
        # An error in a transaction of ActiveMQ does not keep its COMMIT from publishing the rest.
        errors = self._session.demand(
            [Frame("BEGIN", transaction), *acks, *sends], max(0.0, deadline - self._clock.monotonic())
        )
        refusal = next((each for each in errors if each is not None), None)
        if refusal is not None:
            self._session.demand([Frame("ABORT", transaction)], ANSWER_SECONDS)
            if says_full(refusal):
                self._note_full()
            raise BrokerRefused(f"{self._session.place} refused a transaction, and committed nothing: {refusal}")
        [error] = self._session.demand([Frame("COMMIT", transaction)], max(0.0, deadline - self._clock.monotonic()))
        if error is not None:
            self._session.lose(f"the broker did not confirm a COMMIT, whose outcome is unknown: {error}")
            self._session.check()
        self._subscriptions.close_tokens(tokens)
        if self._transactions >= TRANSACTIONS_MAX:
            self._recycle()

    @property
    def is_blocked(self) -> bool:
        return self._clock.monotonic() < self._blocked_until

    def is_alive(self, seconds: float) -> bool:
        if self._session.has_sign_of_life(self._heartbeat_seconds):
            return True
        # No frame of STOMP does nothing; an empty transaction comes closest.
        probe = {"transaction": "probe"}
        try:
            self._session.demand([Frame("BEGIN", probe), Frame("ABORT", probe)], seconds)
        except BrokerConnectionLost:
            return False
        return True

    def examine(self, addresses: EdgeAddresses, now: int) -> list[Finding]:
        look = Examination(self._session, self._marks, self._clock.monotonic, self._configuration, addresses, now)
        return look.findings()

    def depth(self, address: str) -> int | None:
        """Return how many messages ActiveMQ shows that are not handed out to this connection.

        That is at most its setting ``maxBrowsePageSize``, 400 by default, and counts those that other connections hold.
        """
        shown = len(self._marks.browse(destination_of(address)))
        return max(0, shown - self._subscriptions.count_at(address))

    def close(self) -> None:
        self._session.close()

    def _result_of(self, answer: Answer) -> PublishResult:
        if answer.is_receipt:
            self._is_doubtful = False
            self._blocked_until = self._clock.monotonic()
            return "confirmed"
        if says_full(answer.text):
            self._note_full()
        return "refused"

    def _note_full(self) -> None:
        self._is_doubtful = True
        self._blocked_until = self._clock.monotonic() + BLOCKED_SECONDS

    def _checked(
        self, settled: Sequence[Delivery], tokens: Sequence[Token], publications: Sequence[Publication], seconds: float
    ) -> list[Frame]:
        """Return the SEND frames of a transaction. Raises ``BrokerRefused`` for one that cannot be committed."""
        sends = [send_frame(each) for each in publications]
        for publication, frame in zip(publications, sends, strict=True):
            if is_oversized(frame, self._frame_bytes_max):
                raise BrokerRefused(
                    f"the message {publication.message_id} to {publication.address} has {len(publication.body)} bytes "
                    f"and {len(publication.headers)} headers, more than {self._session.place} takes. Send less, or "
                    "raise its maxFrameSize and max_frame_bytes of the broker URL."
                )
        if len(tokens) < len({id(each.token) for each in settled}):
            raise BrokerRefused("a delivery was settled or given back before. The transaction was not begun.")
        if not self._subscriptions.await_return(tokens, seconds):
            raise BrokerRefused(
                f"{self._session.place} handed a delivery to another consumer, after this one had subscribed again. "
                "The transaction was not begun."
            )
        return sends

    def _recycle(self) -> None:
        """Go on over a new session. Deliveries that were handed out arrive again, and keep their tokens.

        The connection is lost where that fails.
        """
        self._session.close()
        try:
            self._session = self._open_session(ANSWER_SECONDS)
            self._subscriptions.resume()
        except BrokerError as error:
            self._session.lose(f"it could not be renewed: {error}")
        self._transactions = 0


def features_of(connected: Mapping[str, str], frame_bytes_max: int) -> BrokerFeatures:
    """Return what the headers of ``CONNECTED`` tell."""
    product, _, version = connected.get("server", "").partition(" ")[0].partition("/")
    return BrokerFeatures(
        product or "unknown",
        version or "unknown",
        # Artemis acknowledges at once whatever names a transaction, and so would lose messages.
        is_atomic=product == "ActiveMQ",
        finds_unroutable=False,
        body_bytes_max=frame_bytes_max - HEADERS_RESERVE,
    )
