"""A session: one connection, which one thread uses at a time, its transactions, and the statements of a handler."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from stagepost.flow.errors import (
    CommitUnknown,
    ConnectionLost,
    IllegalCall,
    LeaseLost,
    StagepostError,
    StoreContention,
    StoreError,
    TransactionBoundary,
)
from stagepost.flow.rows import Rows
from stagepost.ports.decisions import InDoubt
from stagepost.ports.session import ended_under
from stagepost.store.postgres.boundary import analyse
from stagepost.store.postgres.connection import ENDED_BY, GuardedConnection, connect
from stagepost.store.postgres.connection_loan import ConnectionLoan
from stagepost.store.postgres.faults import (
    BY_POOLER,
    IDLE_IN_TRANSACTION,
    READ_ONLY_TRANSACTION,
    is_elsewhere,
    is_outage,
    one_line,
    translate,
)
from stagepost.store.postgres.late import AHEAD, LATE_MAX, Late, LateRows, contents_of
from stagepost.store.postgres.notifier import RING, Notifier
from stagepost.store.postgres.parameters import numbered
from stagepost.store.postgres.statement_pipeline import Result, StatementPipeline
from stagepost.store.postgres.statements import Statement
from stagepost.store.postgres.wire import SETTINGS, Cursor, found
from stagepost.store.postgres.writer import PostgresWriter
from stagepost.store.sql.database import Parameters, only

BEGIN = Statement(b"BEGIN ISOLATION LEVEL READ COMMITTED", ())
# A power failure shortly after the commit may lose the whole transaction, but never a part of it.
NOT_DURABLE = Statement(b"SET LOCAL synchronous_commit TO off", ())
COMMIT = Statement(b"COMMIT", ())
ROLLBACK = Statement(b"ROLLBACK", ())
SHOW_PREPARED_MAX = Statement(b"SELECT current_setting('max_prepared_transactions')::int", ())
# PREPARE TRANSACTION and its like take no parameters, so the global id is part of their text.
GID = re.compile(r"stagepost:[0-9a-z:.-]{1,180}")
# The start is a number, because the driver reads a timestamp in no DateStyle but ISO.
WHO_AM_I = (
    b"SELECT pid, (extract(epoch FROM backend_start) * 1000000)::bigint FROM pg_stat_activity "
    b"WHERE pid = pg_backend_pid()"
)
# A handler's settings, such as a search_path, must not affect Stagepost's statements in the same transaction. Functions
# may change settings too, and Stagepost does not see their texts.
RESETS = (Statement(b"RESET ALL", ()), Statement(b"RESET ROLE", ()), SETTINGS)
# These remove the session locks and temporary tables that a handler's functions have left. They run after the commit,
# because the transaction may need both until then.
CLEARANCES = (Statement(b"SELECT pg_advisory_unlock_all()", ()), Statement(b"DISCARD TEMP", ()))
FORGET_PREPARED = Statement(
    b"DO $$ DECLARE each text; BEGIN FOR each IN SELECT name FROM pg_prepared_statements WHERE from_sql "
    b"LOOP EXECUTE format('DEALLOCATE %I', each); END LOOP; END $$",
    (),
)


class PostgresSession(PostgresWriter):
    """Implements ``ports.session.Session`` and ``ports.decisions.Prepared``.

    The next transaction replaces a lost connection.
    """

    def __init__(self, parameters: dict[str, Any], place: str, notifier: Notifier) -> None:
        self._parameters = parameters
        self._place = place
        self._is_begun = False
        self._has_executed = False
        self._has_handled = False
        self._may_answer_late = False
        # The resets run before Stagepost's next statement, the clearances after the end of the transaction.
        self._resets: Sequence[Statement] = ()
        self._clearances: Sequence[Statement] = ()
        self._interruption: StagepostError | None = None
        self._broken_by: Exception | None = None
        # The server processes of lost connections, which may still run: process id, and start in microseconds.
        self._lost: list[tuple[int, int]] = []
        self._backend: tuple[int, int] | None = None
        super().__init__(notifier)
        self.prepared = self
        self._open()

    def _open(self) -> None:
        try:
            connection = connect(self._parameters)
            pipeline = StatementPipeline(connection)
            with connection.ours():
                cursor = Cursor(connection)
                cursor.execute(SETTINGS.text)
                pid, started = cursor.execute(WHO_AM_I).fetchone() or (0, 0)
                # A pooler may have given the server process to another client by the time this connection is lost.
                backend = (pid, started) if pid == connection.info.backend_pid else None
        except psycopg.Error as error:
            raise translate(error, self._place) from error
        # Set last: Ctrl-C may interrupt a statement above, and such a connection cannot be used.
        self._connection, self._pipeline, self._backend, self._clearances = connection, pipeline, backend, ()

    # Implements wire.Wire

    def run(self, statement: str | Statement, parameters: Parameters = ()) -> Result:
        self._renew_if_lost()
        self.later(statement, parameters)
        try:
            return self._execute_pipeline()
        except psycopg.Error as error:
            raise self._translated(error) from error

    def later(self, statement: str | Statement, parameters: Parameters = ()) -> None:
        if self._resets and not self._connection.is_lent:
            self._reset()
        try:
            self._pipeline.add(found(statement), parameters)
        except psycopg.Error as error:
            raise self._translated(error) from error

    def _execute_pipeline(self) -> Result:
        self._has_executed = True
        with self._connection.ours():
            return self._pipeline.execute()

    def _translated(self, error: psycopg.Error, *, is_handlers: bool = False) -> StoreError | LeaseLost:
        """Translate an error of psycopg. ``is_handlers``: a handler's statement met it, and the handler has ended."""
        if self._pipeline.is_fence(error):
            return LeaseLost(str(error))
        if self._pipeline.is_stale(error):
            return StoreContention(f"{self._place}: {one_line(error)}: the statement is prepared again")
        if error.sqlstate == READ_ONLY_TRANSACTION and self._has_handled:
            # The transaction began with a write, so the server itself is not read-only.
            return StoreError(f"{self._place}: the handler has made its transaction read-only: {one_line(error)}")
        translated = translate(error, self._place)
        server_error = self._pipeline.server_error
        states = {error.sqlstate, server_error.sqlstate if server_error is not None else None}
        has_no_answer = self._connection.broken and states <= {None, BY_POOLER}
        is_handlers = is_handlers or (self._connection.is_lent and self._connection.loan.has_run_statement)
        return ConnectionLost(str(translated)) if has_no_answer and is_handlers else translated

    # Transactions

    def begin(self, *, is_durable: bool = True) -> None:
        if self._is_begun:
            raise StoreError(f"{self._place}: this session has a transaction open already")
        self._renew_if_lost()
        self._forget()
        self._pipeline.add(BEGIN, ())
        if not is_durable:
            self._pipeline.add(NOT_DURABLE, ())
        self._is_begun = True
        self._has_executed = False
        self._has_handled = False
        self._resets = ()
        self._interruption = None

    def commit(self) -> None:
        if not self.is_open:
            why = self._pipeline.server_error
            self.rollback()
            if why is not None and is_outage(why):
                raise self._translated(why) from why
            raise StoreError(
                f"{self._place}: there is no transaction to commit; it ended before{f': {why}' if why else ''}"
            ) from why
        answers: list[Result] = []
        self._pipeline.add(COMMIT, (), answers.append)
        try:
            self._clear()
            answer = answers[0].statusmessage
        except psycopg.Error as error:
            translated = self._translated(error)
            if self._connection.closed and error.sqlstate != IDLE_IN_TRANSACTION and not self._pipeline.is_fence(error):
                raise CommitUnknown(f"{translated}, and whether it was committed is not known") from error
            raise translated from error
        else:
            if answer != "COMMIT":
                # A statement had failed. PostgreSQL reports it only by the command tag.
                raise StoreError(f"{self._place}: the transaction had failed, and was rolled back ({answer})")
            self._is_begun = False
        finally:
            self.rollback()

    def begin_to_prepare(self) -> None:
        self.begin()
        self.is_quiet = True

    def prepare(self, gid: str) -> None:
        self._pipeline.add(_about("PREPARE TRANSACTION", gid), ())
        try:
            answer = self._execute_pipeline().statusmessage
        except psycopg.Error as error:
            raise self._translated(error) from error
        else:
            if answer != "PREPARE TRANSACTION":
                # A statement had failed. PostgreSQL reports it only by the command tag.
                raise StoreError(f"{self._place}: {gid} was not prepared: its transaction had failed ({answer})")
            self._is_begun = False
        finally:
            self.rollback()

    def commit_prepared(self, gid: str) -> None:
        # The prepared transaction could not notify. Its messages are visible now.
        if self._is_settled("COMMIT PREPARED", gid) and self._notifier.may_ring():
            self.run(RING)

    def rollback_prepared(self, gid: str) -> None:
        self._is_settled("ROLLBACK PREPARED", gid)

    def in_doubt(self, prefix: str) -> list[InDoubt]:
        return [InDoubt(gid, age) for gid, _, age in self.run("list_prepared", (prefix,)).fetchall()]

    @property
    def prepared_max(self) -> int:
        return int(only(self.run(SHOW_PREPARED_MAX))[0])

    def _is_settled(self, verb: str, gid: str) -> bool:
        """Execute the statement. Return False if another process has already ended the prepared transaction."""
        try:
            self.run(_about(verb, gid))
        except StoreError as error:
            if isinstance(error.__cause__, psycopg.errors.UndefinedObject):
                return False
            raise
        return True

    def rollback(self) -> None:
        self.is_quiet = False
        # The error keeps the handler's frames alive.
        self._broken_by = None
        if not self._is_begun:
            return
        has_executed = self._has_executed or self._pipeline.has_sent
        self._forget()
        try:
            if has_executed and not self._connection.closed:
                self._undo()
        except psycopg.Error:
            # The server rolls back the transaction when the connection closes.
            self._drop()
        # Set last: if Ctrl-C interrupts the rollback, the next call rolls back.
        self._is_begun = False

    def _undo(self) -> None:
        is_open = self._status != TransactionStatus.IDLE
        if is_open:
            self._pipeline.add(ROLLBACK, ())
        if is_open or self._clearances:
            self._clear()

    def _clear(self) -> None:
        """Execute the waiting statements, then remove what the handler's functions left in the session."""
        for each in self._clearances:
            self._pipeline.add(each, ())
        self._execute_pipeline()
        self._clearances = ()

    def _reset(self) -> None:
        for each in self._resets:
            self._pipeline.add(each, ())
        self._resets = ()

    def reconnect(self) -> None:
        """Replace the connection. Raises ``StoreUnavailable`` if the server cannot be reached.

        The next statement then tries again.
        """
        self.close()
        self._renew()

    def _renew_if_lost(self) -> None:
        # Never in a transaction, which would be lost, nor while a handler may hold the connection. Both end soon.
        if self._is_begun or self._connection.is_lent:
            return
        if not self._connection.closed and self._pipeline.has_ended():
            self._drop()
        if self._connection.closed:
            self._renew()

    def _renew(self) -> None:
        """Open a new connection, and end the server processes of the lost ones, which may still hold locks."""
        if self._backend is not None:
            self._lost.append(self._backend)
            self._backend = None
        self._open()
        self.queue.reconnected()
        while self._lost:
            # Removed first: if this connection is lost too, ``run`` calls this method again, which ends the others.
            lost = self._lost.pop()
            try:
                self.run("terminate_backend", lost)
            except StoreError:
                self._lost.append(lost)
                raise

    def close(self) -> None:
        self._connection.take_back()
        self._is_begun = False
        self._pipeline.abandon()
        self._drop()

    def _drop(self) -> None:
        with suppress(psycopg.Error):
            self._connection.close()

    @property
    def _status(self) -> int:
        """One of ``TransactionStatus``."""
        return self._connection.pgconn.transaction_status

    @property
    def is_begun(self) -> bool:
        return self._is_begun

    @property
    def is_open(self) -> bool:
        """Tell whether a transaction is open.

        A failed transaction counts as open while its handler may return to a savepoint.
        """
        if not self._is_begun or not self._has_executed or self._pipeline.has_sent:
            # The status is not known until the results of the sent statements are read.
            return self._is_begun
        if self._connection.is_lent:
            return self._status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN)
        return self._status == TransactionStatus.INTRANS

    def ending(self, stage: str) -> StagepostError | None:
        if self.is_open:
            return None
        cause = self._connection.loan.broken_by if self._connection.is_lent else self._broken_by
        return self._interruption or ended_under(stage, ENDED_BY, cause)

    @contextmanager
    def atomic(self) -> Iterator[None]:
        self._connection.check_not_failed()
        self.run("savepoint")
        try:
            yield
            self.run("release")
        except BaseException:
            self._undo_to_savepoint()
            raise

    def _forget(self) -> None:
        if not self._pipeline.has_sent:
            self._pipeline.forget()
            return
        with self._connection.ours():
            self._pipeline.forget()

    def _undo_to_savepoint(self) -> None:
        self._forget()
        if self._status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            self.run("rollback_to")
            self.run("release")

    # The handler's part

    def lend(self, place: str, touch: Callable[[], None], *, may_answer_late: bool = False) -> None:
        self._renew_if_lost()
        self._may_answer_late = may_answer_late
        self._connection.lend(place, touch, self.catch_up)

    def catch_up(self) -> None:
        """Execute the waiting statements before the handler's next one. BEGIN may be among them."""
        if self._interruption is not None:
            # A savepoint of this handler cannot undo the failure, which may be another handler's.
            raise self._interruption
        if len(self._pipeline):
            try:
                self._execute_pipeline()
            except psycopg.Error as error:
                self._interruption = self._translated(error)
                raise self._interruption from error

    def take_back(self) -> StoreError | None:
        loan = self._connection.take_back()
        if loan is None:
            return None
        self._broken_by = loan.broken_by
        self._has_handled |= loan.has_run_statement
        if loan.has_run_code:
            self._resets = RESETS
            self._clearances = (*CLEARANCES, FORGET_PREPARED) if loan.has_run_block else self._clearances or CLEARANCES
        if loan.has_set_something and self.is_open:
            # Immediately, because the next handler of a batch shares the transaction.
            self._resets = RESETS
            self._reset()
        outage = None if loan.outage is None else self._translated(loan.outage, is_handlers=True)
        return outage if isinstance(outage, StoreError) else None

    @property
    def connection(self) -> GuardedConnection:
        if self._connection.is_lent:
            self.catch_up()
        return self._connection

    def execute(self, statement: str, parameters: dict[str, Any]) -> Rows:
        loan = self._connection.loan
        loan.check(statement)
        if analyse(statement).copies:
            raise IllegalCall("ctx.sql cannot run COPY: use `with ctx.connection.cursor().copy(…) as copy`.")
        wanted = numbered(statement)
        missing = [name for name in wanted.names if name not in parameters]
        given = ", ".join(parameters) or "none"
        if missing:
            raise IllegalCall(
                f"ctx.sql: no value for :{missing[0]} (parameters given: {given}). Give each value by its name: "
                "ctx.sql('… WHERE id = :id', id=…)."
            )
        has_ours = len(self._pipeline) > 0
        values = [parameters[name] for name in wanted.names]
        try:
            if self._may_answer_late and len(self._pipeline) < LATE_MAX:
                late = Late()
                self._pipeline.add_foreign(wanted.text, values, late.deliver)
                if self._pipeline.waiting >= AHEAD:
                    with self._connection.ours():
                        self._pipeline.send()
                return LateRows(late, lambda: self._catch_up_in(loan))
            self._pipeline.add_foreign(wanted.text, values)
            answer = self._execute_pipeline()
        except psycopg.Error as error:
            is_ours = has_ours and is_outage(error) and not self._pipeline.is_foreign(error)
            is_ours = is_ours and (self._connection.broken or not is_elsewhere(error))
            if self._may_answer_late or is_ours or self._pipeline.is_fence(error) or self._pipeline.is_stale(error):
                # A pipeline of several statements was executed, so the error may be another statement's.
                self._interruption = self._translated(error)
                raise self._interruption from error
            if isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None:
                # The driver refused the parameters. Another attempt would fail in the same way.
                raise IllegalCall(
                    f"ctx.sql: {error} (parameters given: {given}). Give values of types that psycopg knows."
                ) from error
            loan.note_error(error)
            raise
        return Rows(*contents_of(answer))

    def _catch_up_in(self, loan: ConnectionLoan) -> None:
        """Execute the waiting statements because a handler looks at rows of one of them."""
        if loan.is_over:
            raise TransactionBoundary(
                f"the rows of a ctx.sql of {loan.place} were first read after its handler had returned, and before "
                "its batch was committed. Read them in the handler."
            )
        loan.touch()
        self.catch_up()

    def interrupt(self) -> None:
        """Cancel the running statement, from another thread."""
        with suppress(psycopg.Error):
            self._connection.cancel_safe(timeout=1.0)


def _about(verb: str, gid: str) -> Statement:
    if not GID.fullmatch(gid):
        raise ValueError(f"{gid!r} is not a global id of Stagepost's")
    return Statement(f"{verb} '{gid}'".encode(), ())
