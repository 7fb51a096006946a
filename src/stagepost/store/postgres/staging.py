"""PostgreSQL's staging: two statements start the flows of all new keys, and the rows do not leave the server."""

from __future__ import annotations

from typing import Any

from psycopg.errors import LockNotAvailable

from stagepost.flow.errors import StoreContention
from stagepost.flow.texts import as_sentence
from stagepost.store.postgres.key_waits import WAIT_AS_BEFORE, WAIT_FOR_KEYS
from stagepost.store.postgres.wire import Wire
from stagepost.store.sql.staging import SqlStaging


class PostgresStaging(SqlStaging):
    """Implements ``ports.staging.Staging``."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)
        self._wire = wire

    def _start_new(self, parameters: dict[str, Any]) -> None:
        self._wire.later(WAIT_FOR_KEYS)
        try:
            self._run("accept_staged", parameters)
        except StoreContention as error:
            if isinstance(error.__cause__, LockNotAvailable):
                raise StoreContention(
                    f"{as_sentence(error)} "
                    f"Another open transaction has started flows to {parameters['scope']} with ids of this "
                    "batch, and neither commits nor rolls back. End it (stagepost doctor lists the open transactions), "
                    "then run the batch again."
                ) from error
            raise
        self._wire.later(WAIT_AS_BEFORE)
        self._database.later("put_staged", parameters)
