"""All jobs on a real cluster on which executors and drivers die: no answer is wrong, nothing is lost or doubled."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from stagepost.app.app import engine_of
from stagepost.pipeline.jobs.initiate import CHUNK
from tests.pipeline.books import orders
from tests.pipeline.cluster import Cluster
from tests.pipeline.cluster_site import SLOTS, Site, books, cluster, is_over, site, succeeded
from tests.pipeline.held_jobs import STEPS
from tests.pipeline.postgres_books import PostgresBooks
from tests.pipeline.shop import STAGES
from tests.pipeline.sink_streams import put
from tests.pipeline.spark_pages import with_loops
from tests.pipeline.test_archive_command import grow_old
from tests.pipeline.test_initiate_deaths import chunks
from tests.pipeline.test_reconcile_command import Service
from tests.servers.ports import reserved_port
from tests.waiting import wait_until

__all__ = ["books", "cluster", "site"]

pytestmark = [pytest.mark.more, pytest.mark.heavy]

ROWS = 30 * CHUNK


def accepted(books: PostgresBooks) -> tuple[int, set[int]]:
    """Return the number of flows, and how often one of them was accepted."""
    found = books.rows("SELECT flow_id, count(*) FROM stagepost_journal WHERE waypoint = 'accepted' GROUP BY flow_id")
    return len(found), {count for _, count in found}


def test_jobs_that_read_answer_as_they_would_though_all_executors_die_at_each_step(
    site: Site, books: PostgresBooks, new_postgres: Callable[[], str], cluster: Cluster, tmp_path: Path
) -> None:
    """An audit, a stream of the journal, both reconciliations and an archive: see ``held_jobs``."""
    books.start([*orders(30), *orders(3, "fail", entries=1, name="bad")])
    books.drain()
    books.start(orders(20, name="waits"))
    books.change("DELETE FROM stagepost_ready WHERE flow_id = 'waits1'")
    with closing(engine_of(books.app).access().session) as session:
        until = session.journal.position()
    lines = [line for (line,) in books.rows("SELECT id FROM stagepost_journal ORDER BY id")]
    sender, receiver = Service(new_postgres(), "payments.pay"), Service(new_postgres(), "ledger.book")
    sender.leave(["arrives", "lost"])
    sender.leave(["later"], seconds=1_200)
    receiver.record("arrived", "ledger.book", ["arrives"])
    receiver.record("arrived", "ledger.book", ["later"], seconds=1_200)
    with closing(sender.session()) as session:
        grow_old(session)
    # o29 has no row, o1 has two, and no flow has the name none.
    rows = tmp_path / "rows.csv"
    flows = [*(f"o{number}" for number in range(29)), "o1", "none", "bad0", "waits0"]
    rows.write_text("\n".join(["flow", *flows]))
    words = [cluster.url, str(tmp_path), str(until), sender.url, receiver.url, str(rows)]
    module = [sys.executable, "-m", "tests.pipeline.held_jobs"]
    driver = site.run([*module, *words], {"STAGEPOST_DATABASE": site.url})
    for step in STEPS:
        wait_until(partial(is_over, (tmp_path / f"{step}.entered").exists, driver), f"the driver is at {step}")
        assert driver.is_running(), driver.said
        cluster.lose_executors()
        (tmp_path / f"{step}.open").touch()
    answer = succeeded(driver)

    assert answer.json["slots"] == SLOTS
    audit = answer.json["audit"]
    assert "executor lost, reading the queue and the dead letters again" in answer.err
    assert [row["flow_id"] for row in audit["lost"]] == ["waits1"]
    assert (audit["lost_count"], audit["doubled_count"]) == (1, 0)
    assert audit["flows"] == {"flows": 53, "completed": 30, "dead": 3, "under_way": 20}
    assert audit["waypoints"] == len(lines)
    assert answer.json["stream"] == lines
    (row,) = [each for each in answer.json["reconcile"]["addresses"] if each["address"] == "ledger.book"]
    assert (row["sent"], row["ok"], row["lost"], row["windows"], row["differing"]) == (3, 2, 1, 2, 1)
    assert [each["message_id"] for each in answer.json["reconcile"]["lost"]] == ["lost"]
    compared = answer.json["rows"]
    assert {name: count for name, count in compared["counts"].items() if count} == {
        "ok": 28,
        "duplicated": 2,
        "lost": 1,
        "dead": 1,
        "in_flight": 1,
        "unexpected": 1,
    }
    assert {name: [row["flow_id"] for row in found] for name, found in compared["findings"].items() if found} == {
        "duplicated": ["o1"],
        "lost": ["none"],
        "unexpected": ["o29"],
    }
    assert answer.json["archive"] == [6]
    files = (tmp_path / "archive").glob("journal-*/*.parquet")
    assert sorted(line for file in files for line in pq.read_table(file)["id"].to_pylist()) == [1, 2, 3, 4, 5, 6]
    # The source's option url had a password, as it has in a user's session.
    assert site.leaks() == []


def test_initiate_goes_on_after_its_driver_was_killed_and_no_log_has_a_password(
    site: Site, books: PostgresBooks, cluster: Cluster, tmp_path: Path
) -> None:
    """The event log holds all texts of Spark's pages."""
    file = tmp_path / "orders.csv"
    file.write_text("order_id,quantity\n" + "".join(f"{number},1\n" for number in range(ROWS)))
    target = ("--to", "shop.order", "--id", "order_id", "--app", site.app)
    words = ("initiate", file, *target, "--py-files", site.zipped())
    first = site.start(*words)
    wait_until(partial(is_over, lambda: chunks(books) >= 3, first), "it has begun to write")
    assert first.is_running(), first.said
    first.kill()
    wait_until(lambda: not cluster.executors(), "the executors have ended")
    assert 0 < books.waiting() < ROWS
    found = succeeded(site.start(*words)).json
    assert (found["rows_in"], found["started"] + found["repeated"], found["balanced"]) == (ROWS, ROWS, True)
    assert accepted(books) == (ROWS, {1})
    assert books.waiting() == ROWS
    described = '"spark.job.description":"stagepost initiate shop.order: starting flows"'
    assert any(described in text for text in cluster.texts().values())
    assert site.leaks() == []


