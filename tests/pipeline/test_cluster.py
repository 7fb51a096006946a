"""The jobs on a real cluster whose executors join and leave while they run. The store is PostgreSQL."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from stagepost.app.app import engine_of
from stagepost.pipeline.jobs.initiate import CHUNK
from tests.pipeline.books import orders
from tests.pipeline.cluster import Cluster
from tests.pipeline.commands import Command, Commands
from tests.pipeline.postgres_books import PostgresBooks
from tests.pipeline.shop import module_of
from tests.pipeline.test_initiate_deaths import chunks
from tests.processes import ROOT
from tests.waiting import wait_until

pytestmark = [pytest.mark.more, pytest.mark.heavy]

ROWS = 20 * CHUNK


@pytest.fixture
def books(new_postgres: Callable[[], str]) -> PostgresBooks:
    return PostgresBooks(new_postgres())


# The command's job, with a stop between its two readings.
INITIATE = """
import sys, time
from pathlib import Path
from stagepost.runtime.settings import Place
from stagepost.pipeline.jobs.initiate import InitiationPlan, initiate
from stagepost.pipeline.session import slots, spark_session
from stagepost.pipeline.spark_options import SparkOptions
app, url, master, folder, *files = sys.argv[1:]
def counted(rows):
    Path(folder, "counted").touch()
    while not Path(folder, "go").exists() or slots(spark) < int(Path(folder, "go").read_text() or 0):
        time.sleep(0.01)
with spark_session("test", SparkOptions(master)) as spark:
    plan = InitiationPlan(app, folder, Place(url, None), "shop.gated", None, "run", "csv")
    counts = initiate(spark, plan, files, id_columns=["order_id"], flow_prefix="o", on_counted=counted)
print(counts.rows_in, counts.started, counts.repeated, counts.quarantined)
"""


def is_at(marker: Path, job: Command) -> bool:
    """Or has failed before."""
    return marker.exists() or not job.is_running()


@pytest.mark.parametrize("step", ["counted", "checking", "writing"])
def test_executors_that_join_and_leave_at_a_step_drop_no_row(
    cluster: Cluster, commands: Commands, books: PostgresBooks, tmp_path: Path, step: str
) -> None:
    """The first executor is lost with all that it holds, and another one with five times its cores comes."""
    plain, broken = tmp_path / "1.csv", tmp_path / "2.csv"
    rows = [*(f"{number},1" for number in range(ROWS)), *(f"{number},3" for number in range(50)), "gate,1"]
    plain.write_text("\n".join(["order_id,quantity", *rows]))
    # Ids with line breaks, which cannot be: to read them, all of the file must be in one task.
    rows = [*(f'"{number}\n",2' for number in range(100)), *(f"{number},3" for number in range(50))]
    broken.write_text("\n".join(["order_id,quantity", *rows]))
    if step != "checking":
        (tmp_path / "gate.open").touch()
    cluster.join(cores=1)
    words = [module_of(tmp_path, gate=str(tmp_path / "gate")), books.url, cluster.url, str(tmp_path)]
    job = commands.run([sys.executable, "-c", INITIATE, *words, str(plain), str(broken)], cluster.environment, ROOT)

    wait_until(partial(is_at, tmp_path / "counted", job), "the rows are counted")
    if step != "counted":
        (tmp_path / "go").touch()
    if step == "checking":
        wait_until(partial(is_at, tmp_path / "gate.entered", job), "the rows are checked")
    if step == "writing":
        wait_until(lambda: chunks(books) >= 3 or not job.is_running(), "chunks are written")
    assert job.is_running(), job.said
    cluster.join(cores=5)
    cluster.lose()
    (tmp_path / "go").write_text("5")
    (tmp_path / "gate.open").touch()
    answer = job.answer()
    assert answer.code == 0, answer.err
    assert answer.out.split() == [str(each) for each in (ROWS + 1 + 200, ROWS + 1, 0, 200)]
    accepted = books.rows(
        "SELECT flow_id, count(*) FROM stagepost_journal WHERE waypoint = 'accepted' GROUP BY flow_id"
    )
    assert (len(accepted), {count for _, count in accepted}) == (ROWS + 1, {1})
    # The first of each id by file and record, and no later one in its place.
    assert {order.quantity for order in books.waiting_messages().values()} == {1}
    records = [record for name, record, _ in books.quarantine() if name == "1.csv"]
    assert records == list(range(ROWS + 1, ROWS + 51))


# The command's job, with a stop before each of these for the first time.
AUDIT = """
import json, sys, time
from pathlib import Path
from stagepost.flow.clock import SystemClock
from stagepost.ports.journal import Position
from stagepost.pipeline import archived_journal
from stagepost.pipeline.jobs import audit as job, audit_search
from stagepost.pipeline.session import spark_session
from stagepost.pipeline.spark_options import SparkOptions
url, until, master, folder = sys.argv[1:]
def stopped(name):
    if not Path(folder, name).exists():
        Path(folder, name).touch()
        while not Path(folder, f"{name}.go").exists():
            time.sleep(0.01)
def stopping(function, name_of):
    def call(*arguments, **options):
        stopped(name_of(*arguments, **options))
        return function(*arguments, **options)
    return call
def read(spark, url, table, *_, **options):
    return "head" if "from" in options else table
audit_search.read_table = archived_journal.read_table = stopping(audit_search.read_table, read)
job.flow_facts = stopping(job.flow_facts, lambda *_, **options: "flows")
with spark_session("test", SparkOptions(master)) as spark:
    found = job.audit(spark, url, until=Position.read(until), at=SystemClock().now(), terms=job.AuditTerms())
print(json.dumps(found.as_dict()))
"""


def test_an_audit_that_loses_an_executor_at_a_step_reads_again(
    cluster: Cluster, commands: Commands, books: PostgresBooks, tmp_path: Path
) -> None:
    """All of them at each step, with what they had read before: never another answer than without."""
    flows = [*orders(30), *orders(3, "fail", entries=1, name="bad")]
    books.start(flows)
    books.drain()
    books.start(orders(20, name="waits"))
    books.change("DELETE FROM stagepost_ready WHERE flow_id = 'waits1'")
    with closing(engine_of(books.app).access().session) as session:
        until = session.journal.position()
    cluster.join(cores=1)
    cluster.join(cores=1)
    words = [books.url, str(until), cluster.url, str(tmp_path)]
    job = commands.run([sys.executable, "-c", AUDIT, *words], cluster.environment, ROOT)
    for step in ("journal", "flows", "places", "head"):
        wait_until(partial(is_at, tmp_path / step, job), f"the audit is at {step}")
        assert job.is_running(), job.said
        cluster.lose_executors()
        (tmp_path / f"{step}.go").touch()
    answer = job.answer()
    assert answer.code == 0, answer.err
    assert "executor lost, reading the queue and the dead letters again" in answer.err
    found = answer.json
    assert [row["flow_id"] for row in found["lost"]] == ["waits1"]
    assert (found["lost_count"], found["doubled_count"]) == (1, 0)
    assert found["flows"] == {"flows": 53, "completed": 30, "dead": 3, "under_way": 20}
    assert found["waypoints"] == books.number("SELECT count(*) FROM stagepost_journal")
