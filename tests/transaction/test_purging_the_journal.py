"""A purge removes the lines of flows that have ended, never past a reader, and keeps whole flows that are open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from stagepost.flow.clock import HOUR
from stagepost.ports.audits import NamedState
from stagepost.ports.inbox import InboxRow
from stagepost.ports.journal import Position, Waypoint
from stagepost.ports.outbox import NO_BACKLOG
from stagepost.ports.session import Session
from stagepost.ports.store import Store
from stagepost.runtime.access import Access
from stagepost.runtime.databases import open_store
from stagepost.runtime.purge_service import count_hour, purge_all
from stagepost.testing import ManualClock
from stagepost.testing.contract.givens import NOW, a_letter, a_row, a_waypoint, buried, committed, enqueued
from stagepost.transaction.retention import Rules

DAY = 24
KEEP = 4 * DAY
RULES = Rules({"@journal": KEEP})


@dataclass
class Place:
    """A store, and its housekeeper, which runs when a test says so."""

    store: Store
    access: Access
    clock: ManualClock

    @property
    def session(self) -> Session:
        return self.access.session

    def write(self, *lines: Waypoint) -> None:
        with committed(self.session):
            self.session.journal.record(lines)

    def end(self, *flows: str) -> None:
        """Write a flow's lines, as of a message that was accepted and handled."""
        for flow in flows:
            self.write(*(a_waypoint(f"{flow}-m", flow, name=name) for name in ("accepted", "received", "committed")))

    def keep_house(self, hours: int, *, purges: bool = False) -> Counter[str]:
        removed: Counter[str] = Counter()
        for _ in range(hours):
            self.clock.advance(3600)
            count_hour(self.access, self.clock)
            if purges:
                removed += self.purge()
        return removed

    def purge(self) -> Counter[str]:
        return Counter(
            {each.what: each.rows for each in purge_all(self.access, rules=RULES) if each.what.startswith("lines")}
        )

    def lines(self, flow: str) -> int:
        return len(self.session.journal.history(flow))


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/store.db"
    else:
        made: Callable[[], str] = request.getfixturevalue("new_postgres")
        url = made()
    store, clock = open_store(url), ManualClock(NOW)
    with closing(Access(store.session(), clock)) as access:
        yield Place(store, access, clock)


def test_lines_of_an_ended_flow_go_after_their_retention_and_not_before(place: Place) -> None:
    place.end("old")
    place.keep_house(KEEP, purges=True)
    assert place.lines("old") == 3
    # A range goes a day later at most.
    place.keep_house(DAY + 1, purges=True)
    assert place.lines("old") == 0
    assert not place.session.journal.has_committed("pay", "old-m")


def test_a_flow_that_is_open_keeps_all_its_lines_until_it_has_ended(place: Place) -> None:
    for flow in ("ready", "waits", "died", "goes-on", "ended"):
        place.end(flow)
    enqueued(
        place.session,
        a_row("ready-m", flow_id="ready"),
        a_row("waits-m", flow_id="waits", due_at=NOW + 99 * HOUR),
    )
    buried(place.session, a_letter("died-m", flow_id="died"))
    place.keep_house(KEEP - 10, purges=True)
    place.write(a_waypoint("later", "goes-on"))
    place.keep_house(DAY + 20, purges=True)
    assert {flow: place.lines(flow) for flow in ("ready", "waits", "died", "goes-on", "ended")} == {
        "ready": 3,
        "waits": 3,
        "died": 3,
        "goes-on": 4,
        "ended": 0,
    }
    (letter,) = place.session.dead_letters.ids_of(["died"])
    with committed(place.session):
        place.session.dead_letters.remove(letter)
    place.keep_house(2, purges=True)
    assert (place.lines("waits"), place.lines("died")) == (3, 0)
    place.keep_house(KEEP, purges=True)
    assert (place.lines("ready"), place.lines("waits"), place.lines("goes-on")) == (3, 3, 0)


def test_lines_that_stay_keep_their_order_and_new_ones_follow(place: Place) -> None:
    place.end("a", "b", "c")
    buried(place.session, a_letter("b-m", flow_id="b"))
    place.keep_house(KEEP + DAY + 2, purges=True)
    place.end("d")
    assert [each.waypoint for each in place.session.journal.history("b")] == ["accepted", "received", "committed"]
    assert place.session.journal.since(Position(0)).lines.size >= 3
    assert place.lines("d") == 3


