"""A broker at the edge of a store: one connection to it, and the deliveries and publications that travel over it.

A broker carries messages between services. The store stays the queue. So a connection neither delays, expires nor
counts attempts: its receiver commits deliveries to the store before it settles them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

# The broker's answer to a publication. ``unroutable``: no queue takes the address. ``refused``: the broker answered no,
# and may accept the same bytes later. ``oversized``: the broker never accepts so many bytes.
PublishResult = Literal["confirmed", "unroutable", "refused", "oversized"]


class Delivery(NamedTuple):
    """A message that the broker handed out and that is not settled yet.

    ``message_id``   the sender's id; empty where the sender gave none
    ``headers``      the broker's and the sender's headers, as text
    ``token``        identifies the delivery on its connection; void once the connection is lost
    ``redelivered``  the broker says that it may have delivered the message before
    """

    address: str
    message_id: str
    body: bytes
    headers: Mapping[str, str]
    token: object
    redelivered: bool


class Publication(NamedTuple):
    """A message to publish, persistently. ``headers`` travel with the body; ``message_id`` is among them."""

    address: str
    message_id: str
    body: bytes
    headers: Mapping[str, str]


class BrokerFeatures(NamedTuple):
    """The abilities of the connected broker.

    ``product``, ``version``      as the broker tells them
    ``is_atomic``                 consumes and publishes in one transaction: the connection is an ``AtomicConnection``
    ``finds_unroutable``          answers ``unroutable`` for an address without a queue
    ``body_bytes_max``            None where the broker does not tell it
    """

    product: str
    version: str
    is_atomic: bool
    finds_unroutable: bool
    body_bytes_max: int | None


class BrokerConnection(Protocol):
    """One connection to a broker, driven by one thread.

    A thread of its own writes heart-beats and stamps each frame that arrives. So a long commit of the driving thread
    neither loses the connection nor hides its death. Every method has a deadline. Every method raises
    ``BrokerConnectionLost`` where the connection is lost, also past a deadline: then every token is void, every
    publication without an answer may have been published, and only ``close`` is allowed.
    """

    @property
    def features(self) -> BrokerFeatures: ...

    def prepare(self, addresses: Sequence[str], store: str) -> None:
        """Declare the queues of these addresses, durable, for the store with that uuid, and wait until they are safe.

        Raises ``AddressTaken`` where another store receives one, and ``BrokerMismatch`` where a queue exists with other
        arguments. Nothing that exists is changed.
        """

    def release(self, address: str, store: str) -> bool:
        """Remove the mark of a store that is gone from an address. Returns False where the store has no mark there."""

    def subscribe(self, windows: Mapping[str, int]) -> None:
        """Receive from these addresses, and no others; each with at most so many unsettled deliveries.

        Deliveries of an address that is left out, and that have arrived already, are still returned by ``receive``.
        """

    def receive(self, seconds: float) -> list[Delivery]:
        """Return the deliveries that have arrived. Waits up to ``seconds`` for the first one."""

    def settle(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge each of these deliveries, and no other."""

    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """Return deliveries to their queues, uncounted where the broker can do that."""

    def publish(self, publications: Sequence[Publication], seconds: float) -> list[PublishResult]:
        """Publish, and return the broker's answers in order. All confirms are awaited together.

        Raises ``PublishUnconfirmed`` where answers are missing after ``seconds``; the connection is lost then.
        """

    @property
    def is_blocked(self) -> bool:
        """Says that the broker takes no publications at present, for lack of memory or disk."""

    def is_alive(self, seconds: float) -> bool:
        """Say whether a frame arrived within the last two heart-beats, or answers within ``seconds``."""

    def depth(self, address: str) -> int | None:
        """Return how many messages wait at an address; None where the broker does not tell it."""

    def close(self) -> None:
        """Close the connection. The broker delivers again all that is not settled. Never raises."""


class AtomicConnection(BrokerConnection, Protocol):
    """A connection that settles and publishes in one transaction of the broker."""

    def transact(self, settled: Sequence[Delivery], publications: Sequence[Publication], seconds: float) -> None:
        """Settle the deliveries and publish, all or nothing.

        The commit is sent only after the broker has answered every frame of the transaction. Raises ``BrokerRefused``
        where nothing was committed, and ``BrokerConnectionLost`` where that is unknown.
        """


class Broker(Protocol):
    """A broker, found by its URL. Its hosts are tried in turn, with back-off and jitter between rounds.

    ``url``  for people: without a password
    """

    @property
    def url(self) -> str: ...

    def connect(self, seconds: float) -> BrokerConnection:
        """Open a connection to the first host that answers.

        Raises ``BrokerUnavailable``, which names each host and its reason, and ``BrokerDenied`` for wrong credentials
        or a certificate that is not trusted, which another try cannot cure.
        """


class BrokerDriver(Protocol):
    """The driver of a URL scheme: a module, or an object of a subclass of this one."""

    def check(self, url: str) -> None:
        """Raise ``DeclarationError`` for a malformed URL."""

    def broker(self, url: str) -> Broker:
        """Return the broker. Opens no connection."""
