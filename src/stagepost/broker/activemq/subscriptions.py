"""The subscriptions of a connection, and the deliveries that it has handed out.

Two facts of ActiveMQ shape this file. A NACK makes a dead letter at once, so a delivery is given back by ending its
subscription. And the end of a subscription gives back all of its unsettled deliveries. The others arrive again on the
next subscription, are recognised by the broker's message id, and keep their tokens.

So an address that is left out keeps its subscription, and its few deliveries wait here: ending it would mark them as
redelivered, each time that a stage stops for a moment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from stagepost.broker.activemq.frames import Frame
from stagepost.broker.activemq.messages import destination_of, headers_of, message_id_of, says_full
from stagepost.broker.activemq.session import StompSession
from stagepost.flow.errors import BrokerDenied
from stagepost.ports.broker import Delivery

# The time for the broker's answer to a call that has no time of its own.
ANSWER_SECONDS = 10.0


@dataclass(eq=False, slots=True)
class Token:
    """One delivery that was handed out. ``ack`` is None until the broker has delivered it on the present subscription.

    ``settles`` says that it was settled meanwhile, and is acknowledged when it arrives.
    """

    owner: object
    address: str
    broker_id: str
    ack: str | None
    is_open: bool = True
    settles: bool = False


@dataclass(slots=True)
class Subscription:
    """``arrived`` holds messages that were not handed out."""

    number: str
    window: int
    arrived: deque[Frame]
    is_paused: bool = False
    held: dict[str, Token] = field(default_factory=dict)


class Subscriptions:
    """All subscriptions of one connection. ``session`` returns the present session."""

    def __init__(self, session: Callable[[], StompSession]) -> None:
        self._session = session
        self._by_address: dict[str, Subscription] = {}
        self._numbers = 0
        # These arrived before their address was left out.
        self._ready: list[Delivery] = []

    def replace(self, windows: Mapping[str, int]) -> None:
        """Receive from these addresses, and no others. Raises ``BrokerDenied`` and ``BrokerConnectionLost``."""
        self._session().check()
        self._ready = self.take()
        for address, subscription in self._by_address.items():
            subscription.is_paused = address not in windows
        changed = {
            address: window
            for address, window in windows.items()
            if address not in self._by_address or self._by_address[address].window != window
        }
        self._renew(changed)

    def take(self) -> list[Delivery]:
        """Return the deliveries that have arrived, and that no earlier call returned."""
        taken, self._ready = self._ready, []
        for address, subscription in self._by_address.items():
            self._recognise(subscription)
            if not subscription.is_paused:
                while subscription.arrived:
                    taken.append(self._delivery(address, subscription, subscription.arrived.popleft()))
        return taken

    def has_arrived(self) -> bool:
        """Say whether ``take`` would return a delivery."""
        for each in self._by_address.values():
            self._recognise(each)
        return bool(self._ready) or any(each.arrived and not each.is_paused for each in self._by_address.values())

    def open_tokens(self, deliveries: Sequence[Delivery]) -> list[Token]:
        """Return the tokens of those deliveries that are neither settled nor given back, each once.

        Raises ``ValueError`` for a delivery of another connection.
        """
        tokens = {}
        for each in deliveries:
            if not isinstance(each.token, Token) or each.token.owner is not self:
                raise ValueError("a delivery belongs to another connection; settle it there, or let it come again")
            tokens[id(each.token)] = each.token
        return [each for each in tokens.values() if each.is_open]

    def settle(self, tokens: Sequence[Token]) -> None:
        """Acknowledge deliveries, and wait for the broker's answer to the last acknowledgement."""
        self._arrive()
        acks = []
        for each in tokens:
            each.is_open = False
            if each.ack is None:
                each.settles = True
            else:
                acks.append(ack_frame(each))
                self._forget(each)
        if acks:
            self._session().post(acks[:-1])
            # The broker answers in order, and an error without a receipt ends the session.
            [error] = self._session().demand(acks[-1:], ANSWER_SECONDS)
            if error is not None:
                # The broker counts the delivery in the window for as long as the session lives.
                self._session().lose(f"the broker refused an acknowledgement: {error}")
                self._session().check()

    def close_tokens(self, tokens: Sequence[Token]) -> None:
        """Forget deliveries that were settled in a transaction."""
        for each in tokens:
            each.is_open = False
            self._forget(each)

    def give_back(self, tokens: Sequence[Token]) -> None:
        """Return deliveries to their queues. Others of the same addresses keep their tokens."""
        self.close_tokens(tokens)
        addresses = {each.address for each in tokens if each.address in self._by_address}
        self._renew({each: self._by_address[each].window for each in addresses})

    def resume(self) -> None:
        """Subscribe again on a new session. Deliveries that were handed out keep their tokens."""
        for address, subscription in list(self._by_address.items()):
            if subscription.is_paused and not subscription.held:
                del self._by_address[address]
        self._renew({address: each.window for address, each in self._by_address.items()}, is_new_session=True)

    def await_return(self, tokens: Sequence[Token], seconds: float) -> bool:
        """Wait until the broker has delivered these again, where their subscription was renewed."""

        def are_here() -> bool:
            self._arrive()
            return all(each.ack is not None for each in tokens)

        return self._session().wait(are_here, seconds)

    def count_at(self, address: str) -> int:
        """Return how many messages of an address the broker has handed out to this connection."""
        found = self._by_address.get(address)
        if found is None:
            return 0
        self._recognise(found)
        return len(found.arrived) + len(found.held)

    def _renew(self, windows: Mapping[str, int], *, is_new_session: bool = False) -> None:
        """Subscribe to these addresses, and end their earlier subscriptions. Raises ``BrokerDenied``."""
        session = self._session()
        refused = []
        # One after the other: a broker that makes a hundred queues answers each of them in time.
        for address, window in windows.items():
            old = self._by_address.pop(address, None)
            frames = []
            if old is not None and not is_new_session:
                session.close_inbox(old.number)
                frames.append(Frame("UNSUBSCRIBE", {"id": old.number}))
            self._numbers += 1
            number = f"s{self._numbers}"
            # The inbox exists before the first message can arrive.
            new = Subscription(number, window, session.open_inbox(number))
            if old is not None:
                new.is_paused = old.is_paused
                new.held = self._unreturned(old)
            error = session.demand([*frames, subscribe_frame(number, address, window)], ANSWER_SECONDS)[-1]
            if error is None:
                self._by_address[address] = new
            elif says_full(error):
                session.lose(f"the broker has no room for a subscription to {address}: {error}")
                session.check()
            else:
                refused.append(f"{address} ({error})")
        if refused:
            raise BrokerDenied(
                f"{session.place} refuses subscriptions: {', '.join(refused)}. Give the user of the broker URL the "
                "right to read and to create these queues."
            )

    def _unreturned(self, old: Subscription) -> dict[str, Token]:
        """Return the deliveries that are to be recognised on the next subscription."""
        held = {}
        for broker_id, token in old.held.items():
            # One that has not come back by now went to another consumer.
            if token.ack is not None:
                token.ack = None
                held[broker_id] = token
        return held

    def _forget(self, token: Token) -> None:
        if token.address in self._by_address:
            self._by_address[token.address].held.pop(token.broker_id, None)

    def _arrive(self) -> None:
        for each in self._by_address.values():
            self._recognise(each)

    def _recognise(self, subscription: Subscription) -> None:
        """Give deliveries that have come back to their tokens, and acknowledge those that were settled meanwhile."""
        if all(each.ack is not None for each in subscription.held.values()):
            return
        settled = []
        for _ in range(len(subscription.arrived)):
            frame = subscription.arrived.popleft()
            token = subscription.held.get(frame.headers["message-id"])
            if token is None or token.ack is not None:
                subscription.arrived.append(frame)
                continue
            token.ack = frame.headers.get("ack", "")
            if token.settles:
                del subscription.held[token.broker_id]
                settled.append(ack_frame(token))
        if settled:
            self._session().post(settled)

    def _delivery(self, address: str, subscription: Subscription, frame: Frame) -> Delivery:
        token = Token(self, address, frame.headers["message-id"], frame.headers.get("ack", ""))
        subscription.held[token.broker_id] = token
        is_again = frame.headers.get("redelivered") == "true"
        return Delivery(address, message_id_of(frame), frame.body, headers_of(frame), token, is_again)


def subscribe_frame(number: str, address: str, window: int) -> Frame:
    return Frame(
        "SUBSCRIBE",
        {
            "id": number,
            "destination": destination_of(address),
            "ack": "client-individual",
            "activemq.prefetchSize": str(window),
        },
    )


def ack_frame(token: Token, transaction: str = "") -> Frame:
    headers = {"id": token.ack or ""}
    if transaction:
        headers["transaction"] = transaction
    return Frame("ACK", headers)
