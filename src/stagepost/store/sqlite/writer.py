"""Stagepost's own statements on one connection: of ours, or the caller's."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stagepost.flow.errors import StoreError
from stagepost.flow.initiation import Acceptance, Verdict
from stagepost.ports.queue import PROMOTION_MAX
from stagepost.store.sql.business_keys import SqlBusinessKeys
from stagepost.store.sql.database import Parameters, Row, SqlPart, text_of
from stagepost.store.sql.declarations import SqlDeclarations
from stagepost.store.sql.inbox import SqlInbox
from stagepost.store.sql.queue import SqlQueue
from stagepost.store.sql.staging import SqlStaging
from stagepost.store.sql.writer import StoreWriter
from stagepost.store.sqlite.faults import translate
from stagepost.store.sqlite.retention import SqliteRetention
from stagepost.store.sqlite.statements import SQL


class SqliteQueue(SqlQueue):
    """Implements ``ports.queue.Queue``."""

    _data_version = -1

    def reconnected(self) -> None:
        """Forget the version that the lost connection saw, so that the next ``changed`` says yes."""
        self._data_version = -1

    def promote(self, stages: Sequence[str], now: int) -> None:
        due = {"stages": self._database.array(stages), "now": now, "limit": PROMOTION_MAX}
        # RETURNING promises no order, and the ids that are given in ready are in that of the times.
        rows = sorted(self._run("promote_due", due).fetchall())
        if rows:
            self._database.insert("put_ready", [row[2:] for row in rows])

    def changed(self) -> bool:
        """Return whether any other connection, in this process or another, has committed since the last call."""
        (version,) = self._run("data_version").fetchone()
        seen, self._data_version = self._data_version, version
        return bool(seen != version)


class SqliteAccepted(SqlPart):
    """Implements ``ports.accepted.Accepted``.

    A statement for each key is as fast here as one for all, because there is no round trip (decision 035).
    """

    def accept(self, acceptances: Sequence[Acceptance], *, is_patient: bool = True) -> list[Verdict]:
        # The open transaction is the only writer, so no other has accepted one of the ids.
        return [self._accept(each) for each in acceptances]

    def _accept(self, acceptance: Acceptance) -> Verdict:
        key = (acceptance.scope, acceptance.key)
        envelope = acceptance.outgoing.envelope
        about = acceptance.digest, acceptance.run_id, envelope.sent_at, envelope.flow_id
        row = (*key, *about, acceptance.is_direct)
        if self._run("accept_key", row).rowcount == 1:
            return Verdict("started", acceptance.digest, acceptance.run_id)
        found, run_id = self._run("find_accepted", key).fetchone()
        digest = text_of(found)
        run = None if run_id is None else text_of(run_id)
        return Verdict("repeated" if digest == acceptance.digest else "conflict", digest, run)


class SqliteStaging(SqlStaging):
    """Implements ``ports.staging.Staging``. No other transaction writes, so three statements see one state."""

    def _start_new(self, parameters: dict[str, Any]) -> None:
        for statement in ("put_staged", "note_staged", "accept_staged"):
            self._run(statement, {name: parameters[name] for name in SQL[statement].names})


class SqliteWriter(StoreWriter):
    """It has one cursor, which is read out before the next statement runs. Implements ``SqlDatabase``."""

    def __init__(self, path: Path, cursor: sqlite3.Cursor) -> None:
        self._path = path
        self._cursor = cursor
        self.queue = SqliteQueue(self)
        super().__init__(self.queue)
        self.accepted = SqliteAccepted(self)
        self.inbox = SqlInbox(self)
        self.business_keys = SqlBusinessKeys(self)
        self.declarations = SqlDeclarations(self)
        self.retention = SqliteRetention(self)
        self.staging = SqliteStaging(self)

    def run(self, statement: str, parameters: Parameters = ()) -> sqlite3.Cursor:
        """One of our own statements; its errors come in Stagepost's words."""
        text, names = SQL[statement]
        try:
            values = [parameters[name] for name in names] if isinstance(parameters, dict) else parameters
            return self._cursor.execute(text, values)
        except sqlite3.Error as error:
            raise self._translated(error) from error

    def insert(self, statement: str, rows: Sequence[Row]) -> None:
        try:
            self._cursor.executemany(SQL[statement].text, rows)
        except sqlite3.Error as error:
            raise self._translated(error) from error

    def array(self, values: Sequence[object]) -> str:
        return json.dumps(values)

    def notify(self) -> None:
        """Others ask for ``PRAGMA data_version``."""

    def _translated(self, error: sqlite3.Error) -> StoreError:
        return translate(error, self._path)