def test_executors_die_and_join_while_messages_run_and_each_effect_happens_once(
    site: Site, books: PostgresBooks, cluster: Cluster, tmp_path: Path
) -> None:
    """The driver runs the suspects beside the tasks. The executor that joins gets claim loops of its own."""
    gate, port = tmp_path / "gate", reserved_port()
    flows = [*orders(1, f"kill-once={tmp_path}/died", name="dies"), *orders(500)]
    flows += orders(1, f"gate={gate}", name="gated")
    books.start(flows)
    command = site.process("--py-files", site.zipped(), "--conf", f"spark.ui.port={port}")
    wait_until(partial(is_over, lambda: books.committed() >= 150, command), "it has begun to work")
    assert command.is_running(), command.said
    cluster.lose_executors()
    cluster.join(cores=1)
    try:
        wait_until(partial(with_loops, f"http://127.0.0.1:{port}", SLOTS + 1), "the new slot has a claim loop too")
        Path(f"{gate}.open").touch()
        succeeded(command)
    finally:
        cluster.leave()
    assert books.problems(flows) == []
    assert books.committed() == len(flows) * len(STAGES)
    assert books.waypoints("failed") == 0
    assert books.proofs_of_life() == []


def test_a_killed_driver_leaves_no_claims_and_the_next_one_continues(
    site: Site, books: PostgresBooks, cluster: Cluster
) -> None:
    flows = orders(400)
    books.start(flows)
    packed = site.zipped()
    command = site.process("--py-files", packed, "--continuous")
    wait_until(partial(is_over, lambda: books.committed() >= 150, command), "it has begun to work")
    assert command.is_running(), command.said
    command.kill()
    wait_until(lambda: not cluster.executors(), "the executors have ended")
    assert not books.is_drained()
    succeeded(site.process("--py-files", packed))
    assert books.problems(flows) == []
    assert books.committed() == len(flows) * len(STAGES)
    assert (books.owners(), books.proofs_of_life()) == ([], [])
    assert books.waypoints("failed") == 0


SINK = """
import sys
from pathlib import Path
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from tests.pipeline.sink_streams import put, run_stream
master, packed, app, files, checkpoint = sys.argv[1:]
spark = SparkSession.builder.master(master).config("spark.ui.enabled", False).getOrCreate()
spark.sparkContext.addPyFile(packed)
def run():
    run_stream(spark, Path(files), Path(checkpoint), app, target="shop.gated")
try:
    run()
except StreamingQueryException:
    put(Path(files), "3.json", ("c", 1), ("a0", 0))
    run()
"""


def test_the_sink_starts_each_flow_once_though_an_executor_dies_and_a_commit_has_no_answer(
    site: Site, books: PostgresBooks, cluster: Cluster, tmp_path: Path
) -> None:
    """The executor dies while it stages rows. The process that commits dies after the database's commit."""
    gate, killed = tmp_path / "gate", tmp_path / "killed"
    fault = f"sink_streams.kill_once(__name__, 'committed', {str(killed)!r})"
    site.make(f"from tests.pipeline import sink_streams\n{fault}", gate=str(gate))
    files = tmp_path / "files"
    put(files, "1.json", *((f"a{number}", number) for number in range(700)))
    put(files, "2.json", *((f"b{number}", number) for number in range(700)), ("gate", 0))
    words = [cluster.url, str(site.zipped()), site.app, str(files), str(tmp_path / "checkpoint")]
    variables = {"STAGEPOST_DATABASE": site.url, "PYSPARK_PYTHON": sys.executable}
    driver = site.run([sys.executable, "-c", SINK, *words], variables)
    wait_until(partial(is_over, Path(f"{gate}.entered").exists, driver), "a task stages rows")
    assert driver.is_running(), driver.said
    cluster.lose_executors()
    Path(f"{gate}.open").touch()
    succeeded(driver)
    assert killed.exists()
    assert accepted(books) == (1402, {1})
    assert books.waiting() == 1402
    assert books.rows("SELECT batch, row_count FROM stagepost_sink_batch ORDER BY batch") == [(0, 1401), (1, 2)]
    assert books.number("SELECT count(*) FROM stagepost_staged_row") == 0
    assert site.leaks() == []
