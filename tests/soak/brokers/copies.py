"""Messages that another program sends to a service, again and again with the same id."""

from __future__ import annotations

import time

import msgspec

from stagepost.flow.codec import encode_envelope
from stagepost.flow.envelope import Envelope, Message
from stagepost.flow.errors import BrokerError
from stagepost.ports.broker import BrokerConnection, Publication
from tests.soak.brokers.targets import BrokerTarget

CONFIRM_SECONDS = 5.0


class CopyingSender:
    """It publishes each message several times. It publishes again whatever the broker has not confirmed."""

    def __init__(self, target: BrokerTarget, address: str) -> None:
        self._target = target
        self._address = address
        self._connection: BrokerConnection | None = None
        # The publications that the broker has not confirmed yet.
        self._waiting: list[Publication] = []
        self.copies = 0

    def send(self, transfer_id: str, amount: int, copies: int) -> None:
        """Queue a message, with so many copies beside it. ``flush`` publishes them."""
        publication = Publication(self._address, transfer_id, envelope_of(self._address, transfer_id, amount), {})
        self._waiting += [publication] * (1 + copies)
        self.copies += copies

    def flush(self) -> bool:
        """Publish what waits. Return whether the broker has all of it."""
        if not self._waiting:
            return True
        try:
            if self._connection is None:
                self._connection = self._target.direct().connect(0)
            results = self._connection.publish(self._waiting, CONFIRM_SECONDS)
        except BrokerError:
            self.close()
            return False
        self._waiting = [each for each, result in zip(self._waiting, results, strict=True) if result != "confirmed"]
        if {"lost", "unconfirmed"} & set(results):
            self.close()
        return not self._waiting

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def envelope_of(address: str, transfer_id: str, amount: int) -> bytes:
    now = time.time_ns() // 1000
    body = msgspec.json.encode({"transfer_id": transfer_id, "amount": amount})
    return encode_envelope(
        Envelope(
            message_id=f"copied-{transfer_id}",
            flow_id=transfer_id,
            kind="send",
            to=address,
            sender="elsewhere",
            messages=(Message(type="Transfer", body=msgspec.Raw(body)),),
            origin_at=now,
            sent_at=now,
        )
    )
