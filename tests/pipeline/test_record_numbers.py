"""Which record of its file a row is, whatever blocks Spark reads its files in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from stagepost.flow.errors import DeclarationError
from stagepost.pipeline.csv_records import Quotes
from stagepost.pipeline.files import FileFormat, unique_files
from stagepost.pipeline.jobs.records import (
    BLOCK,
    BLOCKS_SETTING,
    FILE,
    PLACE,
    ROW,
    TEXT,
    FileChanged,
    Numbering,
    is_record,
    read_records,
)

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
    spark: SparkSession, files: list[Path], file_format: FileFormat
) -> tuple[dict[str, list[tuple[int, Any]]], int]:
    """For each file its rows in order of their numbers, with their first cell or their line, and in how many blocks
    they all were read."""
    with read_records(spark, unique_files([str(file) for file in files]), file_format, ",") as records:
        value = F.col(ROW)["n"] if file_format == "parquet" else F.col(TEXT)
        rows = records.frame.select(FILE, BLOCK, PLACE, value, F.spark_partition_id()).collect()
        found: dict[str, list[tuple[int, Any]]] = {}
        for file, block, place, text, _ in rows:
            number = records.numbering.number(file, block, place)
            shown = bytes(text).decode() if file_format != "parquet" else text
            if number:
                found.setdefault(Path(file).name, []).append((number, cell(shown) if file_format == "csv" else shown))
        assert records.count == sum(map(len, found.values()))
    return {name: sorted(each) for name, each in found.items()}, len({(*row[:2], row[4]) for row in rows})


def cell(record: str) -> str:
    return record.partition(",")[0].strip('\r"')


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
    found, _ = numbers(small_blocks, [tmp_path / "a.jsonl"], "json")
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


@pytest.mark.parametrize("name", ["my orders.csv", "účty 100%.csv", "a#b?.csv", "a+b%20c.csv"])
def test_a_files_name_is_told_as_it_is(spark: SparkSession, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("n\n1\n2\n")
    found, _ = numbers(spark, [tmp_path / name], "csv")
    assert found == {name: counted_up(2)}


def test_a_file_that_two_patterns_name_is_refused(small_blocks: SparkSession, tmp_path: Path) -> None:
    """Only Spark knows what they name. A local file is read once, however often it is named."""
    (tmp_path / "a.csv").write_text("n\n" + "1\n" * 300)
    for addresses in ([f"file://{tmp_path}/*.csv", f"file://{tmp_path}/a*"], [f"file://{tmp_path}/a.csv"] * 2):
        with (
            pytest.raises(DeclarationError, match=r"a\.csv is named twice"),
            read_records(small_blocks, addresses, "csv", ","),
        ):
            pass
    found, _ = numbers(small_blocks, [tmp_path, tmp_path / "a.csv", tmp_path / "*.csv"], "csv")
    assert found == {"a.csv": [(each, "1") for each in range(1, 301)]}


def test_a_block_that_was_not_counted_has_no_number() -> None:
    numbering = Numbering({("a.csv", 0): 1, ("a.csv", 100): 30}, {})
    assert (numbering.number("a.csv", 0, 2), numbering.number("a.csv", 100, 2)) == (3, 32)
    for file, block in (("a.csv", 50), ("b.csv", 0)):
        with pytest.raises(FileChanged, match="was not there when the file was counted"):
            numbering.number(file, block, 0)


class ClusterWithoutFiles:
    """Two cores, and a reader that fails. ``seen`` is the number of blocks that each reading was given."""

    def __init__(self, settings: dict[str, str]) -> None:
        self._settings = dict(settings)
        self.conf = SimpleNamespace(
            get=self._settings.get, set=self._settings.__setitem__, unset=self._settings.__delitem__
        )
        self.sparkContext = SimpleNamespace(defaultParallelism=2)
        self.seen: list[str | None] = []

    @property
    def read(self) -> NoReturn:
        self.seen.append(self._settings.get(BLOCKS_SETTING))
        raise FileNotFoundError("a.jsonl")


@pytest.mark.parametrize(("settings", "blocks"), [({}, "2"), ({BLOCKS_SETTING: "7"}, "7")], ids=["default", "set"])
def test_number_of_blocks_is_fixed_before_the_first_reading(settings: dict[str, str], blocks: str) -> None:
    """Otherwise Spark derives it from the cores at each reading, and executors may join between the two."""
    cluster = ClusterWithoutFiles(settings)
    with (
        pytest.raises(DeclarationError, match="cannot be read as json"),
        read_records(cast(SparkSession, cluster), ["a.jsonl"], "json", ","),
    ):
        pass
    assert cluster.seen == [blocks]
    assert cluster.conf.get(BLOCKS_SETTING) == settings.get(BLOCKS_SETTING), "the session may be the user's own"


def test_a_line_that_spark_takes_for_a_record_is_one_for_the_cutter_too(spark: SparkSession) -> None:
    """The other way round, a file is read by one task that need not be."""
    random = Random(5)
    lines = ["".join(random.choices('ab,;"\r', k=random.randrange(12))) for _ in range(4000)]
    for separator in (",", ";", "b"):
        frame = spark.createDataFrame([(line,) for line in lines], "value string")
        found = frame.select("value", is_record(separator)).collect()
        wrong = [value for value, alone in found if alone != is_closed(value.encode(), separator.encode())]
        assert wrong == []
        assert len([None for value, alone in found if alone and '"' in value]) > 100


def is_closed(line: bytes, separator: bytes) -> bool:
    quotes = Quotes(separator)
    return quotes.follow(1, line) and not quotes.is_open
