"""The rows of incarnations, each with a session advisory lock that the server frees when the connection ends.

The lock is taken on the row's number before the row is written, so no process sees a living incarnation without its
lock. A heartbeat does not wait for the disk, because one that a power failure loses is replaced by the next one.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

import msgspec
import psycopg

from stagepost.ports.liveness import IncarnationRecord, Registration, Running, RunState
from stagepost.store.postgres.faults import translate
from stagepost.store.postgres.lock_row import LockRow
from stagepost.store.postgres.statements import SQL
from stagepost.store.postgres.wire import Cursor, connected
from stagepost.store.sql.database import in_order

# A random number, which is the first half of the lock's key.
LOCK_CLASS = 1_937_006_962
# Stands in place of a fence.
ALL_OTHERS = "*"
NOT_DURABLE = b"SET synchronous_commit TO off"


class PostgresWorkerRegistry:
    """Implements ``ports.liveness.WorkerRegistry``, with a connection for looking and one for each incarnation.

    The connection is opened again when it is used after a loss. One thread at a time may use it.
    """

    def __init__(self, parameters: dict[str, Any], place: str) -> None:
        self._parameters = parameters
        self._place = place
        self._connection: psycopg.Connection[Any] | None = None

    def enter(self, registration: Registration) -> LockRow:
        return LockRow(PostgresWorkerRegistry(self._parameters, self._place), registration)

    def add_row(self, registration: Registration) -> int:
        """Return the number of the new row."""
        number = int(self._one("next_incarnation"))
        while not self._lock(number):
            # The numbers begin again after all were used, and an incarnation may live that long.
            number = int(self._one("next_incarnation"))
        self._write_down(number, registration)
        return number

    def enter_again(self, number: int, registration: Registration) -> bool:
        """Lock the row again after the connection was lost. False while the server has not noticed the loss."""
        # The heartbeat comes first. After a long outage, the lock with an old heartbeat would look like a pause.
        self.beat(number)
        if not self._lock(number):
            return False
        # The row is still there, unless another process took this one for dead meanwhile.
        self._write_down(number, registration)
        return True

    def _write_down(self, number: int, registration: Registration) -> None:
        """Write the row durably. Without the row, after a crash of the server, its claims would have no owner.

        The heartbeats that follow are not durable.
        """
        self._run("enter_incarnation", (number, *registration[:-1], list(registration.batched)))
        try:
            self._cursor().execute(NOT_DURABLE)
        except psycopg.Error as error:
            raise translate(error, self._place) from error

    def beat(self, number: int) -> None:
        self._run("beat_incarnation", (number,))

    def time_out(self, number: int, row: int, deliveries: int) -> None:
        self._run("restate_incarnation", (_fence(row, deliveries), "timed-out", number))

    def abandon(self, number: int) -> None:
        self._run("restate_incarnation", (ALL_OTHERS, "abandoned", number))

    def leave(self, number: int) -> None:
        self._run("leave_incarnation", (number,))

    def forget(self, key: str) -> None:
        self._run("forget_incarnation", {"class": LOCK_CLASS, "id": int(key)})

    def look(self, app: str) -> list[IncarnationRecord]:
        rows = self._run("list_incarnations", {"class": LOCK_CLASS, "app": app}).fetchall()
        return [_record(row) for row in rows]

    @property
    def is_connected(self) -> bool:
        return self._connection is not None and not self._connection.closed

    def close(self) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()

    def _lock(self, number: int) -> bool:
        return bool(self._one("lock_incarnation", {"class": LOCK_CLASS, "id": number}))

    def _one(self, name: str, parameters: Any = ()) -> Any:
        row = self._run(name, parameters).fetchone()
        assert row is not None
        return row[0]

    def _run(self, name: str, parameters: Any = ()) -> Cursor:
        statement = SQL[name]
        try:
            return self._cursor().execute(statement.text, in_order(statement.names, parameters))
        except psycopg.Error as error:
            raise translate(error, self._place) from error

    def _cursor(self) -> Cursor:
        if self._connection is None or self._connection.closed:
            self._connection = connected(self._parameters)
        return Cursor(self._connection)


def _record(row: Sequence[Any]) -> IncarnationRecord:
    number, owner, node, host, process, started_at, beat, is_locked, running, states = row
    fences = [(int(each.split()[0]), int(each.split()[1])) for each in running]
    known = msgspec.json.decode(states, type=dict[str, str])
    otherwise = known.get(ALL_OTHERS, "running")
    return IncarnationRecord(
        str(number),
        owner,
        node,
        process,
        started_at,
        beat,
        is_locked,
        not is_locked and _is_gone(host, process),
        tuple(
            Running(cast(RunState, known.get(_fence(row, deliveries), otherwise)), row, deliveries)
            for row, deliveries in fences
        ),
    )


def _is_gone(host: str, process: int) -> bool:
    """Say whether the process has ended, which only its own machine can see."""
    if host != socket.gethostname():
        return False
    try:
        os.kill(process, 0)
    except OSError as error:
        return error.errno == errno.ESRCH
    return False


def _fence(row: int, deliveries: int) -> str:
    return f"{row} {deliveries}"
