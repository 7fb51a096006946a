"""Capability: retention. The hours by which ages are counted, and the rows that a purge may remove.

The age of a row is the number of *hours of housekeeping* that were counted since it was written. An hour of the wall
clock is counted once, if a housekeeper of the store ran in it. So neither an outage nor a leap of the clock makes rows
old.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from stagepost.ports.journal import Position


class OldId(NamedTuple):
    """An accepted id. ``hour`` is the number of hours that were counted when it was accepted."""

    hour: int
    key: str
    flow_id: str


class DeclaredHours(NamedTuple):
    """The retention that one app declares for the ids of a scope, or for a kind of row."""

    scope: str
    app: str
    hours: int


class Mark(NamedTuple):
    """The ends of tables at one moment: the journal's greatest ``line``, and the position behind it.

    ``letter``, ``replay``  the greatest ids of dead letters and replays
    """

    line: int
    position: Position
    letter: int = 0
    replay: int = 0


class OldHandled(NamedTuple):
    """A row of an inbox. ``hour`` is the number of hours that were counted when the message was handled."""

    hour: int
    message_id: str


class OldLine(NamedTuple):
    """A line of the journal, by its id."""

    line: int
    flow_id: str


class ClosedRange(NamedTuple):
    """A part of the journal that gets no more lines: ids from ``first`` up to, but without, ``next``."""

    first: int
    next: int


class OldKey(NamedTuple):
    """A business key, and the message that has it."""

    hour: int
    key: str
    message_id: str


class CaughtUp(NamedTuple):
    """An address at a broker, and the number of hours that were counted when this store last had all its messages.

    ``hour`` is -1 if it never had them.
    """

    address: str
    broker: str
    hour: int


# Sorts before every id.
FIRST = OldId(-1, "", "")
FIRST_HANDLED = OldHandled(-1, "")
FIRST_KEY = OldKey(-1, "", "")


# A consumer tells every few minutes that it lives, and its longest handler is over long before these hours are.
SILENT_HOURS = 24


class Retention(Protocol):
    """The retention's part of a session. Writes happen in its open transaction; reads need none."""

    def count_hour(self, moment: int) -> bool:
        """Count the hour of the wall clock that holds the moment. Returns False where it was counted before."""

    def is_counted(self, moment: int) -> bool:
        """Say whether the hour of the wall clock that holds the moment was counted."""

    def hours(self) -> int:
        """Return how many hours were counted."""

    def declared(self) -> list[DeclaredHours]:
        """Return the declared retentions, by scope and app."""

    def declare(self, app: str, hours: Mapping[str, int]) -> None:
        """Replace the retentions that an app declared, in hours by scope."""

    def scopes(self) -> list[str]:
        """Return the scopes of the accepted ids."""

    def oldest_id(self, scope: str) -> int | None:
        """Return the hour of the oldest id of a scope; None where the scope has none."""

    def old_ids(self, scope: str, hour: int, after: OldId, limit: int) -> list[OldId]:
        """Return ids of a scope of this hour or an earlier one, the oldest first, from behind ``after`` on.

        Ids whose messages wait in the outbox are left out.
        """

    def remove_ids(self, scope: str, hour: int, keys: Sequence[str]) -> int:
        """Remove those of the ids that are of this hour or an earlier one. Returns how many."""

    def open_flows(self, flow_ids: Sequence[str]) -> set[str]:
        """Return the flows that have a message in the queue or among the dead letters."""

    def flows_of(self, message_ids: Sequence[str]) -> dict[str, str]:
        """Return the flow of each message that has lines in the journal."""

    def oldest(self) -> dict[str, int | None]:
        """Return the hour of the oldest row of each kind; None for a kind without rows.

        The kinds are ``journal``, ``dead_letters``, ``replays``, ``runs`` and ``findings``.
        """

    def row_bytes(self) -> dict[str, int]:
        """Return about how many bytes a row of each kind takes with its indexes; 0 for a kind without rows.

        The kinds are ``ids``, ``inbox``, ``business_keys``, and those of ``oldest``.
        """

    def table_rows(self, limit: int) -> dict[str, int]:
        """Count the rows of the tables that no age clears, each up to ``limit``, by what they hold."""

    def has_spare(self) -> bool:
        """Say whether the store's file has so many free pages that ``shrink`` should give some back."""

    def shrink(self) -> None:
        """Give some free pages back to the file system, in the open transaction."""

    # Brokers: an id may come again as long as its broker may hold a copy of the message.

    def note_consumer(self, consumer: str, broker: str, addresses: Sequence[str]) -> None:
        """Note that a consumer of this store subscribes to these addresses of a broker, and may hold messages."""

    def see_consumer(self, consumer: str, broker: str, addresses: Sequence[str]) -> None:
        """Note that a consumer lives. One that was not seen for ``SILENT_HOURS`` holds no message."""

    def note_caught_up(self, consumer: str, broker: str, address: str) -> None:
        """Note that a consumer holds no message of an address, and that none comes.

        An address is caught up at the least of these moments of all its consumers.
        """

    def caught_up(self, address: str) -> int | None:
        """Return the hour at which every broker of an address was caught up; None for an address without a broker."""

    def brokers(self) -> list[CaughtUp]:
        """Return all addresses at all brokers."""

    def forget_broker(self, broker: str) -> int:
        """Forget a broker that does not come back. Returns how many addresses it had."""

    # The inbox

    def inbox_stages(self) -> list[str]:
        """Return the stages that have rows in the inbox."""

    def oldest_handled(self, stage: str) -> int | None:
        """Return the hour of the oldest marked row of a stage; None where it has none."""

    def old_handled(self, stage: str, hour: int, after: OldHandled, limit: int) -> list[OldHandled]:
        """Return marked rows of a stage of this hour or an earlier one, from behind ``after`` on, the oldest first."""

    def remove_handled(self, stage: str, hour: int, message_ids: Sequence[str]) -> int:
        """Remove those of the rows that are marked, and of this hour or an earlier one. Returns how many."""

    # Business keys

    def key_stages(self) -> list[str]:
        """Return the stages that have business keys."""

    def oldest_key(self, stage: str) -> int | None:
        """Return the hour of the oldest key of a stage; None where it has none."""

    def old_keys(self, stage: str, hour: int, after: OldKey, limit: int) -> list[OldKey]:
        """Return keys of a stage of this hour or an earlier one, from behind ``after`` on, the oldest first."""

    def remove_keys(self, stage: str, hour: int, keys: Sequence[str]) -> int:
        """Remove those of the keys that are of this hour or an earlier one. Returns how many."""

    # Small tables. Each method removes up to ``limit`` rows, and returns how many.

    def remove_letters(self, last: int, limit: int) -> int:
        """Remove dead letters up to the id ``last``, except those that an unfinished replay names."""

    def remove_replays(self, last: int, limit: int) -> int:
        """Remove replays up to the id ``last`` of whose sets no letter is left."""

    def old_runs(self, hour: int, limit: int) -> list[str]:
        """Return bulk runs that were used last in this hour or an earlier one."""

    def remove_run(self, run_id: str, hour: int, limit: int) -> int:
        """Remove quarantined rows of a run, and with the last one the run and its counts."""

    def remove_findings(self, hour: int, limit: int) -> int:
        """Remove findings of audits that were found last in this hour or an earlier one."""

    # The journal. A store whose journal is one table has no ranges.

    def mark(self, hour: int) -> Mark | None:
        """Return the journal's end when the hour of that number was counted; None for an hour that was not.

        The position is 0 where it was taken before the database was restored.
        """

    def held(self, hour: int) -> list[Position]:
        """Return the positions of the readers that were there in this hour or later."""

    def line_before(self, position: int) -> int:
        """Return the greatest id of the lines before a position."""

    def old_lines(self, after: int, line: int, limit: int) -> list[OldLine]:
        """Return the lines with ids beyond ``after``, up to ``line``, in the order of their ids."""

    def recent_flows(self, flow_ids: Sequence[str], line: int) -> set[str]:
        """Return the flows that have a line beyond ``line``."""

    def remove_lines(self, flow_ids: Sequence[str], line: int) -> int:
        """Remove the lines of these flows up to ``line``. Returns how many."""

    def purged_until(self) -> Position | None:
        """Return the purge mark."""

    def set_purged(self, position: Position) -> None:
        """Set the purge mark: readers that begin before it are refused."""

    def ends_at(self) -> int | None:
        """Return the first id of the part of the journal whose lines are removed in ranges; None for a single table."""

    def cut(self, since: int) -> None:
        """End the open range, in the open transaction, if it begins at ``since`` or before and has lines.

        Raises ``StoreContention`` where a reader or a writer does not let the journal go at once.
        """

    def closed_ranges(self) -> list[ClosedRange]:
        """Return the closed ranges, the oldest first."""

    def lines_of(self, closed: ClosedRange) -> int:
        """Return about how many lines a range has."""

    def kept_flows(self, closed: ClosedRange) -> set[str]:
        """Return the flows of a range that are open, or have a line behind the range."""

    def drop(self, closed: ClosedRange, kept: Sequence[str]) -> int:
        """Drop the oldest range, in the open transaction. The lines of the ``kept`` flows stay, with their ids.

        Returns how many lines stay. Raises as ``cut`` does, and where another purge has dropped it.
        """