def stream_read(session: Session, position: Position, now: int) -> None:
    session.cursors.add("warehouse", position, now)
    session.cursors.advance("warehouse", position, now)
    session.cursors.use("warehouse", now)


def audit_read(session: Session, position: Position, now: int) -> None:
    state = NamedState("/states/1", str(position))
    assert session.audits.name_state("nightly", session.audits.state("nightly"), state, now)


@pytest.mark.parametrize(
    ("place", "read"),
    [("sqlite", stream_read), ("sqlite", audit_read), ("postgres", stream_read)],
    indirect=["place"],
    ids=["sqlite", "sqlite-audit", "postgres"],
)
def test_no_line_goes_that_a_reader_has_not_read(place: Place, read: Callable[[Session, Position, int], None]) -> None:
    place.end("read")
    position = place.session.journal.position()
    place.end("unread")
    for _ in range(KEEP + 2 * DAY):
        with committed(place.session):
            read(place.session, position, place.clock.now())
        place.keep_house(1, purges=True)
    assert place.lines("unread") == 3
    mark = place.session.retention.purged_until()
    assert mark is None or mark <= position
    with committed(place.session):
        read(place.session, place.session.journal.position(), place.clock.now())
    place.keep_house(DAY + 2, purges=True)
    assert place.lines("unread") == 0


def test_a_reader_that_is_gone_holds_nothing_back(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stagepost.transaction.journal_purge.READER_HOURS", 3 * DAY)
    with committed(place.session):
        place.session.cursors.add("gone", place.session.journal.position(), NOW)
    place.end("unread")
    place.keep_house(KEEP + DAY + 2, purges=True)
    assert place.lines("unread") == 0


def test_the_purge_mark_is_behind_every_line_that_is_gone_and_moves_with_them_alone(place: Place) -> None:
    place.end("pinned")
    buried(place.session, a_letter("pinned-m", flow_id="pinned"))
    place.keep_house(2 * DAY, purges=True)
    assert place.session.retention.purged_until() is None
    place.end("old")
    behind = place.session.journal.position()
    place.keep_house(KEEP + DAY + 2, purges=True)
    assert place.lines("old") == 0
    mark = place.session.retention.purged_until()
    assert mark is not None
    assert mark.epoch == behind.epoch
    assert mark >= behind
    assert mark <= place.session.journal.position()


def test_a_message_that_an_inbox_has_not_marked_keeps_its_lines(place: Place) -> None:
    if place.session.inbox.backlog() is NO_BACKLOG:
        pytest.skip("the store has no inbox")
    place.end("unmarked")
    with committed(place.session):
        place.session.inbox.admit(InboxRow("pay", "unmarked-m", "digest", NOW, NOW))
        place.session.inbox.keep("pay", "unmarked-m", b"produced")
    place.keep_house(KEEP + DAY + 2, purges=True)
    assert place.lines("unmarked") == 3
    with committed(place.session):
        place.session.inbox.mark("pay", "unmarked-m")
    place.keep_house(2, purges=True)
    assert place.lines("unmarked") == 0


def test_more_lines_than_a_batch_go_in_several(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stagepost.transaction.purge_batches.BATCH", 4)
    place.end(*(f"flow-{number}" for number in range(7)))
    place.keep_house(KEEP + DAY + 2, purges=True)
    assert [place.lines(f"flow-{number}") for number in range(7)] == [0] * 7


def test_an_outage_and_a_leap_of_the_clock_make_no_line_old(place: Place) -> None:
    place.end("old")
    place.keep_house(2)
    place.clock.advance(100 * DAY * 3600)
    place.keep_house(2, purges=True)
    assert place.lines("old") == 3


def test_a_reader_in_a_long_transaction_puts_the_drop_of_a_range_off_and_blocks_no_writer(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    if place.session.retention.ends_at() is None:
        pytest.skip("the journal is one table")
    place.end("old")
    place.keep_house(KEEP + DAY + 2)
    with closing(place.store.session()) as reader:
        reader.begin()
        assert reader.journal.history("old")
        with caplog.at_level("INFO"):
            place.purge()
        # The drop of a range asks for the same lock.
        assert [each.event for each in caplog.records if hasattr(each, "event")] == ["not-cut"]
        place.end("new")
        assert place.lines("new") == 3
        reader.rollback()
    place.keep_house(KEEP + 2, purges=True)
    assert place.lines("old") == 0
