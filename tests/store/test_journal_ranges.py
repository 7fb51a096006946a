"""The journal's readers find every line once, in whatever range it is, and where it was before a range was closed."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from stagepost.ports.export import Export
from stagepost.ports.journal import Bounds, Span, Waypoint
from stagepost.ports.session import Session
from stagepost.store.postgres.export import PostgresExport
from stagepost.store.postgres.store import PostgresStore
from stagepost.store.sqlite.export import SqliteExport
from stagepost.store.sqlite.store import SqliteStore
from stagepost.testing.contract.givens import NOW, a_waypoint, committed
from tests.servers.postgres import Server
from tests.store.exported import exported
from tests.store.ranges import cut, drop
from tests.waiting import wait_until

KEPT = "flow_id LIKE 'open-%'"


@dataclass
class Place:
    """A store with a journal; ``close`` closes what was written until now."""

    session: Session
    close: Callable[[], None]
    read: Callable[[Span], list[tuple[Any, ...]]]


@pytest.fixture
def url(postgres_server: Server, migrated_template: str) -> Iterator[str]:
    made = postgres_server.new_database(migrated_template)
    yield made
    postgres_server.drop_database(made)


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "sqlite":
        yield from sqlite_place(tmp_path / "store.db")
    else:
        yield from postgres_place(request.getfixturevalue("url"))


def sqlite_place(path: Path) -> Iterator[Place]:
    def close() -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(f"DELETE FROM stagepost_journal WHERE NOT {KEPT}")

    def read(span: Span) -> list[tuple[Any, ...]]:
        export = SqliteExport(path)
        return in_two_parts(export, export.journal_bounds(span), span)

    with closing(SqliteStore(path).session()) as session:
        yield Place(session, close, read)


def postgres_place(url: str) -> Iterator[Place]:
    def close() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            drop(connection, cut(connection), KEPT)

    def read(span: Span) -> list[tuple[Any, ...]]:
        export = PostgresExport(url)
        return in_two_parts(export, export.journal_bounds(span), span)

    with closing(PostgresStore(url).session()) as session:
        yield Place(session, close, read)


def in_two_parts(export: Export, bounds: Bounds, span: Span) -> list[tuple[Any, ...]]:
    """In two parts, as by two tasks."""
    middle = (bounds.low + bounds.high) // 2
    parts = (bounds._replace(high=middle), bounds._replace(low=middle))
    return [row for part in parts for row in exported(export, "journal", part, span)]


def write(session: Session, *lines: Waypoint) -> None:
    with committed(session):
        session.journal.record(lines)


def lines_of(flow: str, times: int = 3) -> list[Waypoint]:
    return [a_waypoint(f"{flow}-{n}", flow) for n in range(times)]


def test_what_stays_of_closed_ranges_is_found_by_every_reader_and_the_rest_is_gone(place: Place) -> None:
    session, journal = place.session, place.session.journal
    before: dict[str, list[Waypoint]] = {}
    for number in range(3):
        write(session, *lines_of(f"open-{number}"), *lines_of(f"over-{number}"))
        before[f"open-{number}"] = journal.history(f"open-{number}")
        place.close()
    write(session, *lines_of("new"))
    for flow, history in before.items():
        assert journal.history(flow) == history == lines_of(flow)
        assert journal.history(f"{flow}-1") == history
        assert journal.has_committed(history[1].stage, f"{flow}-1")
    for number in range(3):
        assert journal.history(f"over-{number}") == []
        assert journal.history(f"over-{number}-1") == []
    assert journal.history("new") == lines_of("new")


def test_lines_keep_their_ids_and_new_ones_get_greater_ones(place: Place) -> None:
    session = place.session
    write(session, *lines_of("open-0"), *lines_of("over-0"))
    last = session.circuits.last_line()
    kept = [row for row in place.read(Span()) if row[6] == "open-0"]
    place.close()
    assert place.read(Span()) == kept
    write(session, *lines_of("new"))
    rows = place.read(Span())
    assert [row for row in rows if row[6] == "open-0"] == kept
    assert all(row[0] > last for row in rows if row[6] == "new")
    assert len(rows) == 6
    assert session.circuits.last_line() == max(row[0] for row in rows)


def test_a_position_of_before_a_range_was_closed_still_counts_what_came_after_it(place: Place) -> None:
    session, journal = place.session, place.session.journal
    write(session, *lines_of("open-0"), *lines_of("over-0"))
    position = journal.position()
    write(session, *lines_of("open-1"), *lines_of("over-1"))
    place.close()
    write(session, *lines_of("new"))
    assert [row[6] for row in place.read(Span(position))] == ["open-1"] * 3 + ["new"] * 3
    assert [row[6] for row in place.read(Span(None, position))] == ["open-0"] * 3
    assert journal.since(position).lines == (6, NOW)
    assert sum(journal.since(position).committed.values()) == 6
    assert journal.since(position).has_ended
    assert not journal.since(journal.position()).has_ended


def test_a_success_is_found_in_whatever_range_it_is(place: Place) -> None:
    session = place.session
    write(session, *lines_of("open-0"))
    stage = lines_of("open-0")[0].stage
    first = min(row[0] for row in place.read(Span()))
    place.close()
    assert session.circuits.has_succeeded(stage, first)
    assert not session.circuits.has_succeeded(stage, session.circuits.last_line())


def test_who_writes_while_a_range_is_closed_waits_and_goes_on(url: str) -> None:
    with closing(PostgresStore(url).session()) as session, closing(PostgresStore(url).session()) as other:
        session.begin()
        session.journal.record(lines_of("open-0"))
        assert session.circuits.last_line() == 3
        with psycopg.connect(url, autocommit=True) as connection:
            closer = threading.Thread(target=lambda: drop(connection, cut(connection), KEPT))
            closer.start()
            wait_until(lambda: is_waiting(url, 1), "the one who closes waits for the writer")
            writer = threading.Thread(target=lambda: write(other, *lines_of("new")))
            writer.start()
            wait_until(lambda: is_waiting(url, 2), "and a second writer behind it")
            session.commit()
            closer.join()
            writer.join()
        assert session.journal.history("open-0") == lines_of("open-0")
        assert session.journal.history("new") == lines_of("new")


def is_waiting(url: str, number: int) -> bool:
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'stagepost_journal'::regclass"
        ).fetchone()
        assert row is not None
        return bool(row[0] >= number)
