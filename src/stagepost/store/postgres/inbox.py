"""What the stages of this database have handled whose queue is in another. Part of whatever transaction is open."""

from __future__ import annotations

from stagepost.flow.inbox import Backlog, Handled, InboxRow
from stagepost.store.postgres.statements import SQL, Statement
from stagepost.store.postgres.wire import Wire, only

# Another copy of the message is being handled: it is not waited for longer than this, with a transaction open.
WAIT_SHORTLY = Statement(b"SET LOCAL lock_timeout = '2s'", ())
WAIT_AS_BEFORE = Statement(b"SET LOCAL lock_timeout TO DEFAULT", ())


class PostgresInbox:
    """Implements ``transaction.seams.Inbox``."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def admit(self, row: InboxRow) -> bool:
        self._wire.later(WAIT_SHORTLY)
        is_new = self._wire.run(SQL["admit_message"], row).rowcount == 1
        self._wire.later(WAIT_AS_BEFORE)
        return is_new

    def keep(self, stage: str, message_id: str, produced: bytes) -> None:
        self._wire.later(SQL["keep_produced"], (produced, stage, message_id))

    def find(self, stage: str, message_id: str) -> Handled | None:
        row = self._wire.run(SQL["find_handled"], (stage, message_id)).fetchone()
        return None if row is None else Handled(*row)

    def mark(self, stage: str, message_id: str) -> None:
        self._wire.later(SQL["mark_sent"], (stage, message_id))

    def unsent(self, now: int, limit: int) -> list[tuple[str, str]]:
        rows = self._wire.run(SQL["list_unsent"], (now, limit)).fetchall()
        return [(stage, message_id) for stage, message_id in rows]

    def postpone(self, stage: str, message_id: str, until: int) -> None:
        self._wire.later(SQL["postpone_unsent"], (until, stage, message_id))

    def backlog(self) -> Backlog:
        return Backlog(*only(self._wire.run(SQL["count_unsent"])))
