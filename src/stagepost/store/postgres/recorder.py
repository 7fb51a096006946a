"""What is recorded beside the queue: the journal, accepted keys, dead letters, subscriptions. Part of whatever
transaction is open."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import structs

from stagepost.flow.initiation import Acceptance, Verdict
from stagepost.flow.topic import Subscription
from stagepost.flow.waypoint import Waypoint
from stagepost.recovery.deadletter import DeadLetter
from stagepost.store.postgres.bell import Bell
from stagepost.store.postgres.decisions import PostgresDecisions
from stagepost.store.postgres.declarations import PostgresDeclarations
from stagepost.store.postgres.inbox import PostgresInbox
from stagepost.store.postgres.outbox import PostgresOutbox
from stagepost.store.postgres.queue import PostgresQueue
from stagepost.store.postgres.reader import PostgresReader
from stagepost.store.postgres.replays import PostgresReplays
from stagepost.store.postgres.runs import PostgresRuns
from stagepost.store.postgres.statements import SQL
from stagepost.store.postgres.streaks import PostgresStreaks
from stagepost.store.postgres.texts import writable
from stagepost.store.postgres.wire import Wire, insert


class Recorder:
    """Implements ``transaction.seams.Recording`` on a wire."""

    def __init__(self, wire: Wire, bell: Bell) -> None:
        self._wire = wire
        self.queue = PostgresQueue(wire, bell)
        self.reader = PostgresReader(wire)
        self.runs = PostgresRuns(wire)
        self.inbox = PostgresInbox(wire)
        self.outbox = PostgresOutbox(wire, bell)
        self.decisions = PostgresDecisions(wire)
        self.replays = PostgresReplays(wire)
        self.streaks = PostgresStreaks(wire)
        self.declarations = PostgresDeclarations(wire)

    def record(self, waypoints: Sequence[Waypoint]) -> None:
        rows = [(*structs.astuple(each)[:-1], writable(each.detail)) for each in waypoints]
        insert(self._wire, SQL["record_waypoint"], rows)

    def accept(self, acceptance: Acceptance) -> Verdict:
        key = (acceptance.scope, acceptance.key)
        row = (*key, acceptance.digest, acceptance.run_id, acceptance.outgoing.envelope.sent_at)
        if self._wire.run(SQL["accept_key"], row).rowcount == 1:
            return Verdict("started", acceptance.digest)
        found = self._wire.run(SQL["find_accepted"], key).fetchone()
        assert found is not None, "nobody removes accepted keys while others ask for them"
        digest = str(found[0])
        return Verdict("repeated" if digest == acceptance.digest else "conflict", digest)

    def bury(self, letter: DeadLetter) -> None:
        self._wire.later(
            SQL["bury_letter"],
            (
                letter.message_id,
                letter.flow_id,
                letter.stage,
                letter.reason,
                msgspec.json.encode(letter.causes).decode(),
                writable(letter.stack),
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
        return self._wire.run(SQL["remove_letter"], (letter_id,)).rowcount == 1

    def subscribe(self, subscription: Subscription) -> None:
        self._wire.later(SQL["put_subscription"], subscription)

    def unsubscribe(self, topic: str, subscriber: str) -> bool:
        return self._wire.run(SQL["remove_subscription"], (topic, subscriber)).rowcount == 1

    def subscriptions(self, topics: Sequence[str]) -> list[Subscription]:
        found = self._wire.run(SQL["list_subscriptions"], {"topics": list(topics)}).fetchall()
        return [Subscription(*row) for row in found]
