"""``initiate`` on a real cluster whose executors join and leave while it runs. The store is PostgreSQL."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from stagepost.pipeline.jobs.initiate import CHUNK
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
