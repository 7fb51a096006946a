"""The hours of housekeeping, and the ids that a purge finds by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stagepost.flow.clock import HOUR
from stagepost.ports.journal import Position
from stagepost.ports.retention import (
    SILENT_HOURS,
    CaughtUp,
    ClosedRange,
    DeclaredHours,
    Mark,
    OldHandled,
    OldId,
    OldKey,
    OldLine,
)
from stagepost.store.sql.database import Parameters, SqlPart, only, text_of
from stagepost.store.sql.letters import note_removed
from stagepost.store.sql.removal_marks import PURGED

# The columns of sample_row_bytes.sql and of count_tables.sql.
SAMPLED = ("ids", "inbox", "business_keys", "journal", "dead_letters", "replays", "runs", "findings")
COUNTED = (
    "subscriptions",
    "circuits",
    "departures",
    "addresses at brokers",
    "readers of the journal",
    "declared stages",
    "batches of sinks",
    "attempts of sinks",
    "hours of housekeeping",
    "parts of the archive",
)


class SqlRetention(SqlPart):
    """Implements ``ports.retention.Retention``."""

    def count_hour(self, moment: int) -> bool:
        values = {"wall_hour": moment // HOUR, "epoch": self._epoch()}
        return self._run("count_hour", values).rowcount == 1

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
        return self._set("list_open_flows", {"flow_ids": self._database.array(flow_ids)})

    def flows_of(self, message_ids: Sequence[str]) -> dict[str, str]:
        return dict(self._run("list_flows_of", (self._database.array(message_ids),)).fetchall())

    def oldest(self) -> dict[str, int | None]:
        line, letter, replay, run, finding = only(self._run("list_oldest"))
        hours = only(self._run("find_hour_of", {"line": line, "letter": letter, "replay": replay}))
        # The hours are counted after their rows came. A row that came after the last one has no hour yet.
        counted = self.hours()
        found: dict[str, int | None] = {"runs": run, "findings": finding}
        for kind, row, hour in zip(("journal", "dead_letters", "replays"), (line, letter, replay), hours, strict=True):
            found[kind] = None if row is None else counted if hour is None else int(hour) - 1
        return found

    def row_bytes(self) -> dict[str, int]:
        sampled = zip(SAMPLED, only(self._run("sample_row_bytes")), strict=True)
        return {kind: int(size or 0) for kind, size in sampled}

    def table_rows(self, limit: int) -> dict[str, int]:
        counted = zip(COUNTED, only(self._run("count_tables", {"limit": limit})), strict=True)
        return {what: int(rows) for what, rows in counted}

    def has_spare(self) -> bool:
        return False

    def shrink(self) -> None:
        """Do nothing: the server reuses the space."""

    def note_consumer(self, consumer: str, broker: str, addresses: Sequence[str]) -> None:
        for address in sorted(addresses):
            self._database.later("note_broker", {"address": address, "broker": broker})
            self._database.later("note_consumer", {"address": address, "broker": broker, "consumer": consumer})
            # An address that is never caught up has the rows of its dead consumers removed too.
            self._database.later("forget_silent_consumers", self._silent(broker, address))

    def see_consumer(self, consumer: str, broker: str, addresses: Sequence[str]) -> None:
        for address in sorted(addresses):
            self._database.later("see_consumer", {"address": address, "broker": broker, "consumer": consumer})

    def note_caught_up(self, consumer: str, broker: str, address: str) -> None:
        place = {"address": address, "broker": broker}
        self._database.later("note_consumer_caught_up", place | {"consumer": consumer})
        self._database.later("forget_silent_consumers", self._silent(broker, address))
        self._database.later("note_caught_up", place)

    def _silent(self, broker: str, address: str) -> dict[str, str | int]:
        return {"address": address, "broker": broker, "hours": SILENT_HOURS}

    def caught_up(self, address: str) -> int | None:
        found = only(self._run("find_caught_up", (address,)))[0]
        return None if found is None else int(found)

    def brokers(self) -> list[CaughtUp]:
        return [CaughtUp(*row) for row in self._run("list_behind").fetchall()]

    def forget_broker(self, broker: str) -> int:
        self._run("forget_consumers", (broker,))
        return self._run("forget_broker", (broker,)).rowcount

    def inbox_stages(self) -> list[str]:
        return [stage for (stage,) in self._run("list_inbox_stages").fetchall()]

    def oldest_handled(self, stage: str) -> int | None:
        found = only(self._run("oldest_handled", (stage,)))[0]
        return None if found is None else int(found)

    def old_handled(self, stage: str, hour: int, after: OldHandled, limit: int) -> list[OldHandled]:
        wanted = {"stage": stage, "hour": hour, "after_hour": after.hour, "after_id": after.message_id, "limit": limit}
        return [OldHandled(*row) for row in self._run("list_old_handled", wanted).fetchall()]

    def remove_handled(self, stage: str, hour: int, message_ids: Sequence[str]) -> int:
        wanted = {"stage": stage, "hour": hour, "message_ids": self._database.array(message_ids)}
        return self._run("remove_handled", wanted).rowcount

    def key_stages(self) -> list[str]:
        return [stage for (stage,) in self._run("list_key_stages").fetchall()]

    def oldest_key(self, stage: str) -> int | None:
        found = only(self._run("oldest_key", (stage,)))[0]
        return None if found is None else int(found)

    def old_keys(self, stage: str, hour: int, after: OldKey, limit: int) -> list[OldKey]:
        wanted = {"stage": stage, "hour": hour, "after_hour": after.hour, "after_key": after.key, "limit": limit}
        return [OldKey(*row) for row in self._run("list_old_keys", wanted).fetchall()]

    def remove_keys(self, stage: str, hour: int, keys: Sequence[str]) -> int:
        wanted = {"stage": stage, "hour": hour, "keys": self._database.array(keys)}
        return self._run("remove_keys", wanted).rowcount

    def remove_letters(self, last: int, limit: int) -> int:
        rows = self._run("remove_letters", {"last": last, "limit": limit}).fetchall()
        note_removed(self._database, [dead_at for (dead_at,) in rows])
        return len(rows)

    def remove_replays(self, last: int, limit: int) -> int:
        return self._run("remove_replays", {"last": last, "limit": limit}).rowcount

    def old_runs(self, hour: int, limit: int) -> list[str]:
        return [run for (run,) in self._run("list_old_runs", {"hour": hour, "limit": limit}).fetchall()]

    def remove_run(self, run_id: str, hour: int, limit: int) -> int:
        removed = self._run("remove_quarantine", {"run_id": run_id, "limit": limit}).rowcount
        if removed < limit and self._run("remove_run", {"run_id": run_id, "hour": hour}).rowcount:
            removed += 1
            self._database.later("remove_run_tasks", {"run_id": run_id})
        return removed

    def remove_findings(self, hour: int, limit: int) -> int:
        return self._run("remove_findings", {"hour": hour, "limit": limit}).rowcount

    def mark(self, hour: int) -> Mark | None:
        row = self._run("find_hour", (hour,)).fetchone()
        if row is None:
            return None
        line, text, letter, replay = row
        return Mark(int(line), self._valid(text) or Position(0), int(letter), int(replay))

    def held(self, hour: int) -> list[Position]:
        rows = self._run("list_held", {"hour": hour}).fetchall()
        return [position for (text,) in rows if (position := self._valid(text)) is not None]

    def line_before(self, position: int) -> int:
        return int(only(self._run("find_line_before", {"position": int(position)}))[0])

    def old_lines(self, after: int, line: int, limit: int) -> list[OldLine]:
        wanted = {"after": after, "line": line, "limit": limit}
        return [OldLine(*row) for row in self._run("list_old_lines", wanted).fetchall()]

    def recent_flows(self, flow_ids: Sequence[str], line: int) -> set[str]:
        return self._set("list_recent_flows", {"flow_ids": self._database.array(flow_ids), "line": line})

    def remove_lines(self, flow_ids: Sequence[str], line: int) -> int:
        return self._run("remove_lines", {"flow_ids": self._database.array(flow_ids), "line": line}).rowcount

    def purged_until(self) -> Position | None:
        row = self._run("find_meta", {"key": PURGED}).fetchone()
        return None if row is None else Position.read(text_of(row[0]))

    def set_purged(self, position: Position) -> None:
        self._database.later("put_meta", {"key": PURGED, "value": str(position)})

    def ends_at(self) -> int | None:
        return None

    def cut(self, since: int) -> None:
        """Do nothing: the journal is one table."""

    def closed_ranges(self) -> list[ClosedRange]:
        return []

    def lines_of(self, closed: ClosedRange) -> int:
        return 0

    def kept_flows(self, closed: ClosedRange) -> set[str]:
        return set()

    def drop(self, closed: ClosedRange, kept: Sequence[str]) -> int:
        return 0

    def _set(self, statement: str, parameters: Parameters) -> set[str]:
        return {value for (value,) in self._run(statement, parameters).fetchall()}

    def _epoch(self) -> str:
        return text_of(str(only(self._run("find_epoch"))[0]))

    def _valid(self, text: str) -> Position | None:
        """Return the position; None for one of another epoch."""
        position = Position.read(text)
        return position if position is not None and position.epoch == self._epoch() else None
