"""The books of both services: what the stages did, what the journals say, and what is left in the stores."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, LiteralString

import psycopg

from tests.soak.brokers.services import INDEX, TABLE

Row = tuple[Any, ...]
# The stages that leave one effect of each transfer, by service. Runs of ``ledger.book`` are counted apart.
EFFECTS = {"payments": ("pay", "close"), "ledger": ("book", "enter", "check")}
# Of a problem's kind so many are told one by one.
TOLD_MAX = 5


@dataclass(frozen=True, slots=True)
class Store:
    """The store of a service, read past Stagepost."""

    name: str
    url: str

    def query(self, statement: LiteralString) -> list[Row]:
        if self.url.startswith("sqlite"):
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=60)) as connection, connection:
                return connection.execute(statement).fetchall()
        with psycopg.connect(self.url) as server:
            found = server.execute(statement)
            return found.fetchall() if found.description else []

    def prepare(self) -> None:
        self.query(TABLE)
        self.query(INDEX)

    def count(self, statement: LiteralString) -> int:
        return int(self.query(statement)[0][0])

    def lines(self, waypoint: str) -> int:
        return sum(count for name, count in self._waypoints() if name == waypoint)

    def _waypoints(self) -> list[Row]:
        return self.query("SELECT waypoint, count(*) FROM stagepost_journal GROUP BY waypoint")


@dataclass(frozen=True, slots=True)
class Books:
    payments: Store
    ledger: Store

    @property
    def stores(self) -> tuple[Store, Store]:
        return self.payments, self.ledger

    def closed(self) -> int:
        """Count the transfers that were closed. One that was closed twice counts twice."""
        return self.payments.count("SELECT count(*) FROM effect WHERE stage = 'close'")

    def is_idle(self, started: Mapping[str, int]) -> bool:
        """Say whether all transfers are closed, and nothing waits in a store."""
        return started.keys() <= self.closed_ids() and not any(self._left())

    def closed_ids(self) -> set[str]:
        return {each for (each,) in self.payments.query("SELECT transfer_id FROM effect WHERE stage = 'close'")}

    def waiting(self) -> int:
        """Count the messages in all stores, dead letters among them."""
        return sum(len(store.query(LEFT[table])) for store in self.stores for table in LEFT if table != "departure")

    def transactions(self) -> int:
        return sum(each.lines("committed") for each in self.stores)

    def raised(self) -> int:
        return sum(each.lines("failed") for each in self.stores)

    def copies(self) -> int:
        """Count the deliveries that were recognised as copies."""
        return sum(each.lines("duplicate") for each in self.stores)

    def doubted(self) -> Counter[str]:
        return Counter(
            each for (each,) in self.ledger.query("SELECT flow_id FROM stagepost_journal WHERE waypoint = 'doubted'")
        )

    def problems(self, started: Mapping[str, int]) -> list[str]:
        """Compare both books with the started transfers: their ids, with the amount of each."""
        problems = [*self._effects_wrong(started), *self._left()]
        booked = self.ledger.count("SELECT coalesce(sum(amount), 0) FROM effect")
        taken = -self.payments.count("SELECT coalesce(sum(amount), 0) FROM effect")
        if not booked == taken == sum(started.values()):
            problems.append(f"money: {sum(started.values())} were started, {taken} taken, {booked} booked")
        for store in self.stores:
            blamed = store.count(
                "SELECT count(*) FROM stagepost_journal WHERE waypoint = 'failed' AND detail NOT LIKE '%Injected%'"
            )
            if blamed:
                problems.append(f"failed: {store.name} has {blamed} failures that the campaign did not want")
        return problems

    def _effects_wrong(self, started: Mapping[str, int]) -> Iterator[str]:
        for store in self.stores:
            for stage in EFFECTS[store.name]:
                yield from _compared(f"{store.name}.{stage}", started, self._effects(store, stage))
        runs = self._effects(self.ledger, "run")
        # A run that may not have sent its messages is repeated, and the journal says so.
        yield from _compared("ledger.book's runs", started, runs - self.doubted())

    def _effects(self, store: Store, stage: str) -> Counter[str]:
        found = store.query("SELECT stage, transfer_id, count(*) FROM effect GROUP BY stage, transfer_id")
        return Counter({transfer: count for name, transfer, count in found if name == stage})

    def _left(self) -> Iterator[str]:
        for store in self.stores:
            for table, statement in LEFT.items():
                rows = store.query(statement)
                if rows:
                    yield f"left: {store.name} has {len(rows)} rows in {table}, {rows[:TOLD_MAX]}"


LEFT: dict[str, LiteralString] = {
    "dead_letter": "SELECT stage, message_id FROM stagepost_dead_letter",
    "suspect": "SELECT stage, message_id FROM stagepost_suspect",
    "delayed": "SELECT stage, message_id FROM stagepost_delayed",
    "ready": "SELECT stage, message_id FROM stagepost_ready",
    "departure": "SELECT stage, message_id FROM stagepost_departure",
}


def store_at(name: str, url: str | Path) -> Store:
    return Store(name, f"sqlite:///{url}" if isinstance(url, Path) else url)


def _compared(what: str, started: Mapping[str, int], found: Counter[str]) -> Iterator[str]:
    lost = started.keys() - found.keys()
    doubled = [each for each, count in found.items() if count > 1]
    unexpected = found.keys() - started.keys()
    for kind, ids in (("lost", lost), ("doubled", doubled), ("unexpected", unexpected)):
        told = sorted(ids)
        for each in told[:TOLD_MAX]:
            yield f"{kind}: {what} of {each}"
        if len(told) > TOLD_MAX:
            yield f"{kind}: {what} of {len(told) - TOLD_MAX} more"
