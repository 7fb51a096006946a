"""Waiting, for a while, for the owner of another copy of a message, or of another message with its key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stagepost.ports.business_keys import KeyRow
from stagepost.ports.inbox import InboxRow
from stagepost.store.postgres.statements import Statement
from stagepost.store.postgres.wire import WirePart
from stagepost.store.sql.business_keys import SqlBusinessKeys
from stagepost.store.sql.inbox import SqlInbox

# Another copy of the message is being handled: it is not waited for longer than this, with a transaction open.
WAIT_SHORTLY = Statement(b"SET LOCAL lock_timeout = '2s'", ())
WAIT_AS_BEFORE = Statement(b"SET LOCAL lock_timeout TO DEFAULT", ())


class PatientPart(WirePart):
    @contextmanager
    def _waiting_shortly(self) -> Iterator[None]:
        self._wire.later(WAIT_SHORTLY)
        yield
        self._wire.later(WAIT_AS_BEFORE)


class PostgresInbox(PatientPart, SqlInbox):
    """Implements ``ports.inbox.Inbox``."""

    def admit(self, row: InboxRow) -> bool:
        with self._waiting_shortly():
            return super().admit(row)


class PostgresBusinessKeys(PatientPart, SqlBusinessKeys):
    """Implements ``ports.business_keys.BusinessKeys``."""

    def admit(self, row: KeyRow) -> bool:
        with self._waiting_shortly():
            return super().admit(row)
