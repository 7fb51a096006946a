"""``df.write`` and ``writeStream`` of the format ``stagepost``: each flow starts once, whatever dies."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from stagepost.ports.registry import driver_of
from tests.pipeline.books import Books, SqliteBooks, orders
from tests.pipeline.commands import Commands
from tests.pipeline.postgres_books import PostgresBooks
from tests.pipeline.shop import module_of
from tests.pipeline.sink_streams import ORDERS, options, put, run_stream
from tests.servers.postgres import OwnServer
from tests.waiting import wait_until

OneApp = Callable[..., str]


@pytest.fixture
def one_app(spark: SparkSession, books: Books, tmp_path: Path) -> OneApp:
    """An app that comes to Spark's processes as users ship theirs, with a fault of ``sink_streams``."""

    def make(fault: str = "", *arguments: object, url: str | None = None) -> str:
        words = ", ".join(["__name__", *map(repr, map(str, arguments))])
        before = f"from tests.pipeline import sink_streams\nsink_streams.{fault}({words})" if fault else ""
        name = module_of(tmp_path, before, database=url or books.url)
        spark.sparkContext.addPyFile(str(tmp_path / f"{name.partition(':')[0]}.py"))
        return name

    return make


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    put(folder, "1.json", ("A", 1), ("B", 2))
    put(folder, "2.json", ("C", 3), ("A", 1))
    return folder


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


def started(books: Books) -> dict[str, int]:
    assert books.waypoints("accepted") == books.waiting(), "a flow was started twice"
    return {flow.removeprefix("o:"): order.quantity for flow, order in books.waiting_messages().items()}


def batches(books: Books) -> list[tuple[object, ...]]:
    return books.rows("SELECT batch, row_count FROM stagepost_sink_batch ORDER BY committed_at")


def left(books: Books) -> int:
    return books.number("SELECT count(*) FROM stagepost_staged_row")


ALL = {"A": 1, "B": 2, "C": 3}


def write(frame: DataFrame, app: str, **more: str) -> None:
    frame.write.format("stagepost").mode("append").options(**options(app, **more)).save()


def test_a_write_starts_each_flow_once_and_says_what_is_wrong(
    spark: SparkSession, books: Books, one_app: OneApp
) -> None:
    app = one_app()
    frame = spark.createDataFrame([("A", 1), ("A", 1), ("B", 2), ("C", 3)], ORDERS).repartition(2)
    for _ in range(2):
        write(frame, app)
    assert started(books) == ALL
    assert batches(books) == [(-1, 4), (-1, 4)]
    write(frame.limit(0), app)
    bad = frame.selectExpr("order_id", "'many' AS quantity")
    for rows, more, says in (
        (frame, {"colour": "red"}, "the sink stagepost has no option 'colour'"),
        (frame.drop("quantity"), {}, "which needs quantity; the columns are order_id"),
        (bad, {}, "no row of 4 fits, so all were quarantined, and no flow was started at shop.order"),
    ):
        with pytest.raises(AnalysisException) as caught:
            write(rows, app, **more)
        assert says in str(caught.value)
        assert "Traceback" not in str(caught.value)
        assert "File " not in str(caught.value)
    assert started(books) == ALL
    assert left(books) == 0


def test_a_stream_starts_each_flow_once_over_its_restarts_and_after_a_lost_checkpoint(
    spark: SparkSession, books: Books, one_app: OneApp, files: Path, checkpoint: Path
) -> None:
    app = one_app()
    run_stream(spark, files, checkpoint, app)
    put(files, "3.json", ("D", 4))
    run_stream(spark, files, checkpoint, app)
    assert started(books) == ALL | {"D": 4}
    assert batches(books) == [(0, 4), (1, 1)]
    shutil.rmtree(checkpoint)
    run_stream(spark, files, checkpoint, app)
    assert started(books) == ALL | {"D": 4}
    assert batches(books) == [(0, 4), (1, 1), (0, 5)]
    assert left(books) == 0


@pytest.mark.more
@pytest.mark.parametrize("place", ["staged", "committed"])
def test_a_driver_that_dies_beside_the_commit_of_its_batch_loses_and_doubles_nothing(
    spark: SparkSession, books: Books, one_app: OneApp, files: Path, checkpoint: Path, tmp_path: Path, place: str
) -> None:
    """Its first batch. After the commit Spark does not know of it, aborts, and runs the batch again."""
    app = one_app("kill_once", place, tmp_path / "killed")
    with pytest.raises(StreamingQueryException):
        run_stream(spark, files, checkpoint, app)
    assert started(books) == (ALL if place == "committed" else {})
    assert left(books) == 0, "abort deletes what was staged, and nothing else"
    run_stream(spark, files, checkpoint, app)
    assert started(books) == ALL
    assert batches(books) == [(0, 4)]
    assert books.rows("SELECT starts FROM stagepost_run") == [(1,)], "the batch was known by its key"
    assert left(books) == 0


@pytest.mark.more
def test_a_checkpoint_that_was_restored_from_a_copy_fails_with_both_counts(
    spark: SparkSession, books: Books, one_app: OneApp, files: Path, checkpoint: Path, tmp_path: Path
) -> None:
    app = one_app()
    run_stream(spark, files, checkpoint, app)
    shutil.copytree(checkpoint, tmp_path / "copy")
    put(files, "3.json", ("D", 4))
    run_stream(spark, files, checkpoint, app)
    put(files, "4.json", ("E", 5), ("F", 6))
    with pytest.raises(StreamingQueryException) as caught:
        run_stream(spark, files, tmp_path / "copy", app)
    assert "batch 1 of the streaming query" in str(caught.value)
    assert "was committed before with 1 rows, and comes again with 3 rows that are not the same" in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert started(books) == ALL | {"D": 4}
    run_stream(spark, files, tmp_path / "copy", app, repeated="accept")
    assert started(books) == ALL | {"D": 4, "E": 5, "F": 6}
    assert left(books) == 0


