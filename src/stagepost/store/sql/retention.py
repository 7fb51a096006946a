"""The hours of housekeeping, and the ids that a purge finds by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stagepost.flow.clock import HOUR
from stagepost.ports.retention import DeclaredHours, OldId
from stagepost.store.sql.database import SqlPart, only


class SqlRetention(SqlPart):
    """Implements ``ports.retention.Retention``."""

    def count_hour(self, moment: int) -> bool:
        return self._run("count_hour", (moment // HOUR,)).rowcount == 1

    def is_counted(self, moment: int) -> bool:
        return bool(only(self._run("is_counted", (moment // HOUR,)))[0])

    def hours(self) -> int:
        return int(only(self._run("last_hour"))[0])

    def declared(self) -> list[DeclaredHours]:
        return [DeclaredHours(*row) for row in self._run("list_retention").fetchall()]

    def declare(self, app: str, hours: Mapping[str, int]) -> None:
        self._database.later("remove_retention", (app,))
        for scope in sorted(hours):
            self._database.later("put_retention", (scope, app, hours[scope]))

    def scopes(self) -> list[str]:
        return [scope for (scope,) in self._run("list_scopes").fetchall()]

    def oldest_id(self, scope: str) -> int | None:
        found = only(self._run("oldest_id", (scope,)))[0]
        return None if found is None else int(found)

    def old_ids(self, scope: str, hour: int, after: OldId, limit: int) -> list[OldId]:
        wanted = {"scope": scope, "hour": hour, "after_hour": after.hour, "after_key": after.key, "limit": limit}
        return [OldId(*row) for row in self._run("list_old_ids", wanted).fetchall()]

    def remove_ids(self, scope: str, hour: int, keys: Sequence[str]) -> int:
        wanted = {"scope": scope, "hour": hour, "keys": self._database.array(keys)}
        return self._run("remove_ids", wanted).rowcount

    def open_flows(self, flow_ids: Sequence[str]) -> set[str]:
        rows = self._run("list_open_flows", (self._database.array(flow_ids),)).fetchall()
        return {flow_id for (flow_id,) in rows}
