"""``stagepost initiate``: files that do not fit together, or are not what their names say, are refused: before Spark
starts where they are local, and elsewhere before the first flow starts."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.books import Books
from tests.pipeline.commands import Answer, Cli, Commands
from tests.pipeline.shop import module_of
from tests.pipeline.test_initiate_refusals import refused

Place = Callable[[Path], str]
# As other file systems are: only Spark can look into such a file.
BY_ADDRESS = "file://{}".format


@pytest.fixture(params=[str, BY_ADDRESS], ids=["local", "address"])
def place(request: pytest.FixtureRequest) -> Place:
    return request.param  # type: ignore[no-any-return]


def start(cli: Cli, *files: str) -> Answer:
    return cli.initiate(*files, to="shop.order", by="order_id")


def pack(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()))
    return path


def test_compressed_files_whose_first_lines_differ(cli: Cli, books: Books, tmp_path: Path, place: Place) -> None:
    one = pack(tmp_path / "1.csv.gz", "order_id,quantity\nA,1\n")
    two = pack(tmp_path / "2.csv.gz", "quantity,order_id\n1,B\n")
    says = f"{two} and {one} name their columns differently in their first lines: quantity, order_id, and order_id, qua"
    refused(books, start(cli, place(one), place(two)), says)


@pytest.mark.parametrize("quoted", [False, True])
def test_a_first_line_that_differs_in_a_quoted_file(
    cli: Cli, books: Books, tmp_path: Path, place: Place, quoted: bool
) -> None:
    (tmp_path / "1.csv").write_text("order_id,quantity,note\nA,1,x\n")
    names = '"order_id","quantity","n\note"' if quoted else '"order_id","quantity","other"'
    (tmp_path / "2.csv").write_text(f'{names}\n"B","1","two\nlines"\n')
    refused(books, start(cli, place(tmp_path / "1.csv"), place(tmp_path / "2.csv")), "name their columns differently")


def test_columns_of_one_name(cli: Cli, books: Books, tmp_path: Path, place: Place) -> None:
    file = tmp_path / "a.csv"
    for header in ("order_id,quantity,v,v", "order_id,quantity,v,V"):
        file.write_text(f"{header}\nA,1,2,3\n")
        names = header.removeprefix("order_id,quantity,").replace(",", ", ")
        refused(
            books, start(cli, place(file)), f"{file}: its first line must name the columns, each once; it names {names}"
        )
    # Cells without a name are nobody's.
    file.write_text("order_id,quantity,,\nA,1,2,3\n")
    assert start(cli, place(file)).code == 0


def test_a_blank_beside_a_name_is_shown(cli: Cli, books: Books, tmp_path: Path, place: Place) -> None:
    (tmp_path / "a.csv").write_text("order_id , quantity\nA,1\n")
    says = "there is no column 'order_id' to make ids of; the columns are 'order_id ', ' quantity'"
    refused(books, start(cli, place(tmp_path / "a.csv")), says)


def test_carriage_returns_alone_are_no_line_ends(cli: Cli, books: Books, tmp_path: Path, place: Place) -> None:
    (tmp_path / "a.csv").write_bytes(b"order_id,quantity\rA,1\rB,1\r")
    refused(books, start(cli, place(tmp_path / "a.csv")), "or holds carriage returns. The lines of a CSV file end with")


def test_a_first_line_with_a_quote_that_is_never_closed(cli: Cli, books: Books, tmp_path: Path, place: Place) -> None:
    (tmp_path / "a.csv").write_text('order_id,"quantity\nA,1\nB,1\n')
    says = "its first line, which names the columns, cannot be read: the quote that opens in line 1 is never closed"
    refused(books, start(cli, place(tmp_path / "a.csv")), f"{says}. Correct it.")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_utf_16_is_named_as_such(
    cli: Cli, books: Books, tmp_path: Path, place: Place, name: str, encoding: str
) -> None:
    text = {"a.csv": "order_id,quantity\nA,1\n", "a.jsonl": '{"order_id": "A", "quantity": 1}\n'}[name]
    (tmp_path / name).write_text(text, encoding=encoding)
    shown = "UTF-32" if encoding == "utf-32" else "UTF-16"
    answer = start(cli, place(tmp_path / name))
    refused(books, answer, f"error (declaration): {tmp_path / name} ")
    assert f"is written in {shown}" in answer.err


def test_a_first_line_in_latin_1(cli: Cli, books: Books, tmp_path: Path, place: Place) -> None:
    (tmp_path / "a.csv").write_bytes("order_id,quantity,größe\nA,1,2\n".encode("latin-1"))
    refused(books, start(cli, place(tmp_path / "a.csv")), "a.csv: its first line is not UTF-8")


def parquet(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table({"order_id": ["A"], "quantity": [1], **columns}), path)
    return path


@pytest.mark.parametrize("names", [["v", "v"], ["v", "V"]])
def test_columns_of_one_name_in_a_parquet_file(
    cli: Cli, books: Books, tmp_path: Path, place: Place, names: list[str]
) -> None:
    file = tmp_path / "a.parquet"
    columns = [pa.array(["A"]), pa.array([1]), pa.array([1]), pa.array([1])]
    pq.write_table(pa.Table.from_arrays(columns, names=["order_id", "quantity", *names]), file)
    says = f"{file} has columns of equal name: {', '.join(names)}" if place is str else "The column `v` already exists"
    refused(books, start(cli, place(file)), says)


def test_parquet_files_with_different_columns(cli: Cli, books: Books, tmp_path: Path) -> None:
    """In whatever order they come."""
    one, two = parquet(tmp_path / "1.parquet"), parquet(tmp_path / "2.parquet", fault=["x"])
    for files in ([one, two], [two, one], [tmp_path / "*.parquet"]):
        answer = start(cli, "--format", "parquet", *map(str, files))
        refused(books, answer, f"{two} has a column fault, and {one} has none of that name. Make them alike")


def test_parquet_files_elsewhere_are_merged(cli: Cli, books: Books, tmp_path: Path) -> None:
    parquet(tmp_path / "1.parquet")
    pq.write_table(pa.table({"order_id": ["B"], "quantity": [1], "fault": ["x"]}), tmp_path / "2.parquet")
    answer = start(cli, "--format", "parquet", BY_ADDRESS(tmp_path / "*.parquet"))
    # The column that the first one lacks is null there, which the message does not allow.
    assert (answer.json["started"], answer.json["quarantined"]) == (1, 1)
    assert {flow: order.fault for flow, order in books.waiting_messages().items()} == {"shop.order:B": "x"}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (pa.array([1], pa.int32()), pa.array([1], pa.int64())),
        (pa.array([1], pa.int64()), pa.array(["1"])),
        (pa.array([Decimal("1.1")], pa.decimal128(10, 1)), pa.array([Decimal("1.1")], pa.decimal128(10, 2))),
        (pa.array([[1]], pa.list_(pa.int32())), pa.array([[1]], pa.list_(pa.int64()))),
    ],
    ids=["int", "text", "decimal", "list"],
)
def test_parquet_files_with_different_types(
    cli: Cli, books: Books, tmp_path: Path, place: Place, first: pa.Array, second: pa.Array
) -> None:
    files = [parquet(tmp_path / "1.parquet", v=first), parquet(tmp_path / "2.parquet", v=second)]
    answer = start(cli, *map(place, files))
    refused(books, answer, "column v is of type " if place is str else "cannot be read as parquet: [CANNOT_MERGE")


def test_parquet_files_whose_types_differ_only_in_how_they_are_written(cli: Cli, books: Books, tmp_path: Path) -> None:
    """By other programs, or other versions of them."""
    moment = pa.array([1], pa.int64())
    for number, (unit, text) in enumerate([("ms", pa.string()), ("us", pa.large_string())]):
        table = pa.table({
            "order_id": pa.array([str(number)], text),
            "quantity": [1],
            "at": moment.cast(pa.timestamp(unit, "UTC")),
            "tags": pa.array([["x"]], pa.list_(pa.field("item" if number else "element", text))),
        })  # fmt: skip
        pq.write_table(table, tmp_path / f"{number}.parquet", use_compliant_nested_type=bool(number))
    assert start(cli, str(tmp_path / "*.parquet")).json["started"] == 2


def test_columns_of_parquet_may_have_dots_in_their_names(cli: Cli, books: Books, tmp_path: Path) -> None:
    """Beside columns whose values have parts, of which Parquet keeps each as a column."""
    parts = {"of": [{"x": 1, "y": [{"z": "a"}]}], "tags": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))}
    kinds = {"kind": pa.array(["a"]).dictionary_encode(), "list": [["x"]], "of.x": ["1"]}
    for number in range(2):
        parquet(tmp_path / f"{number}.parquet", **parts, **kinds, **{"order.id": [f"O{number}"], "order": [2]})
    answer = cli.initiate(tmp_path / "*.parquet", to="shop.order", by="order.id")
    assert answer.json["started"] == 2, answer
    assert set(books.waiting_messages()) == {"shop.order:O0", "shop.order:O1"}


def test_parquet_with_nanoseconds(cli: Cli, books: Books, tmp_path: Path) -> None:
    """As pandas writes moments."""
    file = parquet(tmp_path / "a.parquet", at=pa.array([1], pa.timestamp("ns", "UTC")))
    refused(books, start(cli, str(file)), f"column at of {file} has timestamps in nanoseconds, which Spark does not re")


def test_a_folder_whose_files_are_in_folders_of_its_own(cli: Cli, books: Books, tmp_path: Path, place: Place) -> None:
    """Spark would read none of them, and say nothing."""
    (tmp_path / "orders" / "march").mkdir(parents=True)
    (tmp_path / "orders" / "march" / "a.csv").write_text("order_id,quantity\nA,1\n")
    answer = start(cli, place(tmp_path / "orders"), "--format", "csv")
    refused(books, answer, f"{tmp_path}/orders has files in folders of its own, such as ")
    assert f"{tmp_path}/orders/march/a.csv, which are not read with it" in answer.err


def test_a_folder_with_folders_and_other_files(cli: Cli, books: Books, tmp_path: Path, place: Place) -> None:
    """Spark would read files of the folders by days alone, and say nothing."""
    folder = tmp_path / "orders"
    (folder / "day=1" / "more").mkdir(parents=True)
    for number, name in enumerate(("day=1/a.csv", "day=1/more/b.csv")):
        (folder / name).write_text(f"order_id,quantity\n{number},1\n")
    assert start(cli, place(folder), "--format", "csv").json["started"] == 2
    (folder / "late").mkdir()
    for name in ("c.csv", "late/d.csv"):
        (folder / name).write_text("order_id,quantity\nA,1\n")
        answer = start(cli, place(folder), "--format", "csv")
        assert (answer.code, "and other files, such as " in answer.err) == (2, True), answer
        assert name in answer.err
        (folder / name).unlink()


def test_a_file_that_spark_would_leave_out(cli: Cli, books: Books, tmp_path: Path) -> None:
    line = '{"order_id": "A", "quantity": 1}\n'
    for name in ("_a.json", ".a.json"):
        (tmp_path / name).write_text(line)
        refused(books, start(cli, str(tmp_path / name)), f"{name} would be left out: to Spark, a file whose name beg")
    # A pattern and a folder leave out what is not complete.
    refused(books, start(cli, str(tmp_path / "*a.json")), "does not exist")
    folder = tmp_path / "_orders"
    folder.mkdir()
    for name in ("a.json", "_b.json", ".c.json"):
        (folder / name).write_text(line)
    (folder / "_SUCCESS").touch()
    for words in ([folder], [folder / "*"], [folder / "a.json", folder / "_SUCCESS"]):
        assert start(cli, "--format", "json", *map(str, words)).json["rows_in"] == 1


@pytest.mark.parametrize("name", ["quantity", "Quantity"])
def test_a_column_that_the_name_of_a_folder_gives_too(
    cli: Cli, books: Books, tmp_path: Path, place: Place, name: str
) -> None:
    """Spark takes the folder's value, and drops that of the row without a word."""
    folder = tmp_path / "orders" / f"{name}=7"
    folder.mkdir(parents=True)
    (folder / "a.csv").write_text("order_id,quantity\nA,1\n")
    says = f"column {name} is in the files and in the names of their folders"
    refused(books, start(cli, place(tmp_path / "orders"), "--format", "csv"), says)
    # A folder that is named itself gives its files nothing.
    assert start(cli, place(folder), "--format", "csv").code == 0
    assert books.waiting_messages()["shop.order:A"].quantity == 1


