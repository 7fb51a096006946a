"""Fixtures and builders of the contracts: a clock, sessions, rows, letters and waypoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import msgspec
import pytest

from stagepost.flow.claim import Claim
from stagepost.flow.clock import SECOND
from stagepost.flow.codec import digest, encode_envelope
from stagepost.flow.envelope import Envelope, Message
from stagepost.flow.initiation import Acceptance, Outgoing
from stagepost.ports.dead_letters import Cause, DeadLetter
from stagepost.ports.journal import Waypoint, WaypointName
from stagepost.ports.queue import QueueRow
from stagepost.ports.session import Session
from stagepost.ports.store import Store
from stagepost.testing.clock import ManualClock
from stagepost.transaction.queue_commit import committing

NOW = 1_700_000_000 * SECOND

# An id may have 200 characters, and any characters that can be printed.
LONG_ID = "bestellung/№ 7/ünïcode/注文/🚚/" + "x" * 170
LONG_STAGE = "a" * 70 + "." + "b" * 79
MEGABYTE = 1_000_000
# A notification of a change may take this long.
TOLD_SECONDS_MAX = 60.0


class Given:
    """Fixtures that all parts of the contract share. The user provides ``store``."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock(NOW)

    @pytest.fixture
    def session(self, store: Store) -> Iterator[Session]:
        with closing(store.session()) as session:
            yield session

    @pytest.fixture
    def other(self, store: Store) -> Iterator[Session]:
        """A second session on the same store."""
        with closing(store.session()) as session:
            yield session


def eventually(condition: Callable[[], bool]) -> bool:
    """Return whether the condition becomes true in time. A notification across a network takes a moment."""
    deadline = time.monotonic() + TOLD_SECONDS_MAX
    while time.monotonic() < deadline:
        if condition():
            return True
    return False


class UndoneError(Exception):
    """A test raises this to roll back its block."""


# A test says of its block that it is committed, or rolled back.
committed = committing


@contextmanager
def rolled_back(session: Session) -> Iterator[None]:
    """Run the block in a transaction, and roll it back at the end of the block."""
    session.begin()
    yield
    session.rollback()


def recorded(session: Session, *waypoints: Waypoint) -> None:
    with committed(session):
        session.journal.record(waypoints)


def buried(session: Session, *letters: DeadLetter) -> None:
    with committed(session):
        for each in letters:
            session.dead_letters.bury(each)


def enqueued(session: Session, *rows: QueueRow) -> None:
    with committed(session):
        session.queue.enqueue(rows)


def released(session: Session, claim: Claim) -> None:
    with committed(session):
        session.queue.release(claim)


def removed(session: Session, claim: Claim) -> bool:
    with committed(session):
        return session.queue.remove(claim)


def a_row(
    message_id: str = "m1",
    stage: str = "pay",
    *,
    flow_id: str = "flow",
    failures: int = 0,
    deaths: int = 0,
    deliveries: int = 0,
    origin_at: int = NOW,
    envelope: bytes = b"{}",
    due_at: int | None = None,
) -> QueueRow:
    return QueueRow(stage, message_id, flow_id, failures, deaths, deliveries, origin_at, envelope, due_at)


def an_outgoing(
    message_id: str = "m1",
    to: str = "pay",
    *,
    flow_id: str = "flow",
    body: bytes = b"{}",
    origin_at: int = NOW,
    due_at: int | None = None,
) -> tuple[Outgoing, bytes]:
    envelope = Envelope(
        message_id=message_id,
        flow_id=flow_id,
        kind="send",
        to=to,
        sender="contract",
        messages=(Message(type="Anything", body=msgspec.Raw(body)),),
        origin_at=origin_at,
        sent_at=NOW,
    )
    return Outgoing(envelope, due_at), encode_envelope(envelope)


def an_acceptance(key: str = "m1", to: str = "pay", *, body: bytes = b"{}", run_id: str | None = None) -> Acceptance:
    outgoing, _ = an_outgoing(key, to, body=body)
    return Acceptance(to, key, digest(msgspec.Raw(body)), outgoing, run_id)


def a_waypoint(
    message_id: str = "m1",
    flow_id: str = "flow",
    *,
    node: str = "worker@host:1",
    name: WaypointName = "committed",
    stage: str = "pay",
) -> Waypoint:
    return Waypoint(name, NOW, node, stage, message_id, flow_id, 1, NOW)


def a_full_waypoint() -> Waypoint:
    """Return a waypoint whose fields all have values, and different ones."""
    return Waypoint(
        "sent", NOW + 1, "worker@host:2", "pay.settle", "m2", "flow", 3, NOW + 2, "m1", "request", 4, 5.25, 6, "détail"
    )


def a_letter(
    message_id: str = "m1",
    *,
    flow_id: str = "flow",
    stage: str = "pay",
    fingerprint: str = "0123456789ab",
    dead_at: int = NOW,
    envelope: bytes = b"\x00\xff not JSON, not UTF-8",
) -> DeadLetter:
    return DeadLetter(
        message_id=message_id,
        flow_id=flow_id,
        stage=stage,
        reason="exhausted",
        causes=(Cause("ValueError", "zu groß\nsecond line"), Cause("KeyError", "'x'")),
        stack="Traceback …\nValueError: zu groß",
        fingerprint=fingerprint,
        failures=7,
        deaths=2,
        deliveries=9,
        origin_at=NOW - 5,
        dead_at=dead_at,
        node="worker@host:1",
        declared_at="shop/pay.py:17",
        envelope=envelope,
    )
