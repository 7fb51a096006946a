"""The memory broker: queues, topics and marks, and the faults that tests inject."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from stagepost.broker.memory.connection import MemoryConnection
from stagepost.broker.memory.queue import BODY_BYTES_MAX, MemoryQueue, Stored
from stagepost.flow.errors import AddressTaken, BrokerDenied, BrokerMismatch, BrokerUnavailable
from stagepost.ports.broker import Publication, PublishResult, is_topic, refused_address, topic_of

SCHEME = "memory:"


class MemoryBroker:
    """Implements ``Broker`` within one process. Any thread may call its methods.

    Its faults are attributes and methods. They hold until a test takes them back.

    ``is_down``      no connection is opened
    ``denies``       no connection is opened, because of the credentials
    ``is_blocked``   refuses every publication, for lack of memory
    ``refusing``     addresses whose publications are refused
    ``silent``       addresses whose publications are stored, and never confirmed
    ``doubling``     so many of the next publications are stored twice
    ``cut_after``    so many publications are confirmed; the next one is stored, and the connection is lost
    ``cut_commit``   the next transaction loses its connection, and is committed or not
    ``is_atomic``    connections have transactions, as those of ActiveMQ
    """

    def __init__(self, name: str = "broker", *, is_atomic: bool = False) -> None:
        self.url = f"{SCHEME}{name}"
        self.is_atomic = is_atomic
        self.is_down = False
        self.denies = False
        self.is_blocked = False
        self.refusing: set[str] = set()
        self.silent: set[str] = set()
        self.doubling = 0
        self.cut_after: int | None = None
        self.cut_commit: Literal["committed", "rolled back"] | None = None
        self.is_frozen = False
        # Guards all that is below, and wakes the connections that wait for deliveries.
        self.changed = threading.Condition()
        self._queues: dict[str, MemoryQueue] = {}
        self._bindings: dict[str, set[str]] = {}
        self._marks: dict[str, str] = {}
        self._connections: list[MemoryConnection] = []
        self._places = 0

    def connect(self, seconds: float) -> MemoryConnection:
        if self.is_down or self.is_frozen:
            raise BrokerUnavailable(f"no host of the broker {self.url} answers: it is down.")
        if self.denies:
            raise BrokerDenied(f"the broker {self.url} refuses the credentials.")
        connection = MemoryConnection(self)
        with self.changed:
            self._connections.append(connection)
        return connection

    # The faults that are events.

    def cut(self, reason: str = "the test cut it") -> None:
        """Lose all connections."""
        with self.changed:
            for each in list(self._connections):
                each.lose(reason)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Answer nothing during the block, as a suspended server."""
        self.is_frozen = True
        try:
            yield
        finally:
            self.is_frozen = False

    def declare_otherwise(self, address: str) -> None:
        """Declare a queue with other arguments than Stagepost's."""
        with self.changed:
            self._queues[address] = MemoryQueue(is_ours=False)

    def waiting(self, address: str) -> list[Publication]:
        """Return the messages that wait at an address and are not handed out."""
        with self.changed:
            queue = self._queues.get(address)
            return [each.publication for each in queue.messages] if queue else []

    # For the connections, which hold the lock.

    def prepare(self, address: str, store: str) -> None:
        if is_topic(address):
            self._bindings.setdefault(address, set())
            return
        owner = self._marks.setdefault(address, store)
        if owner != store:
            raise AddressTaken(
                f"the store {owner} receives from {address} at {self.url}, and this one is {store}. Let all replicas "
                "share one store, or release the address if that store is gone."
            )
        for each in (address, refused_address(address)):
            if not self._queues.setdefault(each, MemoryQueue()).is_ours:
                raise BrokerMismatch(
                    f"the queue {each} at {self.url} exists, and its argument 'is_ours' differs. Delete the queue."
                )
        if topic := topic_of(address):
            self._bindings.setdefault(f"@{topic}", set()).add(address)

    def release(self, address: str, store: str) -> bool:
        if self._marks.get(address) != store:
            return False
        del self._marks[address]
        return True

    def store(self, publication: Publication) -> PublishResult:
        """Store a publication, and return the answer that its sender gets."""
        targets = self.targets(publication)
        if isinstance(targets, str):
            return targets
        copies = 1
        if self.doubling:
            self.doubling -= 1
            copies = 2
        for target in sorted(targets) * copies:
            self._places += 1
            self._queues[target].messages.append(Stored(self._places, publication))
        return "confirmed"

    def targets(self, publication: Publication) -> set[str] | PublishResult:
        """Return the queues that a publication goes to, or the answer to one that the broker does not store."""
        if len(publication.body) > BODY_BYTES_MAX:
            return "oversized"
        if publication.address in self.refusing:
            return "refused"
        if is_topic(publication.address):
            return self._bindings.get(publication.address) or "unroutable"
        return {publication.address} if publication.address in self._queues else "unroutable"

    def has_queue(self, address: str) -> bool:
        return address in self._queues

    def depth(self, address: str) -> int | None:
        queue = self._queues.get(address)
        return None if queue is None else len(queue.messages)

    def take(self, address: str) -> Stored | None:
        queue = self._queues.get(address)
        return queue.messages.popleft() if queue and queue.messages else None

    def put_back(self, returned: Mapping[int, tuple[str, Stored]]) -> None:
        """Return messages to their queues, at their old places."""
        for address, stored in returned.values():
            stored.was_delivered = True
            messages = self._queues[address].messages
            messages.append(stored)
            self._queues[address].messages = deque(sorted(messages, key=lambda each: each.place))

    def push(self) -> None:
        """Hand out what waits, to each connection in turn, as far as the windows allow."""
        moved = True
        while moved:
            moved = False
            for each in self._connections:
                moved |= each.take_one()
        self.changed.notify_all()

    def forget(self, connection: MemoryConnection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
