"""A pipeline of statements: one round trip to the server executes several of them.

A statement whose result is not needed is queued (``later``) until the next one whose result is (``run``). If a
statement fails, the server does not execute those after it. The call that executed the pipeline raises the error.

The statements use libpq's pipeline mode (PostgreSQL's manual, 34.5) through ``psycopg.pq``, not psycopg's cursors
(decision 016). Each statement is prepared on its first use. Values are sent as text. Rows come in binary form, for
psycopg's loaders.

``send`` sends queued statements before their results are needed, so that the server executes them meanwhile.
"""

from __future__ import annotations

import select
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
import psycopg
from psycopg import pq
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result

from stagepost.store.postgres.connection import GuardedConnection
from stagepost.store.postgres.faults import LEASE_LOST
from stagepost.store.postgres.statements import SQL, Statement
from stagepost.store.postgres.wire import ADAPTERS
from stagepost.store.sql.database import Parameters, Row, in_order

T = TypeVar("T")

# Identifies a prepared statement: its text, and the types of its parameters.
Key = tuple[bytes, tuple[int, ...]]

PARAMETERS_MAX = 65_535
# The most statements that stay prepared. A text that contains its values or a global id is used only once.
PREPARED_MAX = 500
# A thread that waits for the server returns to Python this often, so that Python can run signal handlers.
SIGNAL_CHECK_MILLISECONDS = 200

TEXT, BINARY = 0, 1
SUCCEEDED = {pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK, pq.ExecStatus.EMPTY_QUERY}
COPYING = {pq.ExecStatus.COPY_IN, pq.ExecStatus.COPY_OUT, pq.ExecStatus.COPY_BOTH}

# "cached plan must not change result type": the table was changed after the statement was prepared.
CACHED_PLAN_CHANGED = "0A000"
# The class of errors with which the server ends connections: it stops, or another of its processes crashed.
OPERATOR_INTERVENED = b"57P0"
# The server no longer has the prepared statement, for instance after DEALLOCATE.
NOT_PREPARED = "26000"
STALE = {CACHED_PLAN_CHANGED, NOT_PREPARED}
# The statements that fail if the message belongs to another owner by now.
FENCES = {SQL["take_claimed"].text, SQL["take_all_claimed"].text}


class QueuedStatement(msgspec.Struct, frozen=True):
    """A statement that waits to be sent.

    ``types``       the types of a handler's parameters, which may be any; Stagepost's statements cast their own
    ``is_foreign``  it is a handler's
    ``deliver``     is called with the result; the result of the last statement is also returned by ``execute``
    """

    text: bytes
    values: Sequence[Any]
    formats: Sequence[int] | None
    types: tuple[int, ...] = ()
    is_foreign: bool = False
    deliver: Callable[[Result], None] | None = None

    @property
    def row_format(self) -> int:
        """Text for a handler's statement: psycopg registers a handler's own loaders for text by default."""
        return TEXT if self.is_foreign else BINARY


