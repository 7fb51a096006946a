"""A journal's positions on PostgreSQL: what was read up to one of them is final, and nothing is ever passed over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from random import Random
from typing import Any

import psycopg
import pytest
from psycopg import sql

from stagepost.ports.journal import Position, Span
from stagepost.store.postgres.export import PostgresExport
from stagepost.store.postgres.store import PostgresStore
from tests.store.exported import exported
from tests.waiting import wait_until

Connection = psycopg.Connection[Any]

# By the columns' own default, a row carries the number of its transaction.
WRITE = (
    "INSERT INTO stagepost_journal (waypoint, at, node, stage, message_id, flow_id, attempt, origin_at)"
    " VALUES ('accepted', 1, 'n', 's', %s, 'f', 0, 1) RETURNING txid"
)


class Journal:
    """What several transactions write at once, and what is read of it from one position until another."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._session = PostgresStore(url).session()
        self._stack = ExitStack()
        self._stack.callback(self._session.close)

    def begun(self) -> Connection:
        return self._stack.enter_context(closing(psycopg.connect(self.url)))

    def position(self) -> int:
        return self._session.journal.position()

    def position_beyond(self, txid: int) -> int:
        """Soon, where nothing of ours is open: the server's own housekeeping holds it back for a moment."""
        wait_until(lambda: self.position() > txid, "the position is beyond it")
        return self.position()

    def read(self, begin: int | None, end: int | None, parts: int = 1) -> list[str]:
        """The messages of the rows, each range of ids read by itself, as tasks do."""
        span = Span(*(None if each is None else Position(each) for each in (begin, end)))
        export = PostgresExport(self.url)
        bounds = export.journal_bounds(span)
        width = max(-(-(bounds.high - bounds.low) // parts), 1)
        ranges = [
            bounds._replace(low=at, high=min(at + width, bounds.high)) for at in range(bounds.low, bounds.high, width)
        ]
        return sorted(
            message for each in ranges for (message,) in exported(export, "journal", each, span, ["message_id"])
        )

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def journal(new_postgres: Callable[[], str]) -> Iterator[Journal]:
    with closing(Journal(new_postgres())) as made:
        yield made


def write(transaction: Connection, message: str) -> int:
    row = transaction.execute(WRITE, (message,)).fetchone()
    assert row is not None
    return int(row[0])


def test_what_is_open_is_before_no_position_and_neither_is_what_began_after_it(journal: Journal) -> None:
    """The later one has committed, with the greater id: whoever remembered that would pass over the other."""
    early, late = journal.begun(), journal.begun()
    first = write(early, "early")
    second = write(late, "late")
    late.commit()
    cut = journal.position()
    assert cut <= first < second
    assert journal.read(None, cut) == []
    # Who asks for no end sees what there is.
    assert journal.read(None, None) == ["late"]
    early.commit()
    assert journal.read(None, cut) == []
    following = journal.position_beyond(second)
    assert journal.read(cut, following) == ["early", "late"]
    assert journal.read(following, journal.position()) == []


def test_what_is_prepared_is_open(journal: Journal) -> None:
    """As a stage in two phases leaves it between the two."""
    one = journal.begun()
    first = write(one, "in doubt")
    # The server's databases share these names.
    gid = sql.Literal(journal.url.rpartition("/")[2])
    one.execute(sql.SQL("PREPARE TRANSACTION {}").format(gid))
    one.rollback()
    two = journal.begun()
    second = write(two, "after")
    two.commit()
    cut = journal.position()
    assert cut <= first
    assert journal.read(None, cut) == []
    one.autocommit = True
    one.execute(sql.SQL("COMMIT PREPARED {}").format(gid))
    assert journal.read(cut, journal.position_beyond(second)) == ["after", "in doubt"]


def test_what_is_rolled_back_is_never_read(journal: Journal) -> None:
    one, two = journal.begun(), journal.begun()
    write(one, "undone")
    last = write(two, "done")
    one.rollback()
    two.commit()
    assert journal.read(None, journal.position_beyond(last)) == ["done"]


@pytest.mark.parametrize("seed", range(3))
def test_from_position_to_position_each_row_is_read_once_and_again_the_same(journal: Journal, seed: int) -> None:
    """However many transactions are open at a time, and in whatever order they end."""
    random = Random(seed)
    transactions = [journal.begun() for _ in range(5)]
    expected: list[str] = []
    pending: dict[int, list[str]] = {each: [] for each in range(5)}
    read: list[tuple[int, int, list[str]]] = []
    position, last = 0, 0
    for number in range(120):
        which = random.randrange(5)
        match random.choice(["write", "write", "write", "commit", "rollback", "read"]):
            case "write":
                last = max(last, write(transactions[which], str(number)))
                pending[which].append(str(number))
            case "commit":
                transactions[which].commit()
                expected += pending[which]
                pending[which] = []
            case "rollback":
                transactions[which].rollback()
                pending[which] = []
            case _:
                begin, position = position, journal.position()
                read.append((begin, position, journal.read(begin, position, random.randrange(1, 4))))
    for which, transaction in enumerate(transactions):
        transaction.commit()
        expected += pending[which]
    end = journal.position_beyond(last)
    read.append((position, end, journal.read(position, end)))
    assert len([found for _, _, found in read if found]) > 3
    assert sorted(each for _, _, found in read for each in found) == sorted(expected)
    for begin, until, found in read:
        assert journal.read(begin, until, 2) == found
