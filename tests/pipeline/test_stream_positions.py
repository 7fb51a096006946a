"""The streaming reader asked as Spark asks it: each line once, positions that stand, and refusals that say why."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from pyspark_stagepost.batch import StagepostReader
from pyspark_stagepost.options import Options, check_batch, check_stream
from pyspark_stagepost.stream import JournalStream, Offset
from stagepost.flow.clock import SECOND
from stagepost.flow.errors import DeclarationError
from stagepost.ports.cursors import EXPIRY
from stagepost.ports.registry import driver_of
from stagepost.ports.session import Session
from stagepost.store.postgres.store import migrate_database
from stagepost.store.sqlite.store import migrate_file
from stagepost.testing import ManualClock
from stagepost.testing.contract.givens import NOW, a_waypoint, committed
from tests.books import Books, InPostgres, InSqlite
from tests.waiting import wait_until

ALL = ReadAllAvailable()


@pytest.fixture(params=["sqlite", "postgres"])
def books(request: pytest.FixtureRequest, tmp_path: Path) -> Books:
    if request.param == "sqlite":
        migrate_file(tmp_path / "store.db")
        return InSqlite(tmp_path / "store.db")
    url = request.getfixturevalue("new_postgres")()
    migrate_database(url)
    return InPostgres(url)


@pytest.fixture
def session(books: Books) -> Iterator[Session]:
    with closing(driver_of(books.url).open_existing(books.url, "the test").session()) as session:
        yield session


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
def follow(books: Books, clock: ManualClock) -> Iterator[Callable[..., JournalStream]]:
    """A stream as Spark makes it at each start; several are several starts."""
    made: list[JournalStream] = []

    def start(name: str = "audit", **given: str) -> JournalStream:
        options = Options.read({"url": books.url, "reader": name, "columns": "message_id", **given})
        check_stream(options)
        made.append(JournalStream(options, options.schema, clock))
        return made[-1]

    yield start
    for each in made:
        each.stop()


Follow = Callable[..., JournalStream]
Latest = Callable[[JournalStream, Offset], Offset]


def write(session: Session, *messages: str) -> None:
    with committed(session):
        session.journal.record([a_waypoint(each) for each in messages])


def messages_in(stream: JournalStream, start: Offset, end: Offset) -> list[str]:
    parts: list[InputPartition] = pickle.loads(pickle.dumps(list(stream.partitions(start, end))))
    return sorted(each for part in parts for batch in stream.read(part) for each in batch.column(0).to_pylist())


@pytest.fixture
def latest(books: Books) -> Latest:
    """Return the journal's end behind all lines. The server's own transactions may hold it back for a moment."""

    def find(stream: JournalStream, start: Offset) -> Offset:
        wait_until(lambda: number_of(stream.latestOffset(start, ALL)) > last_number(books), "all lines can be read")
        return stream.latestOffset(start, ALL)

    return find


def last_number(books: Books) -> int:
    """Return the number of the last line, as positions count."""
    column = "txid" if isinstance(books, InPostgres) else "id"
    return books.number(f"SELECT coalesce(max({column}), 0) FROM stagepost_journal")


def number_of(offset: Offset) -> int:
    return int(offset["position"].rpartition(":")[2])


def test_each_batch_has_the_lines_from_the_last_one_on_and_again_the_same(
    session: Session, follow: Follow, latest: Latest
) -> None:
    write(session, "a", "b")
    stream = follow()
    first = stream.initialOffset()
    second = latest(stream, first)
    write(session, "c")
    third = latest(stream, second)
    for _ in range(2):
        assert messages_in(stream, first, second) == ["a", "b"]
        assert messages_in(stream, second, third) == ["c"]
    assert stream.latestOffset(third, ALL) == third or messages_in(stream, third, stream.latestOffset(third, ALL)) == []
    assert stream.reportLatestOffset() is not None


def test_a_line_of_a_transaction_that_ends_late_is_passed_over_by_no_batch(
    books: Books, session: Session, follow: Follow, latest: Latest
) -> None:
    if isinstance(books, InSqlite):
        pytest.skip("SQLite has one writer at a time")
    stream = follow()
    first = stream.initialOffset()
    with closing(driver_of(books.url).open_existing(books.url, "the test").session()) as slow:
        slow.begin()
        slow.journal.record([a_waypoint("early")])
        # A question sends the line to the server.
        slow.journal.has_committed("stage", "message")
        write(session, "late")
        second = stream.latestOffset(first, ALL)
        assert messages_in(stream, first, second) == []
        slow.commit()
    assert messages_in(stream, second, latest(stream, second)) == ["early", "late"]


def test_a_reader_keeps_its_first_position_and_its_cursor_only_moves_forward(
    session: Session, follow: Follow, latest: Latest
) -> None:
    """The first batch may not finish: Spark then asks for the initial offset again, in another process."""
    write(session, "a")
    first = follow().initialOffset()
    found = session.cursors.find("audit")
    assert found is not None, "it is durable before the offset is given out"
    write(session, "b")
    stream = follow()
    assert stream.initialOffset() == first
    second = latest(stream, first)
    stream.commit(second)
    write(session, "c")
    third = latest(stream, second)
    for offset in (third, second, first):
        stream.commit(offset)
    cursor = session.cursors.find("audit")
    assert cursor is not None
    assert (cursor.first, cursor.position) == (number_of(first), number_of(third))
    assert follow().initialOffset() == first
    assert follow("another").initialOffset() == first
    other = session.cursors.find("another")
    assert other is not None
    assert other.position == number_of(first)


def test_a_stream_may_begin_at_a_position(books: Books, session: Session, follow: Follow, latest: Latest) -> None:
    write(session, "a")
    wait_until(lambda: session.journal.position() > last_number(books), "the line is before the position")
    begin = session.journal.position()
    write(session, "b")
    stream = follow(**{"from": str(begin)})
    first = stream.initialOffset()
    assert messages_in(stream, first, latest(stream, first)) == ["b"]
    with pytest.raises(DeclarationError, match=r"the reader audit of the journal began at .*keeps its first position"):
        follow(**{"from": f"{begin.epoch}:1"}).initialOffset()


def test_a_batch_has_about_as_many_rows_as_are_asked_for_and_whole_transactions(
    books: Books, session: Session, follow: Follow, latest: Latest
) -> None:
    for number in range(6):
        write(session, *(f"{number}{letter}" for letter in "abc"))
    stream = follow(maxRowsPerBatch="5")
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMaxRows(5)
    start = stream.initialOffset()
    end = latest(stream, start)
    batches = []
    while number_of(start) < number_of(end):
        following = stream.latestOffset(start, limit)
        batches.append(messages_in(stream, start, following))
        start = following
    assert [each for batch in batches for each in batch] == [f"{n}{c}" for n in range(6) for c in "abc"]
    sizes = {len(batch) for batch in batches if batch}
    assert sizes == {3} if isinstance(books, InPostgres) else max(sizes) == 5
    # A transaction of more rows is a batch.
    big = follow("big", maxRowsPerBatch="2")
    first = big.initialOffset()
    rows = messages_in(big, first, big.latestOffset(first, ReadMaxRows(2)))
    assert rows == (["0a", "0b", "0c"] if isinstance(books, InPostgres) else ["0a"])


def test_available_now_ends_where_the_journal_ended_when_it_began(
    session: Session, follow: Follow, latest: Latest
) -> None:
    write(session, "a")
    stream = follow()
    first = stream.initialOffset()
    latest(stream, first)
    stream.prepareForTriggerAvailableNow()
    write(session, "b")
    end = stream.latestOffset(first, ALL)
    assert messages_in(stream, first, end) == ["a"]
    assert stream.latestOffset(end, ALL) == end


# What is refused


def purge(session: Session, mark: Any) -> None:
    with committed(session):
        session.run("put_meta", ("purged", str(mark)))  # type: ignore[attr-defined] # nothing purges yet


def test_a_start_below_the_purge_mark_is_refused_with_both_positions_and_the_reason(
    session: Session, follow: Follow, clock: ManualClock, latest: Latest
) -> None:
    write(session, "a")
    stream = follow()
    first = stream.initialOffset()
    end = latest(stream, first)
    (part,) = stream.partitions(first, end)
    mark = end["position"]
    purge(session, mark)
    with pytest.raises(DeclarationError) as caught:
        stream.latestOffset(first, ALL)
    assert f"begins at {first['position']}, and the journal was purged up to {mark}" in str(caught.value)
    assert "its checkpoint is an old one, or another stream has the same name" in str(caught.value)
    assert f"the option from={mark}" in str(caught.value)
    with pytest.raises(DeclarationError, match="purged up to"):
        stream.partitions(first, end)
    # A task that had begun before fails after its rows, because it may have missed some.
    with pytest.raises(DeclarationError, match=r"begins at \S+:0, and the journal was purged up to"):
        list(stream.read(part))
    clock.advance(EXPIRY / SECOND + 1)
    with pytest.raises(DeclarationError, match=r"its cursor expired.*last used on 2023-11-14, more than 30 days ago"):
        stream.latestOffset(first, ALL)
    # From the mark on nothing is missing.
    assert stream.latestOffset(end, ALL)


def test_a_read_of_the_whole_journal_fails_if_some_of_it_is_purged_meanwhile(books: Books, session: Session) -> None:
    write(session, "a", "b")
    mark = session.journal.position()
    options = Options.read({"url": books.url})
    reader = StagepostReader(options, options.schema)
    (part,) = reader.partitions()
    assert sum(batch.num_rows for batch in reader.read(part)) == 2
    purge(session, mark)
    with pytest.raises(DeclarationError, match=f"purged up to {mark}"):
        list(reader.read(part))
    # A new read is of the journal as it is now.
    (part,) = reader.partitions()
    assert sum(batch.num_rows for batch in reader.read(part)) == 2


def test_a_stream_that_has_nothing_to_read_keeps_its_cursor(
    session: Session, follow: Follow, clock: ManualClock
) -> None:
    stream = follow()
    first = stream.initialOffset()
    clock.advance(EXPIRY / SECOND - 1)
    stream.latestOffset(first, ALL)
    cursor = session.cursors.find("audit")
    assert cursor is not None
    assert cursor.used_at == clock.now()


@pytest.mark.parametrize("ask", ["next", "again"])
def test_a_stream_that_continues_under_another_name_has_a_cursor_of_that_name(
    session: Session, follow: Follow, ask: str, latest: Latest
) -> None:
    """Its checkpoint tells where it continues, so Spark asks for no initial offset. Without a cursor, lines that it
    has not read would be purged."""
    write(session, "a")
    first = follow("old").initialOffset()
    second = latest(follow("old"), first)
    write(session, "b")
    stream = follow("new")
    if ask == "next":
        begin = second
        latest(stream, begin)
    else:
        begin = first
        assert messages_in(stream, first, second) == ["a"]
    cursor = session.cursors.find("new")
    assert cursor is not None
    assert (cursor.position, cursor.first) == (number_of(begin), 0)
    stream.commit(latest(stream, second))
    moved = session.cursors.find("new")
    assert moved is not None
    assert moved.position > number_of(second)
    # With a new checkpoint it begins where a new stream of its name begins.
    assert follow("new").initialOffset() == first


def test_a_checkpoint_of_another_store_or_epoch_is_refused(session: Session, follow: Follow) -> None:
    write(session, "a")
    stream = follow()
    here = stream.initialOffset()
    foreign = {"position": f"00000000-0000-0000-0000-000000000000:{number_of(here)}"}
    for ask in (
        lambda: stream.latestOffset(foreign, ALL),
        lambda: stream.partitions(foreign, here),
        lambda: stream.partitions(here, foreign),
    ):
        with pytest.raises(DeclarationError, match=r"the option url names another store now, or this one was restored"):
            ask()
    stream.commit(foreign)
    cursor = session.cursors.find("audit")
    assert cursor is not None
    assert cursor.position == number_of(here)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, 'needs .option("reader", "a name")'),
        ({"reader": "a b"}, "option reader of the source stagepost must be 1 to 200 letters"),
        ({"reader": ""}, "option reader of the source stagepost must be"),
        ({"reader": "r", "table": "queue"}, "follows the journal only, because the rows of queue move and go"),
        ({"reader": "r", "until": "9"}, "the options until, lines and pushFilters are for spark.read"),
        ({"reader": "r", "pushFilters": "true"}, "the options until, lines and pushFilters are for spark.read"),
        ({"reader": "r", "maxRowsPerBatch": "0"}, "maxRowsPerBatch of the source stagepost must be a whole number"),
        ({"reader": "r", "maxRowsPerBatch": f"1{'0' * 30}"}, "maxRowsPerBatch of the source stagepost must be"),
        ({"reader": "r", "columns": "colour"}, "journal has no column 'colour'"),
    ],
    ids=str,
)
def test_a_stream_that_cannot_be_is_refused(tmp_path: Path, given: dict[str, str], says: str) -> None:
    migrate_file(tmp_path / "store.db")
    with pytest.raises(DeclarationError) as caught:
        check_stream(Options.read({"url": f"sqlite:///{tmp_path}/store.db", **given}))
    assert says in str(caught.value)


def test_options_of_streams_are_refused_by_a_read(tmp_path: Path) -> None:
    migrate_file(tmp_path / "store.db")
    with pytest.raises(DeclarationError, match=r"options reader and maxRowsPerBatch are for spark\.readStream"):
        check_batch(Options.read({"url": f"sqlite:///{tmp_path}/store.db", "reader": "r"}))
