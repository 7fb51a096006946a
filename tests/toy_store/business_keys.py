"""Business keys in memory: the same verbs."""

from __future__ import annotations

from stagepost.ports.business_keys import HandledKey, KeyRow
from tests.toy_store.tables import Tables


class ToyBusinessKeys:
    """Implements ``ports.business_keys.BusinessKeys``."""

    def __init__(self, tables: Tables) -> None:
        self._rows = tables.business_keys

    def admit(self, row: KeyRow) -> bool:
        if self._rows.get((row.stage, row.key)) is not None:
            return False
        self._rows.put((row.stage, row.key), row)
        return True

    def keep(self, stage: str, key: str, reply: bytes) -> None:
        found = self._rows.get((stage, key))
        if found is not None:
            self._rows.put((stage, key), found._replace(reply=reply))

    def find(self, stage: str, key: str) -> HandledKey | None:
        found = self._rows.get((stage, key))
        return None if found is None else HandledKey(found.message_id, found.digest, found.reply)
