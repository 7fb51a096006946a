"""The business keys of the messages that this database's stages have handled."""

from __future__ import annotations

from stagepost.ports.business_keys import HandledKey, KeyRow
from stagepost.store.sql.database import SqlPart, text_of


class SqlBusinessKeys(SqlPart):
    """Implements ``ports.business_keys.BusinessKeys``. Writes are part of the open transaction."""

    def admit(self, row: KeyRow) -> bool:
        return self._run("admit_key", row).rowcount == 1

    def keep(self, stage: str, key: str, reply: bytes) -> None:
        self._database.later("keep_reply", (reply, stage, key))

    def find(self, stage: str, key: str) -> HandledKey | None:
        row = self._run("find_key", (stage, key)).fetchone()
        return None if row is None else HandledKey(text_of(row[0]), text_of(row[1]), row[2])
