"""One shop's store, seen from outside: orders are put in, and afterwards everything is counted.

It knows nothing of how the library works: it counts entries in a ledger that has no key, and what is left in tables.
How a store in PostgreSQL is asked is in ``postgres_books``.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stagepost import App
from stagepost.app.app import engine_of
from stagepost.flow import codec
from stagepost.flow.clock import SystemClock
from stagepost.flow.codec import decode_envelope
from stagepost.testing import Harness, ManualClock
from tests import books
from tests.books import InSqlite
from tests.pipeline.shop import LEDGER, STAGES, Ask, Order, open_shop


@dataclass(frozen=True)
class Flow:
    """An order that was started, or is to be. ``entries``: how many of its stages leave one in the ledger."""

    flow_id: str
    fault: str = ""
    entries: int = len(STAGES)


def orders(number: int, fault: str = "", *, entries: int = len(STAGES), name: str = "o") -> list[Flow]:
    return [Flow(f"{name}{each}", fault, entries) for each in range(number)]


class Books(books.Books):
    def __init__(self) -> None:
        engine_of(self.app).store  # noqa: B018 - makes the tables
        with self.connected() as connection:
            connection.execute(LEDGER)
            connection.commit()

    @abstractmethod
    def proofs_of_life(self) -> Sequence[object]:
        """Return those that are there, of the living and of the dead."""

    @property
    def app(self) -> App:
        """Another one each time: an app keeps what its listener saw."""
        return open_shop(self.url, pause_after_death=None)

    def start(self, flows: Sequence[Flow], *, delay: float = 0) -> None:
        app = self.app
        with self.connected() as connection:
            with app.initiate(connection=connection) as out:
                for flow in flows:
                    out.send(
                        app.target("shop.order"),
                        Order(flow.flow_id, 1, flow.fault),
                        flow_id=flow.flow_id,
                        reply_to=app.target("shop.done"),
                        delay=delay,
                    )
            connection.commit()

    def start_broken(self, *flow_ids: str) -> None:
        """Messages of a stage that always fails."""
        app = self.app
        with self.connected() as connection:
            with app.initiate(connection=connection) as out:
                for flow_id in flow_ids:
                    out.send(app.target("shop.broken"), Ask(1, "fail"), flow_id=flow_id)
            connection.commit()

    def harness(self, *stages: str) -> Harness:
        """One whose clock moves on to what is delayed, for these stages, or for all. Close it."""
        harness = Harness(open_shop(self.url, clock=ManualClock(SystemClock().now()), pause_after_death=None))
        if stages:
            harness.stages = list(stages)
        return harness

    def drain(self) -> None:
        """Run all that there is to run, in this thread, without waiting."""
        harness = self.harness()
        harness.drain()
        harness.close()

    def drain_but(self, flow_id: str) -> None:
        """All but that flow's messages, which somebody else holds."""
        self.drain()
        assert {flow for (flow,) in self.rows("SELECT flow_id FROM stagepost_ready")} == {flow_id}

    def forge(self, waypoint: str, where: str, message_id: str = "message_id") -> None:
        """Write lines of the journal that are like those, but for the message's id."""
        columns = "waypoint, at, node, stage, flow_id, attempt, origin_at, cause_id, kind, ordinal, ms, bytes, detail"
        self.change(
            f"INSERT INTO stagepost_journal ({columns}, message_id) SELECT {columns}, {message_id}"
            f" FROM stagepost_journal WHERE waypoint = ? AND {where}",
            waypoint,
        )

    def change(self, statement: str, *parameters: Any) -> None:
        """Behind Stagepost's back."""
        assert self.rows(f"{statement} RETURNING 1", *parameters)

    # What happened

    def committed(self) -> int:
        return self.waypoints("committed")

    def nodes(self, name: str) -> set[str]:
        """The roles of those who wrote that waypoint."""
        found = self.rows("SELECT DISTINCT node FROM stagepost_journal WHERE waypoint = ?", name)
        return {node.partition("@")[0] for (node,) in found}

    def letters(self) -> list[tuple[Any, ...]]:
        """Flow and reason of each dead letter."""
        return self.rows("SELECT flow_id, reason FROM stagepost_dead_letter ORDER BY flow_id")

    def waiting_messages(self) -> dict[str, Any]:
        """What was started and not touched: the message of each flow."""
        app = self.app
        found = self.rows("SELECT flow_id, stage, envelope FROM stagepost_ready")
        return {
            flow: codec.decode(decode_envelope(data).messages[0].body, app.target(stage).message_type)
            for flow, stage, data in found
        }

    def quarantine(self) -> list[tuple[str, int, str]]:
        """File's name, record and reason."""
        found = self.rows("SELECT file, record, reason FROM stagepost_quarantine ORDER BY file, record")
        return [(Path(file).name, record, reason) for file, record, reason in found]

    def text_of(self, name: str, record: int) -> str:
        """What is kept of a row that was quarantined; in place of JSON, the cells as they stood in a CSV file."""
        found = self.rows("SELECT file, row FROM stagepost_quarantine WHERE record = ?", record)
        (row,) = [row for file, row in found if Path(file).name == name]
        return ",".join(each or "" for each in json.loads(row).values()) if row.startswith("{") else row

    def suspects(self) -> list[tuple[Any, ...]]:
        return self.rows("SELECT message_id FROM stagepost_suspect")

    def owners(self) -> list[str]:
        return [owner for (owner,) in self.rows("SELECT owner FROM stagepost_ready WHERE owner IS NOT NULL")]

    def problems(self, flows: Sequence[Flow]) -> list[str]:
        """Everything in which the outcome differs from exactly once; nothing where all is well."""
        expected = Counter((flow.flow_id, stage) for flow in flows for stage in STAGES[: flow.entries])
        found = Counter(self.rows("SELECT flow_id, stage FROM ledger"))
        problems = [f"lost: {stage} of {flow}" for flow, stage in sorted((expected - found).elements())]
        problems += [f"doubled: {stage} of {flow}" for flow, stage in sorted((found - expected).elements())]
        if not self.is_drained():
            problems.append(f"left: {self.waiting()} messages in the queue")
        dying = sorted(flow.flow_id for flow in flows if flow.entries < len(STAGES))
        dead = [flow for flow, _ in self.letters()]
        if dead != dying:
            problems.append(f"dead letters: {dead}, and not {dying}")
        if self.owners():
            problems.append(f"claimed: by {self.owners()}")
        return problems


class SqliteBooks(InSqlite, Books):
    def __init__(self, path: Path) -> None:
        InSqlite.__init__(self, path)
        Books.__init__(self)

    def proofs_of_life(self) -> Sequence[object]:
        return list(self.locks.glob("*.lock"))
