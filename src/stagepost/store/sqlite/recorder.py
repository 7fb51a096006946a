"""What is recorded beside the queue: the journal, accepted keys, dead letters, subscriptions. Part of whatever
transaction is open."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from stagepost.flow.errors import StoreError
from stagepost.flow.initiation import Acceptance, Verdict
from stagepost.flow.topic import Subscription
from stagepost.flow.waypoint import Waypoint
from stagepost.recovery.deadletter import DeadLetter
from stagepost.store.sqlite.declarations import SqliteDeclarations
from stagepost.store.sqlite.faults import translate
from stagepost.store.sqlite.inbox import SqliteInbox
from stagepost.store.sqlite.outbox import SqliteOutbox
from stagepost.store.sqlite.queue import SqliteQueue
from stagepost.store.sqlite.reader import SqliteReader
from stagepost.store.sqlite.replays import SqliteReplays
from stagepost.store.sqlite.runs import SqliteRuns
from stagepost.store.sqlite.statements import SQL
from stagepost.store.sqlite.streaks import SqliteStreaks


class Recorder:
    """Stagepost's own statements on one connection, with one cursor that is read out before the next one runs."""

    def __init__(self, path: Path, cursor: sqlite3.Cursor) -> None:
        self._path = path
        self._cursor = cursor
        self.queue = SqliteQueue(self.run)
        self.reader = SqliteReader(self.run)
        self.runs = SqliteRuns(self.run)
        self.inbox = SqliteInbox(self.run)
        self.outbox = SqliteOutbox(self.run)
        self.replays = SqliteReplays(self.run)
        self.streaks = SqliteStreaks(self.run)
        self.declarations = SqliteDeclarations(self.run)

    def run(self, statement: str, parameters: Any = ()) -> sqlite3.Cursor:
        """One of our own statements; its errors come in Stagepost's words."""
        try:
            return self._cursor.execute(statement, parameters)
        except sqlite3.Error as error:
            raise self._translated(error) from error

    def record(self, waypoints: Sequence[Waypoint]) -> None:
        try:
            self._cursor.executemany(SQL["record_waypoint"], map(structs.astuple, waypoints))
        except sqlite3.Error as error:
            raise self._translated(error) from error

    def accept(self, acceptances: Sequence[Acceptance]) -> list[Verdict]:
        return [self._accept(each) for each in acceptances]

    def _accept(self, acceptance: Acceptance) -> Verdict:
        key = (acceptance.scope, acceptance.key)
        row = (*key, acceptance.digest, acceptance.run_id, acceptance.outgoing.envelope.sent_at)
        if self.run(SQL["accept_key"], row).rowcount == 1:
            return Verdict("started", acceptance.digest)
        (data,) = self.run(SQL["find_accepted"], key).fetchone()
        digest = data.decode()
        return Verdict("repeated" if digest == acceptance.digest else "conflict", digest)

    def bury(self, letter: DeadLetter) -> None:
        self.run(
            SQL["bury_letter"],
            (
                letter.message_id,
                letter.flow_id,
                letter.stage,
                letter.reason,
                msgspec.json.encode(letter.causes).decode(),
                letter.stack,
                letter.fingerprint,
                letter.failures,
                letter.deaths,
                letter.deliveries,
                letter.origin_at,
                letter.dead_at,
                letter.node,
                letter.declared_at,
                letter.envelope,
            ),
        )

    def exhume(self, letter_id: int) -> bool:
        return self.run(SQL["remove_letter"], (letter_id,)).rowcount == 1

    def subscribe(self, subscription: Subscription) -> None:
        self.run(SQL["put_subscription"], subscription)

    def unsubscribe(self, topic: str, subscriber: str) -> bool:
        return self.run(SQL["remove_subscription"], (topic, subscriber)).rowcount == 1

    def subscriptions(self, topics: Sequence[str]) -> list[Subscription]:
        wanted = {"topics": json.dumps(topics)}
        found = self.run(SQL["list_subscriptions"], wanted).fetchall()
        return [Subscription(*(each.decode() for each in row)) for row in found]

    def _translated(self, error: sqlite3.Error) -> StoreError:
        return translate(error, self._path)
