"""The values of rows: the same ones in every session, whatever its settings are."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from stagepost.app.app import engine_of
from stagepost.app.loading import load_app
from stagepost.pipeline.frames import initiate
from stagepost.pipeline.jobs.checking import CheckedRecord, Checker, ReadSettings, UnreadableValue, values_of
from stagepost.pipeline.jobs.initiate import CHECKED, CHUNK, rows_of_commits
from stagepost.pipeline.jobs.records import CHUNK_BYTES, Numbering
from stagepost.pipeline.sink import RowReader, SinkPlan, _text, commit_batch, stage
from stagepost.pipeline.transforms.identity import text_of_value
from stagepost.ports.runs import RunCounts
from stagepost.ports.staging import BatchKey
from tests.pipeline.books import SqliteBooks
from tests.pipeline.shop import module_of

NOON = dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC)
MOMENT = pa.timestamp("us", "UTC")
ZONES = ("UTC", "Europe/Berlin", "GMT+2", "+05:30")


@dataclass
class Shipment:
    key: str
    weights: dict[str, int]
    stops: list[dict[str, dt.datetime]]


def checked(*rows: dict[str, Any]) -> list[CheckedRecord]:
    kinds = pa.struct([
        ("key", pa.string()),
        ("weights", pa.map_(pa.string(), pa.int64())),
        ("stops", pa.list_(pa.map_(pa.string(), MOMENT))),
    ])  # fmt: skip
    checker = Checker(ReadSettings("parquet", ["key"], "p", "", [], Numbering({}, {})), Shipment)
    found = [checker.check("f", None, 1, content, ["A"]) for content in values_of(pa.array(rows, kinds))]
    return [each for each in found if each is not None]


def test_maps_fill_the_fields_of_mappings_also_within_lists() -> None:
    (row,) = checked({"key": "A", "weights": [("a", 1), ("b", 2)], "stops": [[("x", NOON)]]})
    assert (row.reason, row.body) == (
        None,
        b'{"key":"A","stops":[{"x":"2026-07-01T12:00:00Z"}],"weights":{"a":1,"b":2}}',
    )


def test_a_map_with_a_key_twice_is_quarantined_alone() -> None:
    """Readers disagree on which value counts, as with JSON."""
    twice, good = checked(
        {"key": "A", "weights": [("a", 1), ("a", 2)], "stops": []}, {"key": "B", "weights": [], "stops": []}
    )
    assert "Python cannot hold one of the row's values" in str(twice.reason)
    assert good.reason is None


def test_a_map_whose_keys_are_no_plain_values_is_unreadable() -> None:
    kind = pa.map_(pa.struct([("a", pa.int64())]), pa.int64())
    first, second = values_of(pa.array([[({"a": 1}, 1)], []], kind))
    assert isinstance(first, UnreadableValue)
    assert second == {}


@pytest.mark.parametrize("zone", ZONES)
def test_moments_are_in_utc_at_any_depth(zone: str) -> None:
    here = pa.timestamp("us", zone)

    def kinds(moment: pa.DataType) -> pa.DataType:
        return pa.struct([
            ("at", moment), ("all", pa.list_(moment)), ("by", pa.map_(pa.string(), pa.struct([("at", moment)]))),
            ("local", pa.timestamp("us")),
        ])  # fmt: skip

    local = dt.datetime(2026, 7, 1, 12)  # noqa: DTZ001 - a moment without a zone
    row = {"at": NOON, "all": [NOON, None], "by": {"x": {"at": NOON}}, "local": local}
    column = pa.array([{**row, "by": [("x", {"at": NOON})]}, None], kinds(MOMENT)).cast(kinds(here))
    first, second = values_of(column)
    assert (first, second) == (row, None)
    assert str(first["at"].tzinfo) == str(first["by"]["x"]["at"].tzinfo) == "UTC"


def test_the_sink_starts_a_row_once_from_sessions_in_other_time_zones(books: SqliteBooks, tmp_path: Path) -> None:
    plan = replace(plan_of(books, tmp_path), target="shop.product", id_columns=("sku",))
    found = [written(plan, zone) for zone in ZONES]
    assert found == [RunCounts(1, 1, 0, 0), *[RunCounts(1, 0, 1, 0)] * (len(ZONES) - 1)]


def plan_of(books: SqliteBooks, folder: Path) -> SinkPlan:
    app = module_of(folder, database=books.url)
    place = engine_of(load_app(app, folder)).databases.place
    return SinkPlan(app, str(folder), place, "shop.order", None, ("order_id",), "o", False, "files")


def written(plan: SinkPlan, zone: str) -> RunCounts | None:
    row = {"sku": "A", "name": "lamp", "pieces": 1, "price": "1.10", "colour": "red", "weight": 1.5, "seen_at": NOON}
    batch = pa.RecordBatch.from_pylist([row])
    moments = batch.column("seen_at").cast(pa.timestamp("us", zone))
    batch = batch.set_column(batch.schema.get_field_index("seen_at"), "seen_at", moments)
    return commit_batch(plan, [stage(plan, BatchKey(plan.target, f"run {zone}"), [batch])])


def test_a_commit_writes_few_rows_if_they_are_large(books: SqliteBooks, tmp_path: Path) -> None:
    """A task holds a commit's rows in memory, and PostgreSQL takes no statement of a gibibyte."""
    plan = replace(plan_of(books, tmp_path), target="shop.note", id_columns=("key",))
    texts = ["x" * CHUNK_BYTES, "a", "b", "x" * CHUNK_BYTES, "x" * CHUNK_BYTES]
    batch = pa.RecordBatch.from_pylist([{"key": str(number), "text": text} for number, text in enumerate(texts)])
    staged = [[row.place for row in rows] for rows in RowReader(plan, plan.load()).read([batch])]
    assert staged == [[1], [2, 3, 4], [5]]
    rows = [dict.fromkeys(CHECKED.names) | {"row": text, "record": number} for number, text in enumerate(texts, 1)]
    written = rows_of_commits([pa.RecordBatch.from_pylist(rows, CHECKED)])
    assert [[row["record"] for row in each] for each in written] == [[1, 2], [3, 4], [5]]
    small = pa.RecordBatch.from_pylist([{**rows[1], "body": b"x"}] * (CHUNK + 1), CHECKED)
    assert [len(each) for each in rows_of_commits([small])] == [CHUNK, 1]


