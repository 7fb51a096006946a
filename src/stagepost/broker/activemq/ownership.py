"""Marks of ownership: one store receives from an address, and the broker itself compares.

The mark of an address is a persistent message in a queue beside it. The queue's head wins. A store that finds another
one's mark at the head takes its own marks back.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable
from typing import Final

from stagepost.broker.activemq.frames import Frame
from stagepost.broker.activemq.messages import destination_of, says_denied, says_full
from stagepost.broker.activemq.session import StompSession
from stagepost.broker.activemq.subscriptions import ANSWER_SECONDS
from stagepost.flow.errors import AddressTaken, BrokerConnectionLost, BrokerDenied, BrokerRefused
from stagepost.flow.texts import as_sentence
from stagepost.ports.broker import mark_address

# The headers of a mark: the store's uuid, and the mark's own.
STORE: Final = "store"
MARK: Final = "mark"


class Marks:
    """The marks of addresses. ``session`` returns the present session."""

    def __init__(self, session: Callable[[], StompSession]) -> None:
        self._session = session
        self._numbers = 0

    def claim(self, address: str, store: str) -> None:
        """Make the address the store's. Raises ``AddressTaken`` where it is another one's."""
        head = self._head(address)
        if head is None:
            mark = self._send(address, store)
            head = self._head(address)
            if head is None:
                raise BrokerConnectionLost(
                    f"{self._session().place} does not show the mark of the store at {address} that it has just "
                    "stored. Another process released the address at the same moment: start again."
                )
            if head.headers.get(MARK) != mark:
                self._take(address, MARK, mark)
        owner = head.headers.get(STORE, "")
        if owner != store:
            # A process of this store that died before it took its mark back may have left one, too.
            self._take(address, STORE, store)
            raise AddressTaken(
                f"the address {address} at {self._session().place} belongs to the store {owner}, and this app's store "
                f"is {store}. Let all replicas use one PostgreSQL store, or use another address. If that store is "
                f"gone, run: stagepost release {address} --store {owner}"
            )

    def release(self, address: str, store: str) -> bool:
        """Remove all marks of a store. Returns False where there is none."""
        return self._take(address, STORE, store) > 0

    def browse(self, destination: str, selector: str = "", *, only_head: bool = False) -> list[Frame]:
        """Return messages of a queue, from its head on, without taking them.

        ActiveMQ shows no more than its setting ``maxBrowsePageSize``, 400 by default. It also shows messages that are
        handed out.
        """
        headers = {"id": self._next_id(), "destination": destination, "ack": "auto", "browser": "true"}
        if selector:
            headers["selector"] = selector
        if only_head:
            headers["activemq.prefetchSize"] = "1"
        inbox = self._subscribe(headers)
        found: list[Frame] = []

        def is_over() -> bool:
            while inbox:
                frame = inbox.popleft()
                if "browser" in frame.headers:
                    return True
                found.append(frame)
            return only_head and bool(found)

        self._wait(is_over, f"browsing {destination}")
        self._unsubscribe(headers["id"])
        return found

    def owner(self, address: str) -> str | None:
        """Return the store whose mark an address has; None where it has no mark."""
        head = self._head(address)
        return None if head is None else head.headers.get(STORE, "")

    def head_of(self, destination: str) -> Frame | None:
        """Return the first message of a queue, without taking it."""
        found = self.browse(destination, only_head=True)
        return found[0] if found else None

    def _head(self, address: str) -> Frame | None:
        return self.head_of(_queue(address))

    def _send(self, address: str, store: str) -> str:
        mark = str(uuid.uuid4())
        headers = {"destination": _queue(address), "persistent": "true", STORE: store, MARK: mark}
        [error] = self._session().demand([Frame("SEND", headers)], ANSWER_SECONDS)
        if error is not None:
            kind = BrokerDenied if says_denied(error) else BrokerRefused
            raise kind(
                f"{self._session().place} refused the mark of the store at {address}: {as_sentence(error)} "
                "Give the broker room, "
                "and the user of the broker URL the right to write."
            )
        return mark

    def _take(self, address: str, header: str, value: str) -> int:
        """Remove the marks with that header. Returns their number."""
        selector = f"{header}='{value.replace(chr(39), 2 * chr(39))}'"
        count = len(self.browse(_queue(address), selector))
        if count == 0:
            return 0
        headers = {
            "id": self._next_id(),
            "destination": _queue(address),
            "ack": "client-individual",
        }
        inbox = self._subscribe({**headers, "selector": selector, "activemq.prefetchSize": str(count)})
        self._wait(lambda: len(inbox) >= count, f"taking {count} marks of {address} back")
        acks = [Frame("ACK", {"id": inbox.popleft().headers.get("ack", "")}) for _ in range(count)]
        self._session().demand(acks, ANSWER_SECONDS)
        self._unsubscribe(headers["id"])
        return count

    def _subscribe(self, headers: dict[str, str]) -> deque[Frame]:
        session = self._session()
        session.check()
        inbox = session.open_inbox(headers["id"])
        [error] = session.demand([Frame("SUBSCRIBE", headers)], ANSWER_SECONDS)
        if error is not None:
            session.close_inbox(headers["id"])
            if says_full(error):
                session.lose(f"the broker has no room to show {headers['destination']}: {error}")
                session.check()
            raise BrokerDenied(
                f"{session.place} refused to show {headers['destination']}: {as_sentence(error)} "
                "Give the user of the broker URL "
                "rights to read and to create it."
            )
        return inbox

    def _unsubscribe(self, number: str) -> None:
        self._session().close_inbox(number)
        self._session().post([Frame("UNSUBSCRIBE", {"id": number})])

    def _wait(self, condition: Callable[[], bool], doing: str) -> None:
        session = self._session()
        if not session.wait(condition, ANSWER_SECONDS):
            session.lose(f"{doing} took more than {ANSWER_SECONDS:g} s")
            session.check()

    def _next_id(self) -> str:
        self._numbers += 1
        return f"m{self._numbers}"


def _queue(address: str) -> str:
    return destination_of(mark_address(address))
