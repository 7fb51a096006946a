"""What is recorded beside the queue: the journal, accepted keys, dead letters, subscriptions. Part of whatever
transaction is open."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import structs
from psycopg.errors import LockNotAvailable

from stagepost.flow.errors import StoreContention
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
from stagepost.store.postgres.statements import SQL, Statement
from stagepost.store.postgres.streaks import PostgresStreaks
from stagepost.store.postgres.texts import writable
from stagepost.store.postgres.wire import Wire, insert

Key = tuple[str, str]

# A key that another open transaction has inserted is waited for, and not for ever. A connection that has a limit keeps
# its own.
WAIT_FOR_KEYS = Statement(
    b"SELECT set_config('stagepost.lock_timeout', current_setting('lock_timeout'), true), "
    b"set_config('lock_timeout', CASE current_setting('lock_timeout') WHEN '0' THEN '30s' "
    b"ELSE current_setting('lock_timeout') END, true)",
    (),
)
WAIT_AS_BEFORE = Statement(
    b"SELECT set_config('lock_timeout', current_setting('stagepost.lock_timeout'), true)",
    (),
)
NAMED_MAX = 3


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

    def accept(self, acceptances: Sequence[Acceptance]) -> list[Verdict]:
        # The first of several with one key is the one that is let in.
        firsts = {(each.scope, each.key): each for each in reversed(acceptances)}
        standing = self._let_in([firsts[key] for key in sorted(firsts)])
        verdicts: list[Verdict] = []
        for each in acceptances:
            digest = standing[each.scope, each.key]
            if digest is None:
                standing[each.scope, each.key] = each.digest
                verdicts.append(Verdict("started", each.digest))
            else:
                verdicts.append(Verdict("repeated" if digest == each.digest else "conflict", digest))
        return verdicts

    def _let_in(self, wanted: Sequence[Acceptance]) -> dict[Key, str | None]:
        """Returns the digest that each key stood for before, None where it is new. The server answers for each key, new
        or not, so that a missing answer is an error here and never a flow that is taken for started."""
        columns = {
            "scopes": [each.scope for each in wanted],
            "keys": [each.key for each in wanted],
            "digests": [each.digest for each in wanted],
            "run_ids": [each.run_id for each in wanted],
            "accepted_at": [each.outgoing.envelope.sent_at for each in wanted],
        }
        self._wire.later(WAIT_FOR_KEYS)
        try:
            answers = dict(self._wire.run(SQL["accept_keys"], columns).fetchall())
        except StoreContention as error:
            if isinstance(error.__cause__, LockNotAvailable):
                raise _held_elsewhere(wanted, error) from error
            raise
        self._wire.later(WAIT_AS_BEFORE)
        keys = [(each.scope, each.key) for each in wanted]
        standing: dict[Key, str | None] = {key: None for place, key in enumerate(keys, 1) if answers[place] is True}
        old = [key for key in keys if key not in standing]
        if old:
            scopes, names = zip(*old, strict=True)
            found = self._wire.run(SQL["find_accepted"], {"scopes": list(scopes), "keys": list(names)}).fetchall()
            standing |= {(scope, name): digest for scope, name, digest in found}
        return standing

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


def _held_elsewhere(wanted: Sequence[Acceptance], error: StoreContention) -> StoreContention:
    ids = ", ".join(f"{each.key} (flow {each.outgoing.envelope.flow_id!r})" for each in wanted[:NAMED_MAX])
    more = f" or one of {len(wanted) - NAMED_MAX} more" if len(wanted) > NAMED_MAX else ""
    return StoreContention(
        f"{error}. Another open transaction has started {ids}{more}, and neither commits nor rolls back. End it "
        "(stagepost doctor lists the open transactions), then try again with the same ids."
    )
