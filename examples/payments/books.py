"""The example's own proof, from its ledger. The ledger has no unique key, so a repeated posting has two rows."""

from __future__ import annotations

import csv
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from examples.payments import ledger
from examples.payments.database import Database, Reading

FLOW_PREFIX = "order"
EXACTLY_ONCE = {"reserve": 1, "settle": 1, "receipt": 1}


@dataclass(frozen=True, slots=True)
class Books:
    """Orders are counted, money is in hundredths.

    ``executed``     orders with exactly one reservation, one settlement and one receipt
    ``doubled``      orders with more than one of any of these
    ``missing``      started orders that are neither executed nor dead
    ``dead``         dead letters by reason
    ``started_sum``  the sum of the started orders
    ``settled_sum``  the sum of the settled orders
    ``held_sum``     the sum of the orders that died after their reservation
    ``refused_sum``  the sum of the orders that died before their reservation
    ``imbalance``    the sum of all postings, which must be 0
    """

    started: int
    executed: int
    doubled: int
    missing: int
    dead: dict[str, int]
    started_sum: int
    settled_sum: int
    held_sum: int
    refused_sum: int
    imbalance: int

    @property
    def is_right(self) -> bool:
        return (
            self.doubled == 0
            and self.missing == 0
            and self.executed + sum(self.dead.values()) == self.started
            and self.imbalance == 0
            and self.started_sum == self.settled_sum + self.held_sum + self.refused_sum
        )


def finished(database: Database, *others: Database) -> int:
    """Return the number of flows that ended with a receipt, or as a dead letter in one of the databases."""
    with database.reading() as read:
        receipts = read.number("SELECT count(*) FROM receipt")
    return receipts + sum(len(_dead_in(each)) for each in (database, *others))


def unfinished(database: Database, *others: Database) -> int:
    """Return the number of flows that were started and have not ended."""
    with database.reading() as read:
        return len(_started(read)) - finished(database, *others)


def read_books(database: Database, orders: Path, *others: Database) -> Books:
    """Read the books. The amounts to move come from the input file ``orders``, and not from the ledger.

    ``others`` are the stores of other services, which have dead letters of the same flows.
    """
    amounts = _amounts(orders)
    with database.reading() as read:
        started = {order_id: amounts[order_id] for order_id in _started(read)}
        counts = _counts(read)
        dead = {order_id: reason for each in (database, *others) for order_id, reason in _dead_in(each).items()}
        held = read.number("SELECT coalesce(sum(hundredths), 0) FROM posting WHERE account = 'held'")
        imbalance = read.number("SELECT coalesce(sum(hundredths), 0) FROM posting")
        settled = read.number(
            "SELECT coalesce(sum(hundredths), 0) FROM posting WHERE what = 'settle' AND account <> 'held'"
        )
    executed = {order_id for order_id, done in counts.items() if done == EXACTLY_ONCE}
    reasons = sorted(dead.values())
    return Books(
        started=len(started),
        executed=len(executed),
        doubled=sum(any(count > 1 for count in done.values()) for done in counts.values()),
        missing=len(started.keys() - executed - dead.keys()),
        dead={reason: reasons.count(reason) for reason in dict.fromkeys(reasons)},
        started_sum=sum(started.values()),
        settled_sum=settled,
        held_sum=held,
        refused_sum=sum(started[order_id] for order_id in dead if order_id not in counts),
        imbalance=imbalance,
    )


def _amounts(orders: Path) -> dict[int, int]:
    """Return the amount of each order in hundredths, from its first valid row."""
    found: dict[int, int] = {}
    with orders.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter=";"):
            try:
                order_id, amount = int(row["order_id"]), ledger.hundredths(Decimal(row["amount"]))
                int(row["account_id"])
            except (TypeError, ValueError, ArithmeticError):
                continue
            if None not in row:
                found.setdefault(order_id, amount)
    return found


def _started(read: Reading) -> list[int]:
    rows = read.rows("SELECT flow_id FROM stagepost_journal WHERE waypoint = 'accepted' AND stage = 'payments.pay'")
    return [_order_id(flow_id) for (flow_id,) in rows]


def _dead_in(database: Database) -> dict[int, str]:
    with database.reading() as read:
        rows = read.rows("SELECT flow_id, reason FROM stagepost_dead_letter")
    return {_order_id(flow_id): reason for flow_id, reason in rows}


def _counts(read: Reading) -> dict[int, dict[str, int]]:
    """Count the reservations, settlements and receipts of each order. Each posting has one entry at ``held``."""
    counts: dict[int, dict[str, int]] = {}
    queries = (
        "SELECT order_id, what, count(*) FROM posting WHERE account = 'held' GROUP BY order_id, what",
        "SELECT order_id, 'receipt', count(*) FROM receipt GROUP BY order_id",
    )
    for query in queries:
        for order_id, what, count in read.rows(query):
            counts.setdefault(order_id, {})[what] = count
    return counts


def _order_id(flow_id: str) -> int:
    return int(flow_id.removeprefix(FLOW_PREFIX + ":"))


@dataclass(frozen=True, slots=True)
class Confirmations:
    """The requests to the consumer outside, by its own log. ``answers`` counts them by the way they were answered."""

    taken: int
    doubled: int
    answers: dict[str, int]


def read_confirmations(file: Path) -> Confirmations:
    with closing(sqlite3.connect(file)) as connection:
        counts = [count for (count,) in connection.execute("SELECT count(*) FROM taken GROUP BY order_id")]
        answers = dict(connection.execute("SELECT answer, count(*) FROM request GROUP BY answer ORDER BY answer"))
    return Confirmations(len(counts), sum(count > 1 for count in counts), answers)
