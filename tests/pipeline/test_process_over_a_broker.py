"""``stagepost process`` beside a broker: executors run the stages, and the driver receives and dispatches."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from random import Random
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from stagepost.app.app import App
from stagepost.app.loading import load_app
from stagepost.broker.memory import MemoryBroker
from stagepost.pipeline.jobs.claim_loop import ProcessingPlan
from stagepost.pipeline.jobs.initiate import InitiationPlan, initiate
from stagepost.pipeline.jobs.process import ProcessingFailed, process
from stagepost.ports.runs import RunCounts
from stagepost.runtime import edge_drain
from stagepost.runtime.settings import Place
from stagepost.testing.clock import ManualClock
from stagepost.testing.contract.givens import NOW
from stagepost.transaction.receiver import Receiver
from tests.edges.direct_service import broker_named
from tests.edges.service import prepared
from tests.edges.test_two_services import Service, Transfer, ledger

TRANSFERS = 5
# Executors import it by this name. The driver alone connects to its broker.
PAYMENTS = """
from stagepost import App
from stagepost.flow.clock import SystemClock
from tests.edges.service import prepared
from tests.edges.test_two_services import payments

app = payments("{url}", SystemClock(), "{broker}")
"""


class Payments:
    """A service whose stages Spark runs."""

    def __init__(self, spark: SparkSession, folder: Path, broker: str) -> None:
        self.path = folder / "payments.db"
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute("CREATE TABLE effect (transfer_id TEXT NOT NULL, amount INTEGER NOT NULL)")
        self._spark = spark
        self._folder = folder
        self._place = Place(f"sqlite:///{self.path}", None, broker)
        module = f"payments_{uuid4().hex}"
        self._name = f"{module}:app"
        (folder / f"{module}.py").write_text(PAYMENTS.format(url=f"sqlite:///{self.path}", broker=broker))
        self.app: App = load_app(self._name)

    def start(self) -> None:
        pay = self.app.target("payments.pay")
        for n in range(TRANSFERS):
            self.app.start(pay, Transfer(f"t{n}", n, 1 + n), flow_id=f"t{n}")

    def initiate(self, file: Path, target: str, *, by: str) -> RunCounts:
        plan = InitiationPlan(self._name, str(self._folder), self._place, target, None, "run-1", "csv")
        return initiate(self._spark, plan, [str(file)], id_columns=[by], flow_prefix="row")

    def process(self) -> int:
        """Run the job, and return the number of committed messages."""
        done = process(self._spark, ProcessingPlan(self._name, str(self._folder), self._place, "CRITICAL"))
        return sum(done.committed.values())

    def effects(self) -> list[tuple[str, int]]:
        with closing(sqlite3.connect(self.path)) as connection:
            return connection.execute("SELECT transfer_id, amount FROM effect ORDER BY transfer_id").fetchall()


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> MemoryBroker:
    return broker_named(f"memory:{request.node.name}", is_atomic=False)


@pytest.fixture
def paying(spark: SparkSession, broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Payments:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    return Payments(spark, tmp_path, broker.url)


@pytest.mark.more
def test_requests_leave_and_replies_arrive_beside_the_driver(
    paying: Payments, broker: MemoryBroker, tmp_path: Path
) -> None:
    paying.start()
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
        connection.execute("CREATE TABLE effect (transfer_id TEXT NOT NULL, amount INTEGER NOT NULL)")
    # It declares its address at the broker now, and runs between the two jobs.
    other = Service(ledger, tmp_path / "ledger.db", ManualClock(NOW), broker, Random(1), 0, Receiver)
    with closing(other):
        assert paying.process() == TRANSFERS
        while other.turn():
            pass
        assert sorted(other.effects()) == [(f"t{n}", 1 + n) for n in range(TRANSFERS)]
    assert paying.process() == TRANSFERS
    answered = [(f"answer t{n}", 0) for n in range(TRANSFERS)]
    assert paying.effects() == [*answered, *((f"t{n}", -1 - n) for n in range(TRANSFERS))]


@pytest.mark.more
def test_rows_for_another_service_leave_through_the_dispatcher(
    spark: SparkSession, paying: Payments, broker: MemoryBroker, tmp_path: Path
) -> None:
    file = tmp_path / "transfers.csv"
    file.write_text("transfer_id,account,amount\nt0,0,1\nt1,1,2\nt1,1,2\n")
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
        connection.execute("CREATE TABLE effect (transfer_id TEXT NOT NULL, amount INTEGER NOT NULL)")
    other = Service(ledger, tmp_path / "ledger.db", ManualClock(NOW), broker, Random(1), 0, Receiver)
    with closing(other):
        counts = paying.initiate(file, "ledger.book", by="transfer_id")
        assert (counts.started, counts.repeated, counts.quarantined) == (2, 1, 0)
        # Nothing is left for the stages of this service.
        assert paying.process() == 0
        assert other.turn() == 2
        other.harness.drain()
        assert sorted(other.effects()) == [("t0", 1), ("t1", 2)]


@pytest.mark.more
def test_a_job_whose_broker_is_away_ends_and_says_what_is_left(
    paying: Payments, broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_drain, "AWAY_SECONDS", 0.5)
    prepared(broker, "ledger.book").close()
    broker.is_down = True
    paying.start()
    with pytest.raises(ProcessingFailed, match="messages for other services are left: the broker was away"):
        paying.process()
    broker.is_down = False
    monkeypatch.setattr(edge_drain, "AWAY_SECONDS", 30.0)
    assert paying.process() == 0
    assert len(paying.effects()) == TRANSFERS
