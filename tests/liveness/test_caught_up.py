"""Ids of a broker's messages go a week after they came, and only if their address was caught up since."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stagepost.flow.clock import HOUR
from stagepost.ports.retention import FIRST, SILENT_HOURS
from stagepost.ports.session import Session
from stagepost.runtime.access import Access
from stagepost.runtime.caught_up import NOTE_SECONDS, QUIET_SECONDS, SUBSCRIBED_SECONDS, CaughtUpWatch
from stagepost.runtime.purge_service import purge_all
from stagepost.store.sqlite.store import SqliteStore
from stagepost.testing import ManualClock
from stagepost.testing.contract.givens import NOW, an_acceptance, committed

WEEK = 7 * 24
SCOPE = "broker:pay"


@pytest.fixture
def access(tmp_path: Path) -> Iterator[Access]:
    with closing(Access(SqliteStore(tmp_path / "store.db").session(), ManualClock(NOW))) as access:
        yield access


def count(session: Session, hours: int) -> None:
    first = session.retention.hours()
    for hour in range(first, first + hours):
        with committed(session):
            session.retention.count_hour(NOW + hour * HOUR)


def ids(access: Access) -> list[str]:
    list(purge_all(access))
    return [each.key for each in access.session.retention.old_ids(SCOPE, 10**6, FIRST, 9)]


def caught_up(session: Session, broker: str, consumer: str = "c1") -> None:
    with committed(session):
        session.retention.note_caught_up(consumer, broker, "pay")


def test_an_id_goes_when_all_brokers_of_its_address_were_caught_up_after_a_week(access: Access) -> None:
    session = access.session
    with committed(session):
        session.accepted.accept([an_acceptance("m1", SCOPE)])
        session.retention.note_consumer("c1", "amqp://one", ["pay", "ship"])
        session.retention.note_consumer("c1", "amqp://two", ["pay"])
    caught_up(session, "amqp://one")
    count(session, WEEK + 1)
    caught_up(session, "amqp://one")
    assert ids(access) == ["m1"]
    caught_up(session, "amqp://two")
    assert ids(access) == []


def test_a_moment_within_the_week_does_not_count(access: Access) -> None:
    session = access.session
    with committed(session):
        session.accepted.accept([an_acceptance("m1", SCOPE)])
        session.retention.note_consumer("c1", "amqp://one", ["pay"])
    count(session, WEEK)
    caught_up(session, "amqp://one")
    count(session, 10 * WEEK)
    assert ids(access) == ["m1"]


def test_a_broker_that_does_not_come_back_holds_ids_until_it_is_forgotten(access: Access) -> None:
    session = access.session
    with committed(session):
        session.accepted.accept([an_acceptance("m1", SCOPE)])
        session.retention.note_consumer("c1", "amqp://gone", ["pay"])
        session.retention.note_consumer("c1", "amqp://here", ["pay"])
    count(session, WEEK + 1)
    caught_up(session, "amqp://here")
    assert ids(access) == ["m1"]
    assert [each.broker for each in session.retention.brokers() if each.hour < 0] == ["amqp://gone"]
    with committed(session):
        assert session.retention.forget_broker("amqp://gone") == 1
    assert ids(access) == []


def test_an_address_is_caught_up_when_it_was_subscribed_for_long_and_nothing_comes(access: Access) -> None:
    session, clock = access.session, ManualClock(NOW)
    count(session, 5)
    watch = CaughtUpWatch(session, "c1", "amqp://one", ["pay"], clock)

    def hour_after(seconds: float, subscribed: list[str], came_from: list[str]) -> int | None:
        clock.advance(seconds)
        watch.look(subscribed, came_from)
        return session.retention.caught_up("pay")

    assert hour_after(0, ["pay"], []) == -1
    assert hour_after(SUBSCRIBED_SECONDS - 1, ["pay"], []) == -1
    # Back-pressure has stopped it.
    assert hour_after(1, [], []) == -1
    assert hour_after(0, ["pay"], []) == -1
    assert hour_after(SUBSCRIBED_SECONDS, ["pay"], ["pay"]) == -1
    assert hour_after(QUIET_SECONDS - 1, ["pay"], ["ship"]) == -1
    assert hour_after(1, ["pay"], []) == 5


def test_an_address_is_caught_up_when_no_living_consumer_holds_a_message(access: Access) -> None:
    session = access.session
    with committed(session):
        session.retention.note_consumer("c1", "amqp://one", ["pay"])
        session.retention.note_consumer("c2", "amqp://one", ["pay"])
    count(session, 3)
    caught_up(session, "amqp://one")
    # The other one runs a message, or was never quiet.
    assert session.retention.caught_up("pay") == -1
    caught_up(session, "amqp://one", "c2")
    assert session.retention.caught_up("pay") == 3
    with committed(session):
        # It has connected again, and may hold a message. What was caught up stays so.
        session.retention.note_consumer("c2", "amqp://one", ["pay"])
    count(session, 2)
    caught_up(session, "amqp://one")
    assert session.retention.caught_up("pay") == 3


def test_a_consumer_that_was_not_seen_for_a_day_holds_no_message(access: Access) -> None:
    session, clock = access.session, ManualClock(NOW)
    with committed(session):
        session.retention.note_consumer("dead", "amqp://one", ["pay"])
    busy = CaughtUpWatch(session, "busy", "amqp://one", ["pay"], clock)
    count(session, SILENT_HOURS + 1)
    clock.advance(NOTE_SECONDS)
    busy.look(["pay"], ["pay"])
    caught_up(session, "amqp://one")
    # The busy one lives.
    assert session.retention.caught_up("pay") == -1
    caught_up(session, "amqp://one", "busy")
    assert session.retention.caught_up("pay") == SILENT_HOURS + 1


def test_a_direct_consumer_notes_that_it_holds_no_message(access: Access) -> None:
    """Only the consumers of an address count for it."""
    session = access.session
    with committed(session):
        session.retention.note_consumer("receiver", "amqp://one", ["ship"])
        session.retention.note_consumer("direct", "amqp://one", ["pay"])
    count(session, 3)
    caught_up(session, "amqp://one", "direct")
    assert session.retention.caught_up("pay") == 3
    assert session.retention.caught_up("ship") == -1
