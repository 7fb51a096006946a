"""The messages that this database's stages have handled, where no queue row is the guard of a message."""

from __future__ import annotations

from stagepost.ports.inbox import Handled, InboxRow
from stagepost.ports.outbox import Backlog
from stagepost.store.sql.database import SqlPart, only, text_of


class SqlInbox(SqlPart):
    """Implements ``ports.inbox.Inbox``. Writes are part of the open transaction."""

    def admit(self, row: InboxRow) -> bool:
        return self._run("admit_message", row).rowcount == 1

    def keep(self, stage: str, message_id: str, produced: bytes) -> None:
        self._database.later("keep_produced", (produced, stage, message_id))

    def find(self, stage: str, message_id: str) -> Handled | None:
        row = self._run("find_handled", (stage, message_id)).fetchone()
        return None if row is None else Handled(text_of(row[0]), row[1])

    def mark(self, stage: str, message_id: str) -> None:
        self._database.later("mark_sent", (stage, message_id))

    def take_unsent(self, stage: str, message_id: str) -> bool:
        return self._run("take_unsent", (stage, message_id)).rowcount == 1

    def unsent(self, now: int, limit: int) -> list[tuple[str, str]]:
        return [(stage, message_id) for stage, message_id in self._run("list_unsent", (now, limit)).fetchall()]

    def postpone(self, stage: str, message_id: str, until: int) -> None:
        self._database.later("postpone_unsent", (until, stage, message_id))

    def backlog(self) -> Backlog:
        return Backlog(*only(self._run("count_unsent")))