@contextmanager
def settings(spark: SparkSession, **values: str) -> Iterator[None]:
    names = {"zone": "spark.sql.session.timeZone", "ansi": "spark.sql.ansi.enabled"}
    before = {names[name]: str(spark.conf.get(names[name])) for name in values}
    for name, value in values.items():
        spark.conf.set(names[name], value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_a_decimal_has_one_text_with_ansi_mode_and_without_and_in_the_sink(spark: SparkSession, ansi: str) -> None:
    numbers = [Decimal(each).quantize(Decimal("1e-18")) for each in ("0", "-0.000000000000000001", "29401.5")]
    with settings(spark, ansi=ansi):
        frame = spark.createDataFrame([(each,) for each in [*numbers, None]], "n decimal(38,18)")
        texts = [text for (text,) in frame.select(text_of_value(F.col("n"), frame.schema["n"].dataType)).collect()]
        whole = spark.sql("SELECT 10000BD AS n")
        assert whole.select(text_of_value(F.col("n"), whole.schema["n"].dataType)).collect()[0][0] == "10000"
    assert texts == [*map(_text, numbers), None]
    assert texts[:2] == ["0.000000000000000000", "-0.000000000000000001"]


@pytest.mark.more
def test_a_session_with_other_settings_starts_no_flow_again(
    spark: SparkSession, books: SqliteBooks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = module_of(tmp_path, database=books.url)
    frame = spark.sql(
        "SELECT CAST(n AS DECIMAL(38,18)) AS number, 'A' AS sku, 'lamp' AS name, 1 AS pieces, 1.10BD AS price,"
        " 'red' AS colour, 1.5D AS weight, TIMESTAMP'2026-07-01 12:00:00 UTC' AS seen_at FROM VALUES (0), (7) AS t(n)"
    )
    found = []
    for zone, ansi in (("UTC", "true"), ("Europe/Berlin", "false")):
        with settings(spark, zone=zone, ansi=ansi):
            found.append(initiate(frame, app, "shop.product", id_columns=["number"], flow_prefix="p"))
    assert found == [RunCounts(2, 2, 0, 0), RunCounts(2, 0, 2, 0)], books.quarantine()
