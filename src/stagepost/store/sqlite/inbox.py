"""What the stages of this database have handled whose queue is in another. Part of whatever transaction is open."""

from __future__ import annotations

from stagepost.flow.inbox import Backlog, Handled, InboxRow
from stagepost.store.sqlite.queue import Run
from stagepost.store.sqlite.statements import SQL


class SqliteInbox:
    """Implements ``transaction.seams.Inbox``."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def admit(self, row: InboxRow) -> bool:
        return self._run(SQL["admit_message"], row).rowcount == 1

    def keep(self, stage: str, message_id: str, produced: bytes) -> None:
        self._run(SQL["keep_produced"], (produced, stage, message_id))

    def find(self, stage: str, message_id: str) -> Handled | None:
        row = self._run(SQL["find_handled"], (stage, message_id)).fetchone()
        return None if row is None else Handled(row[0].decode(), row[1])

    def mark(self, stage: str, message_id: str) -> None:
        self._run(SQL["mark_sent"], (stage, message_id))

    def unsent(self, now: int, limit: int) -> list[tuple[str, str]]:
        rows = self._run(SQL["list_unsent"], (now, limit)).fetchall()
        return [(stage, message_id) for stage, message_id in rows]

    def postpone(self, stage: str, message_id: str, until: int) -> None:
        self._run(SQL["postpone_unsent"], (until, stage, message_id))

    def backlog(self) -> Backlog:
        return Backlog(*self._run(SQL["count_unsent"]).fetchone())
