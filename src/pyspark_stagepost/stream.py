"""Follow the journal: ``spark.readStream``. Each batch is the lines of whole transactions from one position to another.

An offset is a position. Lines below it never change, so a batch that is read again has the same rows. The store keeps a
cursor for each named reader. Spark keeps the offsets in its checkpoint, and these decide what is read.

Spark pickles one reader to its tasks, and asks another one, in a process of its own, for offsets. So only the second
has a session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC
from typing import NoReturn, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pyspark_stagepost.batch import Range, ranges, read_batches
from pyspark_stagepost.options import Options, check_columns, plain_errors
from stagepost.flow.clock import SECOND, Clock, to_datetime
from stagepost.flow.errors import DeclarationError, StagepostError
from stagepost.ports.cursors import EXPIRY, Cursor
from stagepost.ports.export import TableQuery
from stagepost.ports.journal import Position, Span
from stagepost.ports.registry import require
from stagepost.ports.session import Session
from stagepost.transaction.queue_commit import committing

Offset = dict[str, str]
# How often a reader that has nothing to read notes that it is there.
USE_SECONDS = 3600
EXPIRY_DAYS = EXPIRY // SECOND // 86_400

T = TypeVar("T")


class JournalStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Read the columns of the schema, batch by batch. Raises ``DeclarationError`` and ``StoreError``."""

    def __init__(self, options: Options, schema: StructType, clock: Clock) -> None:
        check_columns(options, schema)
        assert options.reader is not None
        self._options = options
        self._reader = options.reader
        self._schema = schema
        self._clock = clock
        self._session: Session | None = None
        self._target: Position | None = None
        self._used_at = 0
        self._has_cursor = False

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's names, here and below
        """Return the first position of the cursor, which is durable before this returns.

        Spark asks again if the first batch does not finish, and gets the same answer.
        """
        with plain_errors():
            return _offset(self._cursor().first)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with plain_errors():
            self._target = self._here()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        rows = self._options.rows_a_batch
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        with plain_errors():
            here = self._here()
            begin = self._checked(start, here)
            self._keep_cursor(begin)
            self._note_use()
            end = self._target or here
            if end <= begin:
                return start
            if isinstance(limit, ReadMaxRows):
                end = self._options.store.cut_journal(Span(begin, end), limit.max_rows)
            return _offset(end)

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        with plain_errors():
            return _offset(self._here())

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        with plain_errors():
            here = self._here()
            span = Span(self._checked(start, here), self._checked(end, here))
            assert span.begin is not None
            self._keep_cursor(span.begin)
            return ranges(self._options, span)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        query = TableQuery(self._options.table, self._schema.fieldNames(), span=partition.span)
        return read_batches(self._options.store, query, partition, self._schema)

    def commit(self, end: Offset) -> None:
        """Move the cursor. Spark calls this one batch late, so the cursor is never ahead of what was processed."""
        position = _position(end)
        with plain_errors():
            self._write(lambda session, now: session.cursors.advance(self._reader, position, now))

    def stop(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _cursor(self) -> Cursor:
        begin = self._options.span.begin
        wanted = self._first()
        self._write(lambda session, now: session.cursors.add(self._reader, wanted, now))
        cursor = self._ask(lambda session: session.cursors.find(self._reader))
        assert cursor is not None
        if begin is not None and begin != cursor.first:
            raise DeclarationError(
                f"the reader {self._reader} of the journal began at {cursor.first}, and the option from says {begin}: "
                "a reader keeps its first position. Leave the option out, or give the stream another name."
            )
        return cursor

    def _first(self) -> Position:
        """Return the first position of a new cursor."""
        begin = self._options.span.begin
        here = self._here()
        if begin is not None:
            Span(begin).check_epoch(here.epoch, self._reader)
        return Position(0 if begin is None else begin, here.epoch)

    def _keep_cursor(self, begin: Position) -> None:
        """Add the cursor of a stream that continues from ``begin`` and has none.

        Spark asks for no initial offset if there is a checkpoint, which may be that of another name.
        """
        if not self._has_cursor and self._ask(lambda session: session.cursors.find(self._reader)) is None:
            first = self._first()

            def add(session: Session, now: int) -> None:
                session.cursors.add(self._reader, first, now)
                session.cursors.advance(self._reader, begin, now)

            self._write(add)
        self._has_cursor = True

    def _here(self) -> Position:
        """Return the journal's end, which is durable, so that no lower position comes after a crash."""
        return self._ask(lambda session: session.journal.position())

    def _checked(self, offset: Offset, here: Position) -> Position:
        """Return the position of the offset. Raises ``DeclarationError`` if nothing can be read from it any longer."""
        position = _position(offset)
        if position.epoch != here.epoch:
            raise DeclarationError(
                f"the checkpoint of the reader {self._reader} has the position {position}, and the journal is in the "
                f"epoch {here.epoch}: the option url names another store now, or this one was restored, or its server "
                "was promoted. Start with another checkpoint and another name of the reader."
            )
        mark = self._options.store.purged_until()
        if mark is not None and mark > position:
            raise DeclarationError(self._purged(position, mark))
        return position

    def _purged(self, position: Position, mark: Position) -> str:
        cursor = self._ask(lambda session: session.cursors.find(self._reader))
        why = "its checkpoint is an old one, or another stream has the same name"
        if cursor is not None and cursor.has_expired(self._clock.now()):
            used = to_datetime(cursor.used_at).astimezone(UTC).date()
            why = f"its cursor expired, because it was last used on {used}, more than {EXPIRY_DAYS} days ago"
        return (
            f"the reader {self._reader} of the journal begins at {position}, and the journal was purged up to {mark}: "
            f"{why}. Read the lines between the two from the archive. Then start with another checkpoint, "
            f"another name of the reader and the option from={mark}."
        )

    def _note_use(self) -> None:
        """Keep the cursor of a stream alive that has nothing to read."""
        if self._clock.now() - self._used_at > USE_SECONDS * SECOND:
            self._write(lambda session, now: session.cursors.use(self._reader, now))
            self._used_at = self._clock.now()

    def _ask(self, question: Callable[[Session], T]) -> T:
        if self._session is None:
            why = "A stream needs it for its position."
            store = require(self._options.url, "cursors", why).open_existing(self._options.url, "the option url")
            self._session = store.session(is_pinned=False)
        return question(self._session)

    def _write(self, change: Callable[[Session, int], None]) -> None:
        def commit(session: Session) -> None:
            with committing(session):
                change(session, self._clock.now())

        self._ask(commit)


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raise the error when Spark first asks something. Spark hides an error that comes while it makes the reader."""

    def __init__(self, error: StagepostError) -> None:
        self._error = error

    def _refuse(self) -> NoReturn:
        with plain_errors():
            raise self._error

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's names, here and below
        self._refuse()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._refuse()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        self._refuse()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        self._refuse()


def _offset(position: Position) -> Offset:
    return {"position": str(position)}


def _position(offset: Offset) -> Position:
    found = Position.read(offset["position"])
    assert found is not None
    return found
