"""Which record of its file a row is, whatever blocks Spark reads its files in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from stagepost.pipeline.jobs.records import LINE, ROW, FileFormat, read_records
from stagepost.pipeline.transforms.numbering import BLOCK, FILE, PLACE, RECORD, blocks, numbered

SMALL = {
    "spark.sql.files.maxPartitionBytes": "200",
    "spark.sql.files.openCostInBytes": "0",
    "spark.sql.files.minPartitionNum": "1",
}


@pytest.fixture
def small_blocks(spark: SparkSession) -> Iterator[SparkSession]:
    """Files are read in blocks of 200 bytes."""
    for name, value in SMALL.items():
        spark.conf.set(name, value)
    yield spark
    for name in SMALL:
        spark.conf.unset(name)


def numbers(
    spark: SparkSession, files: list[Path], file_format: FileFormat, column: str = "n"
) -> tuple[dict[str, list[tuple[int, Any]]], int]:
    """For each file its rows in order of their numbers, and in how many blocks they all were read."""
    rows = read_records(spark, [str(file) for file in files], file_format)
    counted = blocks(rows).localCheckpoint()
    found: dict[str, list[tuple[int, Any]]] = {}
    value = F.col(column) if file_format == "json" else F.col(ROW)[column]
    for row in numbered(rows, counted).select(FILE, RECORD, value).collect():
        found.setdefault(Path(row[0]).name, []).append((row[1], row[2]))
    return {name: sorted(each) for name, each in found.items()}, counted.count()


def counted_up(number: int) -> list[tuple[int, str]]:
    return [(each, str(each)) for each in range(1, number + 1)]


def test_rows_of_several_files_in_several_blocks_are_numbered_in_each_file_from_one(
    small_blocks: SparkSession, tmp_path: Path
) -> None:
    sizes = {"a.csv": 1, "b.csv": 137, "c.csv": 58, "none.csv": 0, "d.csv": 300}
    for name, size in sizes.items():
        (tmp_path / name).write_text("n,text\n" + "".join(f"{number},row\n" for number in range(1, size + 1)))
    found, read = numbers(small_blocks, [tmp_path / name for name in sizes], "csv")
    assert read > 2 * len(sizes)
    assert found == {name: counted_up(size) for name, size in sizes.items() if size}


def test_small_files_read_in_one_task_are_numbered_each_from_one(spark: SparkSession, tmp_path: Path) -> None:
    sizes = {"a.csv": 3, "b.csv": 5, "c.csv": 2}
    for name, size in sizes.items():
        (tmp_path / name).write_text("n\n" + "".join(f"{number}\n" for number in range(1, size + 1)))
    found, _ = numbers(spark, [tmp_path / name for name in sizes], "csv")
    assert found == {name: counted_up(size) for name, size in sizes.items()}


@pytest.mark.parametrize(
    ("end", "last"),
    [("\n", ""), ("\r\n", ""), ("\r\n", "\r\n"), ("\n", "\n\n\n")],
    ids=["lf", "crlf", "crlf at the end", "blank"],
)
def test_line_ends_and_the_end_of_a_file_do_not_change_the_numbers(
    small_blocks: SparkSession, tmp_path: Path, end: str, last: str
) -> None:
    (tmp_path / "a.csv").write_bytes((end.join(["n,text", *(f"{each},row" for each in range(1, 101))]) + last).encode())
    found, read = numbers(small_blocks, [tmp_path / "a.csv"], "csv")
    assert read > 3
    assert found == {"a.csv": counted_up(100)}


def test_blank_lines_are_no_records(small_blocks: SparkSession, tmp_path: Path) -> None:
    lines = [
        line for each in range(1, 101) for line in ([f"{each},row"] if each % 10 else ["", f"{each},row", "   ", ""])
    ]
    (tmp_path / "a.csv").write_text("\n\n" + "\n".join(["n,text", *lines]))
    (tmp_path / "a.jsonl").write_text("\n".join("" if each == "" else each for each in ["", *lines]))
    found, read = numbers(small_blocks, [tmp_path / "a.csv"], "csv")
    assert read > 3
    assert found == {"a.csv": counted_up(100)}
    found, _ = numbers(small_blocks, [tmp_path / "a.jsonl"], "json", LINE)
    assert found == {"a.jsonl": [(each, f"{each},row") for each in range(1, 101)]}


def test_a_file_that_begins_with_a_byte_order_mark_has_its_names_and_numbers(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("n,text\r\n1,row\r\n2,row\r\n", encoding="utf-8-sig")
    found, _ = numbers(spark, [tmp_path / "a.csv"], "csv")
    assert found == {"a.csv": counted_up(2)}


def test_malformed_rows_are_counted_with_the_others(small_blocks: SparkSession, tmp_path: Path) -> None:
    lines = [f"{each}" if each % 7 == 0 else f"{each},row{',more' if each % 5 == 0 else ''}" for each in range(1, 101)]
    (tmp_path / "a.csv").write_text("\n".join(["n,text", *lines]))
    found, read = numbers(small_blocks, [tmp_path / "a.csv"], "csv")
    assert read > 3
    assert found == {"a.csv": counted_up(100)}


def test_rows_of_parquet_are_numbered_through_all_row_groups(small_blocks: SparkSession, tmp_path: Path) -> None:
    for name, size in {"a.parquet": 500, "b.parquet": 77}.items():
        table = pa.table({"n": [str(each) for each in range(1, size + 1)], "pad": ["x" * 10] * size})
        pq.write_table(table, tmp_path / name, row_group_size=50, compression="none")
    found, read = numbers(small_blocks, [tmp_path / "a.parquet", tmp_path / "b.parquet"], "parquet")
    assert read > 2
    assert found == {"a.parquet": counted_up(500), "b.parquet": counted_up(77)}


def test_a_folder_and_a_pattern_name_their_files(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv", "c.txt"):
        (tmp_path / name).write_text("n\n1\n2\n")
    found, _ = numbers(spark, [tmp_path / "*.csv"], "csv")
    assert found == {"a.csv": counted_up(2), "b.csv": counted_up(2)}
    found, _ = numbers(spark, [tmp_path], "csv")
    assert found == {name: counted_up(2) for name in ("a.csv", "b.csv", "c.txt")}


def test_nothing_of_how_rows_are_counted_is_left_in_them(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,text\n1,row\n")
    rows = read_records(spark, [str(tmp_path / "a.csv")], "csv")
    columns = numbered(rows, blocks(rows)).columns
    assert {FILE, RECORD} < set(columns)
    assert not {BLOCK, PLACE, "rows_before", "first_place", "rows"} & set(columns)


def test_the_columns_of_a_file_may_have_any_name_that_the_counting_uses(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("rows,rows_before,first_place,file,record\n1,2,3,4,5\n6,7,8,9,10\n")
    rows = read_records(spark, [str(tmp_path / "a.csv")], "csv")
    found = numbered(rows, blocks(rows)).select(RECORD, F.col(ROW)["rows"], F.col(ROW)["record"]).collect()
    assert sorted(tuple(row) for row in found) == [(1, "1", "5"), (2, "6", "10")]


@pytest.mark.parametrize("name", ["my orders.csv", "účty 100%.csv", "a#b?.csv", "a+b%20c.csv"])
def test_a_files_name_is_told_as_it_is(spark: SparkSession, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("n\n1\n2\n")
    found, _ = numbers(spark, [tmp_path / name], "csv")
    assert found == {name: counted_up(2)}
