"""``df.write`` and ``writeStream`` of the format ``stagepost``, as users run them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.pipeline.books import Books
from tests.pipeline.shop import module_of

ORDERS = "order_id string, quantity int"


@pytest.fixture
def app(spark: SparkSession, books: Books, tmp_path: Path) -> str:
    """An app that comes to Spark's processes as users ship theirs."""
    name = module_of(tmp_path, database=books.url)
    spark.sparkContext.addPyFile(str(tmp_path / f"{name.partition(':')[0]}.py"))
    return name


def options(app: str, **more: str) -> dict[str, str]:
    return {"app": app, "target": "shop.order", "idColumns": "order_id", "flowPrefix": "o", **more}


def write(frame: DataFrame, app: str, **more: str) -> None:
    frame.write.format("stagepost").mode("append").options(**options(app, **more)).save()


def test_a_batch_write_starts_each_flow_once(spark: SparkSession, books: Books, app: str) -> None:
    rows = [("A", 1), ("A", 1), ("B", 2), ("C", 3)]
    frame = spark.createDataFrame(rows, ORDERS).repartition(2)
    write(frame, app)
    write(frame, app)
    assert {flow: order.quantity for flow, order in books.waiting_messages().items()} == {"o:A": 1, "o:B": 2, "o:C": 3}
    assert books.rows("SELECT count(*) FROM stagepost_staged") == [(0,)]
    assert books.rows("SELECT count(*) FROM stagepost_staged_row") == [(0,)]
    print(books.rows("SELECT * FROM stagepost_run"), books.rows("SELECT * FROM stagepost_run_task"))
    with pytest.raises(Exception) as caught:
        write(frame, app, colour="x")
    print(type(caught.value), caught.value)
    with pytest.raises(Exception) as caught:
        frame.write.format("stagepost").mode("overwrite").options(**options(app)).save()
    print(type(caught.value), caught.value)
    with pytest.raises(Exception) as caught:
        write(spark.createDataFrame([("A", -1), (None, 1)], ORDERS).selectExpr("order_id", "'x' as quantity"), app)
    print(type(caught.value), caught.value)
    assert 0
