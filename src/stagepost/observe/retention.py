"""The retention of a store: how long each kind of row is kept, and how old its oldest row is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from stagepost.ports.session import Session
from stagepost.transaction.retention import Rules

# The kinds of row of the queue's database, in plain words.
WHAT = {
    "journal": "lines of the journal",
    "dead_letters": "dead letters",
    "replays": "replays",
    "runs": "bulk runs",
    "findings": "findings of audits",
}
# The event that clears the rows of the tables that no age clears.
UNTIL = {
    "subscriptions": "stagepost unsubscribe",
    "circuits": "one for each stage that failed",
    "departures": "their message is settled",
    "addresses at brokers": "stagepost purge --forget-broker",
    "readers of the journal": "one for each name",
    "declared stages": "one for each stage",
    "batches of sinks": "later batches of their query, and seven days for other writes",
    "attempts of sinks": "their batch is committed, or seven days",
    "hours of housekeeping": "one an hour",
    "parts of the archive": "no end",
    "decisions": "the queue's database has settled the transaction",
}
EFFECTS_UNTIL = "the journal has no line of their flow"
ROWS_MAX = 10_000


class Kept(NamedTuple):
    """One kind of row. Ages are hours of housekeeping.

    ``until``         what clears rows that no age clears; empty for the others
    ``rows``          how many there are of those, up to ``ROWS_MAX``

    ``hours``         the retention; None for rows that stay
    ``oldest_hours``  the age of the oldest row; None where there is no row
    """

    what: str
    hours: int | None
    oldest_hours: int | None
    until: str = ""
    rows: int | None = None


def read_retention(session: Session, rules: Rules, *, is_queue: bool) -> Iterator[Kept]:
    """Yield the retention of each kind of row of a database. ``is_queue``: it is that of the queue."""
    retention = session.retention
    counted = retention.hours()

    def age(hour: int | None) -> int | None:
        return None if hour is None else counted - hour

    for scope in retention.scopes():
        yield Kept(f"ids of {scope}", rules.of_scope(scope), age(retention.oldest_id(scope)))
    for stage in retention.inbox_stages():
        yield Kept(f"inbox of {stage}", rules.of_stage("inbox", stage), age(retention.oldest_handled(stage)))
    for stage in retention.key_stages():
        keep = rules.of_stage("business_keys", stage)
        yield Kept(f"business keys of {stage}", keep, age(retention.oldest_key(stage)))
    if is_queue:
        for kind, hour in retention.oldest().items():
            yield Kept(WHAT[kind], rules.of_kind(kind), age(hour))
    for what, rows in retention.table_rows(ROWS_MAX).items():
        if is_queue or rows:
            yield Kept(what, None, None, UNTIL[what], rows)
