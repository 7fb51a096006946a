"""Stagepost's own statements on one connection: of ours, or the caller's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

from psycopg.errors import LockNotAvailable

from stagepost.flow.errors import StoreContention
from stagepost.flow.initiation import Acceptance, Verdict
from stagepost.flow.texts import as_sentence
from stagepost.store.postgres.decisions import PostgresDecisions
from stagepost.store.postgres.inbox import PostgresBusinessKeys, PostgresInbox
from stagepost.store.postgres.key_waits import WAIT_A_MOMENT_FOR_KEYS, WAIT_AS_BEFORE, WAIT_FOR_KEYS
from stagepost.store.postgres.notifier import RING, Notifier
from stagepost.store.postgres.queue import PostgresQueue
from stagepost.store.postgres.retention import PostgresRetention
from stagepost.store.postgres.staging import PostgresStaging
from stagepost.store.postgres.statements import SQL, for_rows
from stagepost.store.postgres.wire import Wire, WirePart
from stagepost.store.sql.database import Row
from stagepost.store.sql.declarations import SqlDeclarations
from stagepost.store.sql.writer import StoreWriter

# The rows of a statement that inserts. On a connection of ours a pipeline carries all statements in one round trip.
# pgbench, which measures them, takes 255 parameters.
ROWS_A_STATEMENT = 16

Key = tuple[str, str]


class Stood(NamedTuple):
    """The accepted content of a key: its digest, and the bulk run that brought it."""

    digest: str
    run_id: str | None


NAMED_MAX = 3


class PostgresDeclarations(SqlDeclarations):
    """Two apps that declare the same stage at the same time wait for each other."""

    def lock(self) -> None:
        self._run("lock_declarations")


class PostgresAccepted(WirePart):
    """Implements ``ports.accepted.Accepted``."""

    def accept(self, acceptances: Sequence[Acceptance], *, is_patient: bool = True) -> list[Verdict]:
        # The first of several with one key is the one that is accepted.
        firsts = {(each.scope, each.key): each for each in reversed(acceptances)}
        standing = self._accept_new([firsts[key] for key in sorted(firsts)], is_patient=is_patient)
        verdicts: list[Verdict] = []
        for each in acceptances:
            before = standing[each.scope, each.key]
            if before is None:
                standing[each.scope, each.key] = Stood(each.digest, each.run_id)
                verdicts.append(Verdict("started", each.digest, each.run_id))
            else:
                verdicts.append(Verdict("repeated" if before.digest == each.digest else "conflict", *before))
        return verdicts

    def _accept_new(self, wanted: Sequence[Acceptance], *, is_patient: bool) -> dict[Key, Stood | None]:
        """Return for each key the content that it stood for before, or None if it is new.

        The server answers for each key, new or not. A missing answer is an error, and never a flow that counts as
        started.
        """
        columns = {
            "scopes": [each.scope for each in wanted],
            "keys": [each.key for each in wanted],
            "digests": [each.digest for each in wanted],
            "run_ids": [each.run_id for each in wanted],
            "accepted_at": [each.outgoing.envelope.sent_at for each in wanted],
            "flow_ids": [each.outgoing.envelope.flow_id for each in wanted],
            "is_direct": [each.is_direct for each in wanted],
        }
        self._wire.later(WAIT_FOR_KEYS if is_patient else WAIT_A_MOMENT_FOR_KEYS)
        try:
            answers = dict(self._run("accept_keys", columns).fetchall())
        except StoreContention as error:
            if isinstance(error.__cause__, LockNotAvailable):
                raise _held_elsewhere(wanted, error) from error
            raise
        self._wire.later(WAIT_AS_BEFORE)
        keys = [(each.scope, each.key) for each in wanted]
        standing: dict[Key, Stood | None] = {key: None for place, key in enumerate(keys, 1) if answers[place] is True}
        old = [key for key in keys if key not in standing]
        if old:
            scopes, names = zip(*old, strict=True)
            found = self._run("find_accepted", {"scopes": list(scopes), "keys": list(names)}).fetchall()
            standing |= {(scope, name): Stood(digest, run_id) for scope, name, digest, run_id in found}
        for scope, name in keys:
            if (scope, name) not in standing:
                raise StoreContention(
                    f"the message {name} to {scope} was accepted before, and that was deleted in this moment, perhaps "
                    "by a purge. Try again with the same id."
                )
        return standing


class PostgresWriter(StoreWriter, Wire):
    """Implements ``wire.Wire``, except for running statements."""

    rows_a_statement = ROWS_A_STATEMENT

    def __init__(self, notifier: Notifier) -> None:
        self.queue = PostgresQueue(self, notifier)
        super().__init__(self.queue)
        self._notifier = notifier
        # PostgreSQL refuses to prepare a transaction that used NOTIFY.
        self.is_quiet = False
        self.accepted = PostgresAccepted(self)
        self.inbox = PostgresInbox(self)
        self.business_keys = PostgresBusinessKeys(self)
        self.decisions = PostgresDecisions(self)
        self.declarations = PostgresDeclarations(self)
        self.retention = PostgresRetention(self)
        self.staging = PostgresStaging(self)

    def insert(self, statement: str, rows: Sequence[Row]) -> None:
        for begin in range(0, len(rows), self.rows_a_statement):
            some = rows[begin : begin + self.rows_a_statement]
            self.later(for_rows(SQL[statement], len(some)), list(chain.from_iterable(some)))

    def array(self, values: Sequence[Any]) -> list[Any]:
        return list(values)

    def notify(self) -> None:
        if not self.is_quiet and self._notifier.may_ring():
            self.later(RING)


def _held_elsewhere(wanted: Sequence[Acceptance], error: StoreContention) -> StoreContention:
    ids = ", ".join(f"{each.key} (flow {each.outgoing.envelope.flow_id!r})" for each in wanted[:NAMED_MAX])
    more = f" or one of {len(wanted) - NAMED_MAX} more" if len(wanted) > NAMED_MAX else ""
    return StoreContention(
        f"{as_sentence(error)} "
        f"Another open transaction has started {ids}{more}, and neither commits nor rolls back. End it "
        "(stagepost doctor lists the open transactions), then try again with the same ids."
    )