def test_a_column_of_parquet_that_the_name_of_a_folder_gives_too(cli: Cli, books: Books, tmp_path: Path) -> None:
    folder = tmp_path / "orders" / "quantity=7"
    folder.mkdir(parents=True)
    parquet(folder / "a.parquet")
    answer = start(cli, str(tmp_path / "orders"), "--format", "parquet")
    refused(books, answer, "column quantity is in the files and in the names of their folders")


def test_the_names_of_folders_give_their_values_to_lines_of_json(
    cli: Cli, books: Books, tmp_path: Path, place: Place
) -> None:
    folder = tmp_path / "orders" / "fault=x"
    folder.mkdir(parents=True)
    lines = '{"order_id": "A", "quantity": 1}', '{"order_id": "B", "quantity": 1, "fault": "y"}', "{"
    (folder / "a.jsonl").write_text("\n".join(lines))
    answer = start(cli, place(tmp_path / "orders"), "--format", "json")
    assert (answer.json["started"], answer.json["quarantined"]) == (1, 2)
    assert books.waiting_messages()["shop.order:A"].fault == "x"
    says = "the key 'fault' is in the line and in the name of a folder"
    assert [(record, says in reason) for _, record, reason in books.quarantine()] == [(2, True), (3, False)]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (gzip.compress(b"order_id,quantity\nA,1\n"), "is compressed, and its name does not end in .gz"),
        (b"PK\x03\x04\0\0\0\0", "holds NUL bytes: it is written in UTF-16, or is no text"),
    ],
    ids=["gzip", "zip"],
)
def test_a_file_that_is_no_text(
    cli: Cli, books: Books, tmp_path: Path, place: Place, content: bytes, says: str
) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    refused(books, start(cli, place(tmp_path / "a.csv")), f"{tmp_path / 'a.csv'} {says}")


