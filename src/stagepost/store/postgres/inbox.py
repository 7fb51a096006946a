"""Waiting, for a while, for who handles another copy of a message."""

from __future__ import annotations

from stagepost.ports.inbox import InboxRow
from stagepost.store.postgres.statements import Statement
from stagepost.store.postgres.wire import WirePart
from stagepost.store.sql.inbox import SqlInbox

# Another copy of the message is being handled: it is not waited for longer than this, with a transaction open.
WAIT_SHORTLY = Statement(b"SET LOCAL lock_timeout = '2s'", ())
WAIT_AS_BEFORE = Statement(b"SET LOCAL lock_timeout TO DEFAULT", ())


class PostgresInbox(WirePart, SqlInbox):
    """Implements ``ports.inbox.Inbox``."""

    def admit(self, row: InboxRow) -> bool:
        self._wire.later(WAIT_SHORTLY)
        is_new = super().admit(row)
        self._wire.later(WAIT_AS_BEFORE)
        return is_new