class Result:
    """Implements ``Answer``. The rows are loaded on the first fetch."""

    def __init__(self, result: pq.abc.PGresult, context: psycopg.Connection[Any] | None, row_format: int) -> None:
        self._result = result
        self._context = context
        self._row_format = row_format
        self._rows: list[Row] | None = None
        self._at = 0

    @property
    def rowcount(self) -> int:
        touched = self._result.command_tuples
        return -1 if touched is None else touched

    @property
    def statusmessage(self) -> str:
        return (self._result.command_status or b"").decode()

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The names of the columns, or None for a statement that returns no rows."""
        if self._result.status != pq.ExecStatus.TUPLES_OK:
            return None
        names = (self._result.fname(at) or b"" for at in range(self._result.nfields))
        return tuple(name.decode() for name in names)

    def fetchone(self) -> Row | None:
        rows = self._all()
        if self._at >= len(rows):
            return None
        self._at += 1
        return rows[self._at - 1]

    def fetchall(self) -> list[Row]:
        rows, begin = self._all(), self._at
        self._at = len(rows)
        return rows[begin:]

    def _all(self) -> list[Row]:
        if self._rows is None:
            loading = Transformer(self._context or ADAPTERS)
            loading.set_pgresult(self._result, format=pq.Format(self._row_format))
            self._rows = loading.load_rows(0, self._result.ntuples, tuple)
        return self._rows


class StatementPipeline:
    """The statements of one connection: those that wait, those that were sent ahead, and those that are prepared."""

    def __init__(self, connection: GuardedConnection) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._waiting: list[QueuedStatement] = []
        self._sent: list[tuple[QueuedStatement, Key | None]] = []
        self._prepared: OrderedDict[Key, bytes] = OrderedDict()
        self._count = 0
        self._server_errors: list[psycopg.Error] = []
        self._failed: tuple[psycopg.Error, QueuedStatement, bool] | None = None
        self._notice_handler = self._pgconn.notice_handler
        self._pgconn.notice_handler = self._read_notice
        self._readable = select.poll()
        self._readable.register(self._pgconn.socket, select.POLLIN)
        self._both = select.poll()
        self._both.register(self._pgconn.socket, select.POLLIN | select.POLLOUT)

    def __len__(self) -> int:
        return len(self._waiting) + len(self._sent)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def has_sent(self) -> bool:
        """Tell whether statements were sent whose results were not read yet."""
        return bool(self._sent)

    def add(
        self, statement: Statement, parameters: Parameters, deliver: Callable[[Result], None] | None = None
    ) -> None:
        """Queue a statement of Stagepost's. Raises ``psycopg.DataError`` for a text with a NUL."""
        values: list[bytes | None] = []
        formats: list[int] | None = None
        for at, value in enumerate(in_order(statement.names, parameters)):
            kind = type(value)
            if kind is str:
                if "\0" in value:
                    # libpq takes a NUL for the end of the text.
                    raise psycopg.DataError("a text contains a NUL, which PostgreSQL cannot store: remove it")
                values.append(value.encode())
            elif value is None:
                values.append(None)
            elif kind is int:
                values.append(b"%d" % value)
            elif kind is bytes:
                values.append(value)
                formats = formats or [TEXT] * len(statement.names)
                formats[at] = BINARY
            else:
                values.append(_as_text(value).encode())
        self._waiting.append(QueuedStatement(statement.text, values, formats, deliver=deliver))

    def add_foreign(
        self, text: bytes, parameters: Sequence[Any], deliver: Callable[[Result], None] | None = None
    ) -> None:
        """Queue a handler's statement. Its parameters may be of any type that psycopg adapts.

        Raises ``psycopg.ProgrammingError`` for a parameter of another type, and for too many parameters.
        """
        if len(parameters) > PARAMETERS_MAX:
            raise psycopg.ProgrammingError(
                f"the statement has {len(parameters)} parameters, and PostgreSQL takes at most {PARAMETERS_MAX}"
            )
        dumping = Transformer(self._connection)
        values = dumping.dump_sequence(parameters, [PyFormat.AUTO] * len(parameters))
        types = tuple(dumping.types or ())
        self._waiting.append(QueuedStatement(text, values, dumping.formats, types, is_foreign=True, deliver=deliver))

    def is_fence(self, error: psycopg.Error) -> bool:
        """Tell whether the error means that the message is another owner's. A handler's SQL may raise its code too."""
        queued, _ = self._answered_by(error)
        return error.sqlstate == LEASE_LOST and queued is not None and queued.text in FENCES

    def is_stale(self, error: psycopg.Error) -> bool:
        """Tell whether a statement failed because it was prepared for a table that has changed since.

        It may succeed after it is prepared again.
        """
        _, was_prepared = self._answered_by(error)
        return error.sqlstate in STALE and was_prepared

    def is_foreign(self, error: psycopg.Error) -> bool:
        """Tell whether a handler's statement failed with the error."""
        queued, _ = self._answered_by(error)
        return queued is not None and queued.is_foreign

    def _answered_by(self, error: psycopg.Error) -> tuple[QueuedStatement | None, bool]:
        """Return the statement that failed with the error, and whether it had been prepared before."""
        if self._failed is None or self._failed[0] is not error:
            return None, False
        return self._failed[1:]

    @property
    def server_error(self) -> psycopg.Error | None:
        """The error with which the server ended the connection, if it was received."""
        return self._server_errors[0] if self._server_errors else None

    def has_ended(self) -> bool:
        """Tell whether the server has ended the connection while it was idle. Reads what has arrived."""
        self._read_pending()
        return self.server_error is not None or self._pgconn.status != pq.ConnStatus.OK

    def forget(self) -> None:
        """Discard the waiting statements, and the results of those that were sent."""
        self._waiting.clear()
        if self._sent:
            with suppress(psycopg.Error):
                self.execute()

    def abandon(self) -> None:
        """Discard all statements without reading results, because the connection ends."""
        self._waiting.clear()
        self._sent.clear()

    def send(self) -> None:
        """Send the waiting statements, and do not wait for their results.

        ``execute`` raises the error of a statement that fails. Raises ``psycopg.Error`` if the connection is lost.
        """
        self._exclusively(self._send_and_flush)

    def execute(self) -> Result:
        """Execute all statements that wait or were sent, and return the result of the last.

        Raises ``psycopg.Error``: the first, if there are several.
        """
        return self._exclusively(self._execute)

    def _exclusively(self, action: Callable[[], T]) -> T:
        self._connection.talk_lock.check()
        with self._connection.talk_lock.lock:
            try:
                if not self._sent:
                    self._check_idle()
                    if len(self._prepared) > PREPARED_MAX:
                        self._forget_oldest()
                return action()
            except BaseException as error:
                if isinstance(error, psycopg.OperationalError):
                    # A write that failed may have read the server's last words.
                    self._pgconn.is_busy()
                self.abandon()
                if self._pgconn.pipeline_status != pq.PipelineStatus.OFF:
                    # A time limit, a signal or an error interrupted the pipeline. The results that are still to be read
                    # would be taken for those of later statements.
                    self._pgconn.finish()
                if isinstance(error, psycopg.OperationalError) and self.server_error is not None:
                    # The server's own error says more than that the connection is lost.
                    raise self.server_error from None
                raise

    def _send_and_flush(self) -> None:
        self._send_all()
        with suppress(psycopg.OperationalError):
            # This sends as much as the socket takes without waiting.
            self._pgconn.flush()

    def _send_all(self) -> None:
        if not self._sent:
            self._pgconn.enter_pipeline_mode()
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            self._sent.append((each, self._send_one(each)))

    def _execute(self) -> Result:
        pgconn = self._pgconn
        self._read_pending()
        self._send_all()
        sent, self._sent = self._sent, []
        pgconn.pipeline_sync()
        self._flush()
        failures: list[psycopg.Error] = []
        try:
            answers = [self._answer(*each, failures) for each in sent]
            self._sync()
        except psycopg.OperationalError as lost:
            raise [*self._server_errors, *failures, lost][0] from None
        pgconn.exit_pipeline_mode()
        if failures:
            raise failures[0]
        for (queued, _), answer in zip(sent, answers, strict=True):
            if queued.deliver is not None:
                queued.deliver(self._as_result(queued, answer))
        return self._as_result(sent[-1][0], answers[-1])

    def _as_result(self, queued: QueuedStatement, answer: pq.abc.PGresult) -> Result:
        # The handler's adapters load only the rows of its own statements.
        return Result(answer, self._connection if queued.is_foreign else None, queued.row_format)

    def _answer(
        self, queued: QueuedStatement, prepared_as: Key | None, failures: list[psycopg.Error]
    ) -> pq.abc.PGresult:
        if prepared_as is not None:
            prepared = self._next()
            if prepared.status not in SUCCEEDED:
                self._prepared.pop(prepared_as, None)
                failures.append(_failure_in(prepared))
        answer = self._next()
        if answer.status not in SUCCEEDED:
            failure = _failure_in(answer)
            if not failures:
                self._failed = failure, queued, prepared_as is None
            failures.append(failure)
            if failure.sqlstate in STALE:
                self._prepared.pop((queued.text, queued.types), None)
        return answer

    def _forget_oldest(self) -> None:
        """Deallocate the least recently used prepared statements. A failed transaction accepts no DEALLOCATE."""
        if self._pgconn.transaction_status != pq.TransactionStatus.INERROR:
            names = [self._prepared.popitem(last=False)[1] for _ in range(len(self._prepared) - PREPARED_MAX // 2)]
            self._pgconn.exec_(b"; ".join(b"DEALLOCATE " + name for name in names))

    def _send_one(self, queued: QueuedStatement) -> Key | None:
        """Send the statement. Return its key if it had to be prepared first, and None otherwise."""
        key = (queued.text, queued.types)
        name = self._prepared.get(key)
        is_new = name is None
        if name is None:
            self._count += 1
            name = b"stagepost_%d" % self._count
            self._pgconn.send_prepare(name, queued.text, queued.types or None)
            self._prepared[key] = name
        else:
            self._prepared.move_to_end(key)
        self._pgconn.send_query_prepared(name, queued.values, queued.formats, result_format=queued.row_format)
        return key if is_new else None

    def _read_pending(self) -> None:
        """Read what the server has sent unasked: it gives a reason when it ends the connection.

        The read must come before the next write. A write to a closed connection fails with a network error, which
        would hide the reason.
        """
        with suppress(psycopg.OperationalError):
            while self._readable.poll(0):
                self._pgconn.consume_input()
        # libpq parses the input only when it is asked for something.
        self._pgconn.is_busy()

    def _read_notice(self, notice: pq.abc.PGresult) -> None:
        """Keep a notice with which the server ends the connection.

        libpq reports a FATAL error as a notice if it follows the last result. The server sends a warning if it stops
        immediately, or if another of its processes has crashed.
        """
        is_last = notice.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED) == b"FATAL"
        if is_last or (notice.error_field(pq.DiagnosticField.SQLSTATE) or b"").startswith(OPERATOR_INTERVENED):
            self._server_errors.append(error_from_result(notice))
        if self._notice_handler is not None:
            self._notice_handler(notice)

    def _flush(self) -> None:
        try:
            while self._pgconn.flush():
                self._both.poll(SIGNAL_CHECK_MILLISECONDS)
                self._pgconn.consume_input()
        except psycopg.OperationalError:
            # The connection is lost. The server's last error is read as the result.
            return

    def _next(self) -> pq.abc.PGresult:
        """Return the result of the next statement, and read to the end of its results."""
        result = self._result()
        if result is None:
            raise psycopg.OperationalError(self._pgconn.get_error_message() or "the connection is lost")
        if result.status in COPYING:
            raise psycopg.NotSupportedError("COPY cannot run in a pipeline: use a cursor's copy()")
        while self._result() is not None:
            # Only the first result is used.
            pass
        return result

    def _sync(self) -> None:
        result = self._result()
        if result is None or result.status != pq.ExecStatus.PIPELINE_SYNC:
            raise psycopg.OperationalError(self._pgconn.get_error_message() or "the connection is lost")

    def _result(self) -> pq.abc.PGresult | None:
        pgconn = self._pgconn
        while pgconn.is_busy():
            self._readable.poll(SIGNAL_CHECK_MILLISECONDS)
            try:
                pgconn.consume_input()
            except psycopg.OperationalError:
                # The connection is lost. The server's last error is the result.
                break
        return pgconn.get_result()

    def _check_idle(self) -> None:
        if self._pgconn.status != pq.ConnStatus.OK:
            raise self.server_error or psycopg.OperationalError("the connection is lost")
        if self._pgconn.transaction_status == pq.TransactionStatus.ACTIVE:
            raise psycopg.OperationalError("the connection is busy: a result was not read to its end")


def _failure_in(result: pq.abc.PGresult) -> psycopg.Error:
    match result.status:
        case pq.ExecStatus.FATAL_ERROR:
            error = error_from_result(result)
            # An error without a code is libpq's, and means that the connection is lost.
            return error if error.sqlstate else psycopg.OperationalError(str(error))
        case pq.ExecStatus.PIPELINE_ABORTED:
            return psycopg.errors.PipelineAborted("an earlier statement of the pipeline failed")
        case status:
            name = pq.ExecStatus(status).name
            return psycopg.NotSupportedError(f"a statement with the result {name} cannot run in a pipeline")


def _as_text(value: Any) -> str:
    if isinstance(value, list):
        return "{" + ",".join("NULL" if each is None else _element(each) for each in value) + "}"
    return str(value)


def _element(value: Any) -> str:
    if isinstance(value, int):
        return str(value)
    text = f"\\x{value.hex()}" if isinstance(value, bytes) else str(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
