"""A broker at the edge of a store: one connection to it, and the deliveries and publications that travel over it.

A broker carries messages between services. The store stays the queue. So a connection neither delays, expires nor
counts attempts: its receiver commits deliveries to the store before it settles them.

An *address* is a text of one of three forms. A name holds no ``@``, and begins with a letter.

    orders.place      a queue
    @prices           a topic: a publication to it goes to the queue of each subscriber
    billing@prices    the queue of the subscriber ``billing`` of the topic ``prices``

Stagepost's own queues beside an address begin with ``_``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from stagepost.flow.clock import Clock
from stagepost.ports.findings import Finding

# The broker's answer to a publication.
#
# ``confirmed``    the broker has the message
# ``unroutable``   no queue takes the address, or the topic has no subscriber
# ``refused``      the broker answered no or is blocked, has not got the message, and may accept the same bytes later
# ``oversized``    the broker never accepts so many bytes, in the body or in the headers
# ``unconfirmed``  no answer came within the deadline, or the broker fell silent; the message may have been published,
#                  and the connection is lost
# ``lost``         the broker or the network ended the connection before an answer; the message may have been published
PublishResult = Literal["confirmed", "unroutable", "refused", "oversized", "unconfirmed", "lost"]


def topic_address(topic: str) -> str:
    return f"@{topic}"


def subscriber_address(topic: str, subscriber: str) -> str:
    return f"{subscriber}@{topic}"


def topic_of(address: str) -> str:
    """Return the topic of the address of a topic or of a subscriber; empty for a queue."""
    return "" if address.startswith("_") else address.partition("@")[2]


def is_topic(address: str) -> bool:
    return address.startswith("@")


def mark_address(address: str) -> str:
    """Return the address of the queue that names the store which receives from ``address``."""
    return f"_store.{address}"


def refused_address(address: str) -> str:
    """Return the address of the queue for those messages to ``address`` that the store refuses for good."""
    return f"_dead.{address}"


class Delivery(NamedTuple):
    """A message that the broker handed out and that is not settled yet.

    ``address``      the queue that it came from, as it was subscribed
    ``message_id``   the sender's id; empty where the sender gave none
    ``headers``      the sender's headers and those of the broker, as text
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
    """A message to publish, persistently. Its receiver gets the same ``message_id``, ``body`` and ``headers``."""

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
    neither loses the connection nor hides its death. Every method has a deadline. Except where its text says otherwise,
    every method raises ``BrokerConnectionLost`` where the connection is lost, also past a deadline: then every token is
    void, and only ``close`` is allowed.

    A broker that lacks memory or disk stops reading a connection that publishes. A receiver must go on settling, so it
    publishes over another connection.
    """

    @property
    def features(self) -> BrokerFeatures: ...

    def prepare(self, addresses: Sequence[str], store: str) -> None:
        """Declare what these addresses need, durable, for the store with that uuid, and wait until it is safe.

        The queue of a subscriber is bound to its topic. A queue gets the one of ``refused_address`` beside it. Queues
        carry the mark of the store; topics carry none. Nothing that exists is changed.

        Raises ``AddressTaken`` where another store receives an address, and ``BrokerMismatch`` where a queue exists
        with other arguments. Both leave the connection alive.
        """

    def release(self, address: str, store: str) -> bool:
        """Remove the mark of a store that is gone from an address. Returns False where the store has no mark there."""

    def subscribe(self, windows: Mapping[str, int]) -> None:
        """Receive from these addresses, and no others; each with at most so many unsettled deliveries.

        An address whose window stays the same is left alone. Unsettled deliveries of an earlier subscription count
        against no window. Deliveries of an address that is left out, and that have arrived already, are still returned
        by ``receive``. Raises ``BrokerMismatch`` where a queue does not exist; the connection stays alive.
        """

    def receive(self, seconds: float) -> list[Delivery]:
        """Return the deliveries that have arrived. Waits up to ``seconds`` for the first one."""

    def settle(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge each of these deliveries, and no other.

        A delivery that was settled or given back before is left alone. Raises ``ValueError`` for a delivery of another
        connection, and settles nothing then.
        """

    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """Return deliveries to their queues, uncounted where the broker can do that. Otherwise like ``settle``."""

    def publish(self, publications: Sequence[Publication], seconds: float) -> list[PublishResult]:
        """Publish, and return the broker's answers in order. All confirms are awaited together, for up to ``seconds``.

        Raises ``BrokerConnectionLost`` only where the connection was lost before anything was sent. After the result
        ``unconfirmed`` or ``lost`` the connection is lost.
        """

    @property
    def is_blocked(self) -> bool:
        """Say whether the broker takes no publications at present, for lack of memory or disk.

        A broker may tell it only to a connection that has published. Never raises.
        """

    def is_alive(self, seconds: float) -> bool:
        """Say whether a frame arrived within the last two heart-beats, or the broker answers within ``seconds``.

        Never raises. After False the connection is lost.
        """

    def depth(self, address: str) -> int | None:
        """Return how many messages wait at an address and are not handed out; None where that is not known."""

    def close(self) -> None:
        """Close the connection. The broker delivers again all that is not settled. Never raises."""


class AtomicConnection(BrokerConnection, Protocol):
    """A connection that settles and publishes in one transaction of the broker."""

    def transact(self, settled: Sequence[Delivery], publications: Sequence[Publication], seconds: float) -> None:
        """Settle the deliveries and publish, all or nothing.

        The commit is sent only after the broker has answered every frame of the transaction. Raises ``BrokerRefused``
        where nothing was committed, and ``BrokerConnectionLost`` where that is unknown.
        """


class EdgeAddresses(NamedTuple):
    """The addresses of one store at its broker.

    ``store``     the store's uuid
    ``received``  the addresses that it receives from, each with the number of consumers that it has recorded
    ``sent``      the addresses of other services that it sends to
    """

    store: str
    received: Mapping[str, int]
    sent: Sequence[str]


@runtime_checkable
class ExaminableConnection(BrokerConnection, Protocol):
    """A connection that examines the broker's settings for ``stagepost doctor``."""

    def examine(self, addresses: EdgeAddresses, now: int) -> list[Finding]:
        """Report settings that break a promise, and those that it cannot check. Takes no message. Raises as others do.

        ``now`` is in microseconds since 1970.
        """


class Broker(Protocol):
    """A broker, found by its URL. Its hosts are tried in turn, with back-off and jitter between rounds.

    ``url``  for people: without a password
    """

    @property
    def url(self) -> str: ...

    def connect(self, seconds: float) -> BrokerConnection:
        """Open a connection to the first host that answers. Begins no round of tries after ``seconds``.

        Each host has some seconds in a round. The back-off outlasts the call. So a caller that tries again at once does
        not try the hosts more often.

        Raises ``BrokerUnavailable``, which names each host and its reason, and ``BrokerDenied`` for wrong credentials
        or a certificate that is not trusted, which another try cannot cure.
        """


class BrokerDriver(Protocol):
    """The driver of a URL scheme: a module, or an object of a subclass of this one."""

    def check(self, url: str) -> None:
        """Raise ``DeclarationError`` for a malformed URL."""

    def broker(self, url: str, clock: Clock, random: Random) -> Broker:
        """Return the broker. Opens no connection."""