def test_a_suffix_in_capitals_is_read_like_any(cli: Cli, books: Books, tmp_path: Path, place: Place) -> None:
    assert start(cli, place(pack(tmp_path / "a.CSV.GZ", "order_id,quantity\nA,1\n"))).json["started"] == 1


def test_a_compressed_file_that_is_none(cli: Cli, books: Books, tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_text("order_id,quantity\nA,1\n")
    refused(books, start(cli, str(tmp_path / "a.csv.gz")), f"{tmp_path / 'a.csv.gz'} cannot be read as csv")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"order_id": "2", "order_id": "3", "quantity": 1}', "the key 'order_id' occurs twice in one object"),
        ('{"order_id": "2", "quantity": 1, "quantity": 2}', "the key 'quantity' occurs twice in one object"),
        ('{"order_id": "2", "quantity": 1, "more": {"a": 1, "a": 1}}', "the key 'a' occurs twice in one object"),
        ('{"order_id": ["2"], "quantity": 1}', "the id column 'order_id' is an object or an array"),
    ],
)
def test_a_line_of_json_that_says_one_thing_twice_is_quarantined(
    cli: Cli, books: Books, tmp_path: Path, line: str, reason: str
) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"order_id": "1", "quantity": 1}}\n{line}\n')
    answer = start(cli, str(tmp_path / "a.jsonl"))
    assert (answer.json["started"], answer.json["quarantined"], answer.json["balanced"]) == (1, 1, True)
    ((_, record, found),) = books.quarantine()
    assert (record, reason in found) == (2, True), found
    assert books.waiting_messages().keys() == {"shop.order:1"}


def test_an_id_of_json_is_the_number_as_it_is_written(cli: Cli, books: Books, tmp_path: Path) -> None:
    """As it is in a CSV file: 1.10 and 1.1 are two."""
    values = ["1.10", "1.1", "12345678901234567890", "true", "[1]"]
    lines = [f'{{"order_id": "x", "quantity": 1, "by": {by}}}' for by in values]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    answer = cli.initiate(tmp_path / "a.jsonl", "--flow-prefix", "o", to="shop.order", by="by")
    assert answer.json["started"] == 4
    assert books.waiting_messages().keys() == {f"o:{by}" for by in values[:4]}
    assert books.quarantine()[0][2].startswith("invalid-id: the id column 'by' is an object or an array")


def test_what_can_be_seen_without_spark_is_refused_before_java_starts(
    commands: Commands, books: Books, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("order_id , quantity\nA,1\n")
    words = ("--to", "shop.order", "--id", "order_id", "--app", module_of(tmp_path))
    answer = commands.start("initiate", tmp_path / "a.csv", *words, JAVA_HOME="/nowhere", PATH="").answer()
    refused(books, answer, "there is no column 'order_id' to make ids of")
