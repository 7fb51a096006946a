"""A connection to the memory broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stagepost.broker.memory.queue import BODY_BYTES_MAX as BODY_MAX
from stagepost.broker.memory.queue import Stored
from stagepost.flow.errors import BrokerConnectionLost, BrokerMismatch, BrokerRefused
from stagepost.flow.texts import as_sentence
from stagepost.ports.broker import BrokerFeatures, Delivery, Publication, PublishResult

if TYPE_CHECKING:
    from stagepost.broker.memory.broker import MemoryBroker

# A call that the broker must answer waits so long.
ANSWER_SECONDS = 0.2


@dataclass(eq=False, slots=True)
class Token:
    connection: MemoryConnection
    number: int


@dataclass(slots=True)
class Subscription:
    window: int
    unsettled: set[int] = field(default_factory=set)


class MemoryConnection:
    """Implements ``BrokerConnection``, and ``AtomicConnection`` where the broker ``is_atomic``.

    The broker pushes deliveries to it, as a real one does.
    """

    def __init__(self, broker: MemoryBroker) -> None:
        self.features = BrokerFeatures("memory", "1", broker.is_atomic, finds_unroutable=True, body_bytes_max=BODY_MAX)
        self._broker = broker
        self._lost: str | None = None
        self._subscriptions: dict[str, Subscription] = {}
        self._arrived: list[Delivery] = []
        self._unsettled: dict[int, tuple[str, Stored]] = {}
        self._numbers = 0

    def prepare(self, addresses: Sequence[str], store: str) -> None:
        with self._answered():
            for each in addresses:
                self._broker.prepare(each, store)

    def release(self, address: str, store: str) -> bool:
        with self._answered():
            return self._broker.release(address, store)

    def subscribe(self, windows: Mapping[str, int]) -> None:
        with self._answered():
            for each in windows:
                if not self._broker.has_queue(each):
                    raise BrokerMismatch(f"there is no queue {each} at {self._broker.url}. Prepare the address first.")
            kept = {
                each: old
                for each, old in self._subscriptions.items()
                if each in windows and old.window == windows[each]
            }
            self._subscriptions = {each: kept.get(each) or Subscription(window) for each, window in windows.items()}
            self._broker.push()

    def receive(self, seconds: float) -> list[Delivery]:
        with self._used():
            self._broker.changed.wait_for(lambda: self._lost or (self._arrived and not self._is_frozen), seconds)
            self._check()
            if self._is_frozen:
                return []
            arrived, self._arrived = self._arrived, []
            return arrived

    def settle(self, deliveries: Sequence[Delivery]) -> None:
        with self._used():
            for number in self._numbers_of(deliveries):
                self._take_out(number)
            self._broker.push()

    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        with self._used():
            self._broker.put_back({number: self._take_out(number) for number in self._numbers_of(deliveries)})
            self._broker.push()

    def publish(self, publications: Sequence[Publication], seconds: float) -> list[PublishResult]:
        with self._used():
            if self._broker.is_blocked:
                return ["refused"] * len(publications)
            results: list[PublishResult] = []
            for each in publications:
                results.append(self._publish_one(each))
                if results[-1] == "lost":
                    results += ["lost"] * (len(publications) - len(results))
                    break
            if "unconfirmed" in results:
                self.lose(f"no answer to a publication within {seconds:g} s")
            self._broker.push()
            return results

    def transact(self, settled: Sequence[Delivery], publications: Sequence[Publication], seconds: float) -> None:
        with self._answered():
            numbers = self._numbers_of(settled)
            answers = [self._broker.targets(each) for each in publications]
            refusals = [each for each in answers if isinstance(each, str)]
            if len(numbers) < len(settled):
                raise BrokerRefused("a delivery was settled or given back before. The transaction was not begun.")
            if refusals or self._broker.is_blocked:
                raise BrokerRefused(f"{self._broker.url} refused a transaction, and committed nothing: {refusals}")
            cut, self._broker.cut_commit = self._broker.cut_commit, None
            if cut != "rolled back":
                for number in numbers:
                    self._take_out(number)
                for each in publications:
                    self._broker.store(each)
                self._broker.push()
            if cut is not None:
                self.lose("the test cut it in a commit")
                self._check()

    @property
    def is_blocked(self) -> bool:
        return self._broker.is_blocked

    def is_alive(self, seconds: float) -> bool:
        with self._broker.changed:
            if self._is_frozen:
                self.lose("the broker does not answer")
            return self._lost is None

    def depth(self, address: str) -> int | None:
        with self._answered():
            return self._broker.depth(address)

    def close(self) -> None:
        with self._broker.changed:
            self.lose("it was closed")

    # For the broker, which holds the lock.

    def lose(self, reason: str) -> None:
        if self._lost is not None:
            return
        self._lost = reason
        self._broker.forget(self)
        self._broker.put_back(self._unsettled)
        self._unsettled = {}
        self._arrived = []
        self._broker.push()

    def take_one(self) -> bool:
        """Take one message from each queue whose window has room. Returns whether there was one."""
        took = False
        for address, subscription in self._subscriptions.items():
            if len(subscription.unsettled) >= subscription.window:
                continue
            stored = self._broker.take(address)
            if stored is None:
                continue
            took = True
            self._numbers += 1
            subscription.unsettled.add(self._numbers)
            self._unsettled[self._numbers] = (address, stored)
            sent = stored.publication
            token = Token(self, self._numbers)
            self._arrived.append(
                Delivery(address, sent.message_id, sent.body, dict(sent.headers), token, stored.was_delivered)
            )
        return took

    # For this connection's own calls, which hold the lock.

    @property
    def _is_frozen(self) -> bool:
        return self._broker.is_frozen

    @contextmanager
    def _used(self) -> Iterator[None]:
        with self._broker.changed:
            self._check()
            yield

    @contextmanager
    def _answered(self) -> Iterator[None]:
        with self._used():
            if self._broker.changed.wait_for(lambda: not self._is_frozen, ANSWER_SECONDS if self._is_frozen else 0):
                yield
                return
            self.lose(f"no answer within {ANSWER_SECONDS:g} s")
            self._check()

    def _check(self) -> None:
        if self._lost is not None:
            raise BrokerConnectionLost(
                f"the connection to the broker {self._broker.url} is lost: {as_sentence(self._lost)}"
            )

    def _numbers_of(self, deliveries: Sequence[Delivery]) -> set[int]:
        """Return the numbers of those deliveries that are not settled yet."""
        tokens = [each.token for each in deliveries]
        if not all(isinstance(each, Token) and each.connection is self for each in tokens):
            raise ValueError("a delivery belongs to another connection; settle it there, or let it come again")
        return {each.number for each in tokens if isinstance(each, Token) and each.number in self._unsettled}

    def _take_out(self, number: int) -> tuple[str, Stored]:
        for each in self._subscriptions.values():
            each.unsettled.discard(number)
        return self._unsettled.pop(number)

    def _publish_one(self, publication: Publication) -> PublishResult:
        broker = self._broker
        if self._is_frozen:
            return "unconfirmed"
        if broker.cut_after is not None:
            broker.cut_after -= 1
            if broker.cut_after < 0:
                broker.cut_after = None
                broker.store(publication)
                self.lose("the test cut it in mid-window")
                return "lost"
        answer = broker.store(publication)
        return "unconfirmed" if publication.address in broker.silent and answer == "confirmed" else answer
