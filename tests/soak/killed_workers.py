"""Two hundred ``kill -9`` in a row, spread over a run of payment orders: nothing lost, nothing doubled, nobody buried.

The victims are worker processes, in the middle of whatever they do; every tenth time it is their supervisor, and the
command is given again. The books are the example's own: its ledger has no unique key.
"""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import IO

from examples.payments import books
from examples.payments.app import Order, app, pay, receipts
from examples.payments.database import Database
from examples.payments.outcome import money
from stagepost.app.app import engine_of
from stagepost.observe.status import read_status
from stagepost.runtime.access import Access
from tests.soak.campaign import Campaign
from tests.waiting import PATIENCE_SECONDS, last_while_moving

APP = "examples.payments.app:app"
# Lines of the journal that an order leaves when all goes well: accepted or sent, received, committed, for each hop.
WAYPOINTS_AN_ORDER = 12
SUPERVISOR_EVERY = 10
# Characters of the workers' log that are shown.
SAID_MAX = 4_000


def run(orders: Path, folder: Path, database: Database, *, kills: int = 200, seed: int = 1) -> Campaign:
    begin = time.monotonic()
    app.database = database.url
    database.prepare()
    started = start_all(orders)
    access = engine_of(app).access()
    with (folder / "soak.log").open("w") as log:
        fleet = WorkerFleet(access, database, log, Random(seed))
        fleet.start()
        for number in range(1, kills + 1):
            # So far apart that they are spread over the whole run.
            fleet.wait_for_waypoints(number * started * WAYPOINTS_AN_ORDER // (kills + 1))
            fleet.kill(supervisor=number % SUPERVISOR_EVERY == 0)
        fleet.wait_until_drained()
        fleet.stop()
    operations = sum(access.session.journal.since(0).committed.values())
    access.session.close()
    found = books.read_books(database, orders)
    return Campaign(
        name=f"kill -9 of workers over {started:,} orders on {engine_of(app).store.url.partition(':')[0]}, seed {seed}",
        operations=operations,
        faults=kills,
        lost=found.missing,
        doubled=found.doubled + abs(found.imbalance),
        buried=sum(found.dead.values()),
        seconds=time.monotonic() - begin,
        note=f"{money(found.settled_sum)} settled of {money(found.started_sum)}",
    )


def start_all(orders: Path) -> int:
    """Start a flow for each order, in one transaction; returns how many."""
    with orders.open(newline="") as file, app.initiate() as out:
        count = 0
        for row in csv.DictReader(file, delimiter=";"):
            order = Order(
                int(row["order_id"]),
                int(row["account_id"]),
                row["bank_to"],
                row["account_to"],
                Decimal(row["amount"]),
                row["k_symbol"],
            )
            out.send(pay, order, flow_id=f"{books.FLOW_PREFIX}:{order.order_id}", reply_to=receipts)
            count += 1
    return count


class WorkerFleet:
    """A worker command with its processes. It kills them at random."""

    def __init__(self, access: Access, database: Database, log: IO[str], random: Random) -> None:
        self._access = access
        self._database = database
        self._log = log
        self._random = random
        self._stages = list(engine_of(app).stages())
        self._command: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "stagepost", "worker", APP, "--processes", "2", "--threads", "2"]
        self._command = subprocess.Popen(
            [*command, "--database", self._database.url], stdout=self._log, stderr=self._log
        )

    def stop(self) -> None:
        assert self._command is not None
        self._command.terminate()
        code = self._command.wait(PATIENCE_SECONDS)
        said = Path(self._log.name).read_text()[-SAID_MAX:]
        # By the signal itself ends a command that was started so late that it had nothing left to do.
        assert code in (0, -signal.SIGTERM), f"the workers ended with exit code {code}, and said:\n{said}"

    def kill(self, *, supervisor: bool) -> None:
        assert self._command is not None
        if supervisor:
            self._command.kill()
            self._command.wait()
            self.start()
            return
        self._wait(self._strike)

    def _strike(self) -> bool:
        """False where nobody was there to be killed, or the one that was chosen had just gone."""
        victims = self._workers()
        if not victims:
            return False
        try:
            os.kill(self._random.choice(victims), signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def wait_for_waypoints(self, count: int) -> None:
        self._wait(lambda: self._access.session.circuits.last_line() >= count)

    def wait_until_drained(self) -> None:
        self._wait(lambda: self._access.claimer.pending(self._stages).is_drained)

    def _workers(self) -> list[int]:
        found = read_status(engine_of(app).store, self._access, engine_of(app).clock).workers
        return [each.process for each in found if each.node.startswith("worker@") and each.state == "alive"]

    def _wait(self, look: Callable[[], object]) -> None:
        """Wait until ``look`` finds something; fail when the journal stands still."""
        last_waypoint = self._access.session.circuits.last_line
        assert last_while_moving(look, last_waypoint, PATIENCE_SECONDS), f"no progress after waypoint {last_waypoint()}"
