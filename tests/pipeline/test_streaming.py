"""Streams as users run them: in Spark, with a checkpoint, and in a session that is not of our making."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.pipeline.books import SqliteBooks, orders
from tests.processes import ROOT

pytestmark = pytest.mark.more


def run_stream(spark: SparkSession, url: str, folder: Path, **options: str) -> None:
    """Append what is new to a folder, and end."""
    stream = spark.readStream.format("stagepost").options(url=url, columns="id,message_id", **options).load()
    query = (
        stream.writeStream.format("json")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def ids_in(spark: SparkSession, folder: Path) -> list[int]:
    return sorted(row.id for row in spark.read.schema("id bigint").json(str(folder / "out")).collect())


def test_a_stream_reads_each_line_once_over_its_restarts(
    spark: SparkSession, books: SqliteBooks, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        books.start(orders(7, name=name))
        run_stream(spark, books.url, tmp_path, reader="copy", maxRowsPerBatch="5")
    assert ids_in(spark, tmp_path) == list(range(1, 15))
    ((first, position),) = books.rows("SELECT first, position FROM stagepost_cursor WHERE reader = 'copy'")
    assert (first, position <= 15) == (0, True)
    assert position > 0, "Spark commits a batch when the next one begins"


def test_a_checkpoint_of_another_store_ends_the_query_with_one_paragraph(
    spark: SparkSession, books: SqliteBooks, tmp_path: Path
) -> None:
    books.start(orders(1))
    run_stream(spark, books.url, tmp_path, reader="copy")
    other = SqliteBooks(tmp_path / "other.db")
    other.start(orders(3))
    with pytest.raises(StreamingQueryException) as caught:
        run_stream(spark, other.url, tmp_path, reader="copy")
    assert "the option url names another store now" in str(caught.value)
    assert ids_in(spark, tmp_path) == [1]


PLAIN_SESSION = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", False).config(
    "spark.sql.session.timeZone", "America/New_York").getOrCreate()
url = sys.argv[1]
found = spark.read.format("stagepost").option("url", url).load()
print("MICROS", sorted(row[0] for row in found.selectExpr("unix_micros(at)").collect()))
pushed = spark.read.format("stagepost").option("url", url).option("pushFilters", "true")
for name, ask in {
    "READ": lambda: spark.read.format("stagepost").option("url", url).option("table", "inbox").load(),
    "STREAM": lambda: spark.readStream.format("stagepost").option("url", url).option("table", "inbox").load(),
    "UNNAMED": lambda: spark.readStream.format("stagepost").option("url", url).load().writeStream.format("noop").option(
        "checkpointLocation", sys.argv[2]).trigger(availableNow=True).start().awaitTermination(),
    "PUSHED": lambda: pushed.load().where("id = 1").collect(),
}.items():
    try:
        ask()
    except Exception as error:
        print(name, "|".join(str(error).split("JVM stacktrace")[0].splitlines()))
spark.conf.set("spark.sql.python.filterPushdown.enabled", True)
print("ONE", len(pushed.load().where("id = 1").collect()))
"""


@pytest.mark.heavy
def test_a_session_of_a_users_own_reads_it_right_and_says_what_is_wrong(books: SqliteBooks, tmp_path: Path) -> None:
    """With no setting of ours, in another time zone."""
    books.start(orders(3))
    done = subprocess.run(
        [sys.executable, "-c", PLAIN_SESSION, books.url, str(tmp_path / "checkpoint")],
        cwd=ROOT,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
    )
    said = {line.partition(" ")[0]: line.partition(" ")[2] for line in done.stdout.splitlines()}
    assert said["MICROS"] == str([at for (at,) in books.rows("SELECT at FROM stagepost_journal ORDER BY at")])
    for name in ("READ", "STREAM"):
        assert "the source stagepost has no table 'inbox'; it has journal, queue" in said[name]
        assert "Traceback" not in said[name]
        assert "File " not in said[name]
    assert 'needs .option("reader", "a name")' in said["UNNAMED"]
    assert "Traceback" not in said["UNNAMED"]
    assert "spark.sql.python.filterPushdown.enabled" in said["PUSHED"]
    assert said["ONE"] == "1"