@pytest.mark.more
def test_a_server_that_crashes_between_staging_and_commit_keeps_the_staged_rows(
    spark: SparkSession, mortal_postgres: OwnServer, one_app: OneApp, files: Path, checkpoint: Path, tmp_path: Path
) -> None:
    url = mortal_postgres.new_database()
    books = PostgresBooks(url)
    gate = tmp_path / "gate"
    app = one_app("wait", "staged", gate, url=url)
    rows = spark.readStream.schema(ORDERS).json(str(files))
    writer = rows.writeStream.format("stagepost").options(**options(app)).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    wait_until(Path(f"{gate}.entered").exists, "the rows are staged")
    assert left(books) == 4
    mortal_postgres.kill()
    mortal_postgres.start()
    Path(f"{gate}.open").touch()
    query.awaitTermination()
    assert started(books) == ALL
    assert batches(books) == [(0, 4)]
    assert left(books) == 0


@pytest.mark.more
def test_two_writes_in_one_batch_of_foreach_batch_have_a_key_each(
    spark: SparkSession, books: Books, one_app: OneApp, files: Path, checkpoint: Path
) -> None:
    """The driver dies between the two, once."""
    app = one_app()
    deaths = iter([True])

    def both(batch: DataFrame, number: int) -> None:
        write(batch, app)
        if next(deaths, False):
            raise RuntimeError
        write(batch, app, flowPrefix="p")

    for is_first in (True, False):
        rows = spark.readStream.schema(ORDERS).json(str(files))
        writer = rows.writeStream.foreachBatch(both).option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        if is_first:
            with pytest.raises(StreamingQueryException):
                query.awaitTermination()
        else:
            query.awaitTermination()
    assert started(books) == ALL | {f"p:{name}": number for name, number in ALL.items()}
    assert batches(books) == [(-1, 4)] * 3


@pytest.mark.more
def test_a_batch_of_foreach_batch_whose_rows_are_all_wrong_does_not_end_its_query(
    spark: SparkSession, books: Books, one_app: OneApp, files: Path, checkpoint: Path
) -> None:
    """Spark would run that batch again at each start, so the query would never get beyond it."""
    app = one_app()
    rows = spark.readStream.schema(ORDERS).json(str(files)).selectExpr("order_id", "'many' AS quantity")
    writer = rows.writeStream.foreachBatch(lambda batch, number: write(batch, app))
    writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()
    assert books.number("SELECT count(*) FROM stagepost_quarantine") == 4


@pytest.mark.more
def test_a_stream_of_the_journal_that_dies_in_its_first_batch_holds_back_a_purge(
    spark: SparkSession, books: SqliteBooks, one_app: OneApp, checkpoint: Path, tmp_path: Path
) -> None:
    app = one_app("kill_once", "staged", tmp_path / "killed")
    books.start(orders(3))

    def run() -> None:
        lines = spark.readStream.format("stagepost").options(url=books.url, reader="notes").load()
        notes = lines.where("flow_id LIKE 'o_'").selectExpr("message_id AS text")
        writer = notes.writeStream.format("stagepost").options(**options(app, target="shop.note", idColumns="text"))
        writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(StreamingQueryException):
        run()
    with closing(driver_of(books.url).open_existing(books.url, "the test").session()) as session:
        cursor = session.cursors.find("notes")
    assert cursor is not None
    assert cursor.position == cursor.first == 0, "a purge would stop there"
    run()
    assert books.number("SELECT count(*) FROM stagepost_ready WHERE stage = 'shop.note'") == 3


DRIVER = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from tests.pipeline.sink_streams import run_stream
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False).getOrCreate()
run_stream(spark, Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
"""


@pytest.mark.more
@pytest.mark.heavy
def test_two_drivers_on_copies_of_one_checkpoint_start_each_flow_once_and_one_may_be_killed(
    spark: SparkSession,
    books: Books,
    one_app: OneApp,
    commands: Commands,
    files: Path,
    checkpoint: Path,
    tmp_path: Path,
) -> None:
    run_stream(spark, files, checkpoint, one_app())
    put(files, "3.json", ("D", 4), ("E", 5))
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint, copy)
    # The other one has staged its rows of the batch, and neither commits nor ends.
    gate = tmp_path / "gate"
    app = one_app("wait", "staged", gate)
    words = [sys.executable, "-c", DRIVER, str(files), str(copy), app]
    other = commands.run(words, {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"})
    wait_until(Path(f"{gate}.entered").exists, f"the other driver has staged its rows: {other.said}")
    run_stream(spark, files, checkpoint, one_app())
    assert started(books) == ALL | {"D": 4, "E": 5}
    Path(f"{gate}.open").touch()
    assert other.wait() == 0, other.said
    assert started(books) == ALL | {"D": 4, "E": 5}
    assert batches(books) == [(0, 4), (1, 2)]
    # A whole driver, with its Java, is killed behind its commit.
    Path(f"{gate}.open").unlink()
    put(files, "4.json", ("F", 6))
    app = one_app("wait", "committed", gate2 := tmp_path / "gate2")
    words[-1] = app
    commands.run(words, {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"})
    wait_until(Path(f"{gate2}.entered").exists, "the other driver has committed its batch")
    commands.kill_all()
    assert started(books) == ALL | {"D": 4, "E": 5, "F": 6}
    run_stream(spark, files, copy, one_app())
    assert batches(books) == [(0, 4), (1, 2), (2, 1)]
    assert started(books) == ALL | {"D": 4, "E": 5, "F": 6}
