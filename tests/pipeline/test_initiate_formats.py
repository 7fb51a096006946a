"""``stagepost initiate``: what becomes of a file's cells and values, in each format."""

from __future__ import annotations

import datetime as dt
import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pyspark_stagepost.schemas import QUARANTINE
from stagepost.flow import codec, ids
from stagepost.pipeline.jobs.checking import Checker, ReadSettings, UnreadableValue, values_of
from stagepost.pipeline.jobs.records import Numbering
from stagepost.pipeline.transforms.identity import flow_id
from tests.pipeline.books import Books
from tests.pipeline.commands import Cli
from tests.pipeline.shop import Order, Picky, Product
from tests.pipeline.test_data_source import load

SEEN = dt.datetime(2026, 3, 1, 10, 20, 30, 123456, tzinfo=dt.UTC)
DAY = dt.date(2026, 2, 28)


def product(sku: str, name: str, pieces: int, price: str, **more: Any) -> Product:
    return Product(sku, name, pieces, Decimal(price), **{"colour": None, "weight": None, **more})


def by_flow(*products: Product) -> dict[str, Product]:
    return {f"shop.product:{each.sku.replace('%', '%25').replace(',', '%2C')}": each for each in products}


def csv(path: Path, *lines: str, end: str = "\n") -> Path:
    path.write_text(end.join(lines) + end)
    return path


HEADER = "sku;name;pieces;price;colour;weight;brand;rating;sold_out;added;seen_at"


def test_cells_of_a_csv_file_fill_the_fields_by_the_types_that_they_have(
    cli: Cli, books: Books, tmp_path: Path
) -> None:
    file = csv(
        tmp_path / "products.csv",
        HEADER,
        "plain;lamp;12;19.90;red;1.5;acme;5;true;2026-02-28;2026-03-01T10:20:30.123456Z",
        'quoted;"a ""big"" lamp; 3 pieces";"12";"19.90";"red";"1.5";"acme";"5";"false";'
        '"2026-02-28";"2026-03-01T00:00:00Z"',
        "empty;;0;0;;;;;;;",
        'empty and quoted;"";0;0;"";"";"";"";"";"";""',
        "blanks;  lamp  ;1;1; ;;;;;;",
        "exact;;1;12345678901234567890.123456789012345678;;;;;;;",
        "trailing zeros;;1;1.10;;;;;;;",
        "unicode žluťoučký 世界 \U0001f9fe;Żółw,ß;-7;-0.01;\u00a0;;;;;;",
        "a comma,%25 and a percent;'single';1;1;;;;;;;",
        "\\backslash;a\\;1;1;\\N;;;;;;",
        "null;null;1;1;null;;NULL;;;;",
        "exponent;;1;1e3;;;;;;;",
        end="\r\n",
    )
    answer = cli.initiate(file, "--separator", ";")
    assert answer.json["examples"] == []
    assert (answer.code, answer.json["started"], answer.json["balanced"]) == (0, 12, True)
    lamp = {"colour": "red", "weight": 1.5, "brand": "acme", "rating": 5, "added": DAY}
    assert books.waiting_messages() == by_flow(
        product("plain", "lamp", 12, "19.90", **lamp, sold_out=True, seen_at=SEEN),
        product(
            "quoted", 'a "big" lamp; 3 pieces', 12, "19.90", **lamp, seen_at=dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
        ),
        # Empty: the default where there is one, else nothing where that is allowed, else an empty text.
        product("empty", "", 0, "0"),
        product("empty and quoted", "", 0, "0"),
        product("blanks", "  lamp  ", 1, "1", colour=" "),
        product("exact", "", 1, "12345678901234567890.123456789012345678"),
        product("trailing zeros", "", 1, "1.10"),
        product("unicode žluťoučký 世界 \U0001f9fe", "Żółw,ß", -7, "-0.01", colour="\u00a0"),
        product("a comma,%25 and a percent", "'single'", 1, "1"),
        product("\\backslash", "a\\", 1, "1", colour="\\N"),
        product("null", "null", 1, "1", colour="null", brand="NULL"),
        product("exponent", "", 1, "1e3"),
    )
    prices = {each.sku: str(each.price) for each in books.waiting_messages().values()}
    assert (prices["trailing zeros"], prices["exact"]) == ("1.10", "12345678901234567890.123456789012345678")


def test_rows_that_do_not_fit_are_quarantined_each_with_its_reason_and_its_text(
    cli: Cli, books: Books, spark: SparkSession, tmp_path: Path
) -> None:
    file = csv(
        tmp_path / "products.csv",
        "sku;name;pieces;price;colour;weight",
        "good;lamp;1;1;;",
        "too few;lamp;1",
        "too many;lamp;1;1;;;;",
        "no number;lamp;many;1;;",
        "no decimal;lamp;1;a lot;;",
        "empty number;lamp;;1;;",
        ";no id;1;1;;",
        f"{'long' * 50};lamp;1;1;;",
        "control\x07;lamp;1;1;;",
        "too great;lamp;1e400;1;;",
        "no float;lamp;1;1;;heavy",
    )
    answer = cli.initiate(file, "--separator", ";")
    assert (answer.code, answer.json["started"], answer.json["quarantined"]) == (0, 1, 10)
    assert answer.json["balanced"]
    reasons = {record: (name, reason) for name, record, reason in books.quarantine()}
    assert {name for name, _ in reasons.values()} == {"products.csv"}
    expected = {
        2: "malformed: it has not as many cells as the first line has names",
        3: "malformed: it has not as many cells as the first line has names",
        4: "undecodable: does not fit Product: Expected `int`, got `str` - at `$.pieces`",
        5: "undecodable: does not fit Product: Invalid decimal string - at `$.price`",
        6: "undecodable: does not fit Product: Expected `int`, got `str` - at `$.pieces`",
        7: "no-id: an id column has no value",
        8: "invalid-id: flow_id is 213 characters long, at most 200 are allowed",
        9: "invalid-id: flow_id must be printable, without control characters or line ends",
        10: "undecodable: does not fit Product: Number out of range - at `$.pieces`",
        11: "undecodable: does not fit Product: Expected `float | null`, got `str` - at `$.weight`",
    }
    found = {record: reason for record, (_, reason) in reasons.items()}
    assert {record: reason[: len(expected.get(record, ""))] for record, reason in found.items()} == expected
    rows = dict(books.rows("SELECT record, row FROM stagepost_quarantine"))
    assert rows[3] == "too many;lamp;1;1;;;;"
    assert json.loads(rows[4]) == {
        "sku": "no number", "name": "lamp", "pieces": "many", "price": "1", "colour": "", "weight": ""
    }  # fmt: skip
    frame = load(spark, books, "quarantine").where(F.col("run_id") == answer.json["run_id"])
    assert frame.schema == QUARANTINE
    assert {row.record: (Path(row.file).name, row.reason) for row in frame.collect()} == reasons
    assert {row.record: row.row for row in frame.collect()} == rows
    assert [row.flow_id for row in frame.where("record = 4").collect()] == ["shop.product:no number"]


def test_an_id_that_is_an_empty_text_in_quotes_is_missing_too(cli: Cli, books: Books, tmp_path: Path) -> None:
    file = csv(tmp_path / "a.csv", "sku,name,pieces,price,colour,weight", '"",lamp,1,1,,', '"",chair,1,1,,')
    answer = cli.initiate(file)
    assert (answer.json["started"], answer.json["quarantined"]) == (0, 2)
    assert {reason.partition(":")[0] for _, _, reason in books.quarantine()} == {"no-id"}


def test_columns_may_be_more_than_the_message_has_and_in_any_order(cli: Cli, books: Books, tmp_path: Path) -> None:
    file = csv(tmp_path / "a.tsv", "extra\tquantity\torder_id\tmore", "x\t3\tA\ty")
    answer = cli.initiate(file, "--separator", "\t", to="shop.order", by="order_id")
    assert answer.code == 0
    assert books.waiting_messages() == {"shop.order:A": Order("A", 3)}


def test_ids_may_be_made_of_several_columns_that_the_message_does_not_have(
    cli: Cli, books: Books, tmp_path: Path
) -> None:
    file = csv(tmp_path / "a.csv", "region,number,order_id,quantity", "EU,1,A,1", '"E,U",1,B,2', ",1,C,3")
    answer = cli.initiate(file, "--flow-prefix", "imported", to="shop.order", by="region, number")
    assert (answer.json["started"], answer.json["quarantined"]) == (2, 1)
    assert set(books.waiting_messages()) == {"imported:EU,1", "imported:E%2CU,1"}


def test_lines_of_json_are_decoded_as_the_message_type_says(cli: Cli, books: Books, tmp_path: Path) -> None:
    lines = [
        {"sku": "full", "name": "lamp", "pieces": 12, "price": "19.90", "colour": "red", "weight": 1.5, "rating": 5,
         "labels": ["a", "b"], "extra": {"x": 1}, "added": "2026-02-28"},
        {"weight": None, "colour": None, "price": "1.10", "pieces": 1, "name": "žluťoučký \u2028 \U0001f9fe",
         "sku": "ž,1"},
        {"sku": "empty", "name": "", "pieces": 0, "price": "0", "colour": "", "weight": 2},
    ]  # fmt: skip
    text = "\n".join([json.dumps(lines[0]), "", "  ", json.dumps(lines[1], ensure_ascii=False), json.dumps(lines[2])])
    # As it is written, and not as a float of it.
    text += '\n{"sku": "exact", "name": "", "pieces": 1, "price": 1.10, "colour": null, "weight": 1e2}\n'
    file = tmp_path / "products.jsonl"
    file.write_text(text)
    answer = cli.initiate(file)
    assert (answer.code, answer.json["examples"]) == (0, [])
    assert books.waiting_messages() == by_flow(
        product("full", "lamp", 12, "19.90", colour="red", weight=1.5, rating=5, labels=["a", "b"], added=DAY),
        product("ž,1", "žluťoučký \u2028 \U0001f9fe", 1, "1.10"),
        product("empty", "", 0, "0", colour="", weight=2.0),
        product("exact", "", 1, "1.10", weight=100.0),
    )
    assert str(books.waiting_messages()["shop.product:exact"].price) == "1.10"


def test_lines_of_json_that_do_not_fit_are_quarantined_with_their_text(cli: Cli, books: Books, tmp_path: Path) -> None:
    lines = {
        '{"sku": "text", "name": "n", "pieces": "12", "price": "1", "colour": null, "weight": null}': "undecodable",
        '{"sku": "missing", "name": "n"}': "undecodable",
        '{"sku": null, "name": "n", "pieces": 1, "price": "1", "colour": null, "weight": null}': "undecodable",
        '{"name": "n", "pieces": 1, "price": "1", "colour": null, "weight": null}': "undecodable",
        '{"sku": " blank ", "name": "n", "pieces": 1, "price": "1", "colour": null, "weight": null}': "invalid-id",
    }
    file = tmp_path / "products.ndjson"
    file.write_text("\n".join(lines))
    answer = cli.initiate(file)
    assert (answer.code, answer.json["started"], answer.json["quarantined"]) == (1, 0, len(lines))
    assert [reason.partition(":")[0] for _, _, reason in books.quarantine()] == list(lines.values())
    assert [row for (row,) in books.rows("SELECT row FROM stagepost_quarantine ORDER BY record")] == list(lines)


def test_a_line_that_is_no_json_is_said_to_be_none(cli: Cli, books: Books, tmp_path: Path) -> None:
    file = tmp_path / "products.json"
    file.write_text('{"sku": "cut off", "name": \n[1, 2]\nsku=1\n')
    assert cli.initiate(file).json["quarantined"] == 3
    assert [reason.partition(":")[0] for _, _, reason in books.quarantine()] == ["undecodable"] * 3


def test_values_of_parquet_fill_the_fields_by_their_own_types(cli: Cli, books: Books, tmp_path: Path) -> None:
    table = pa.table(
        {
            "sku": pa.array(["A", "žlutý", "C"]),
            "name": pa.array(["lamp", "", "chair"]),
            "pieces": pa.array([12, -1, 2**62], pa.int64()),
            "price": pa.array(
                [Decimal("19.90"), Decimal("0.01"), Decimal("12345678901234567890.12")], pa.decimal128(30, 2)
            ),
            "colour": pa.array(["red", None, ""]),
            "weight": pa.array([1.5, None, 0.1], pa.float64()),
            "brand": pa.array(["acme", "", "ž"], pa.large_string()),
            "rating": pa.array([5, 1, 2], pa.int8()),
            "sold_out": pa.array([True, False, True]),
            "added": pa.array([DAY, None, dt.date(1969, 7, 20)]),
            "seen_at": pa.array([SEEN, SEEN, SEEN], pa.timestamp("us", "UTC")),
            "labels": pa.array([["a", "b"], [], ["c"]], pa.list_(pa.string())),
        }
    )
    pq.write_table(table, tmp_path / "products.parquet")
    answer = cli.initiate(tmp_path / "products.parquet")
    assert (answer.code, answer.json["examples"]) == (0, [])
    lamp = {"colour": "red", "weight": 1.5, "brand": "acme", "rating": 5, "sold_out": True, "added": DAY}
    moon = {"colour": "", "weight": 0.1, "brand": "ž", "rating": 2, "sold_out": True, "added": dt.date(1969, 7, 20)}
    assert books.waiting_messages() == by_flow(
        product("A", "lamp", 12, "19.90", **lamp, seen_at=SEEN, labels=["a", "b"]),
        product("žlutý", "", -1, "0.01", brand="", rating=1, seen_at=SEEN),
        product("C", "chair", 2**62, "12345678901234567890.12", **moon, seen_at=SEEN, labels=["c"]),
    )


def test_values_of_parquet_that_do_not_fit_are_quarantined(cli: Cli, books: Books, tmp_path: Path) -> None:
    table = pa.table({"order_id": ["a", "b", None], "quantity": pa.array([1, None, 3], pa.int32())})
    pq.write_table(table, tmp_path / "orders.parquet")
    answer = cli.initiate(tmp_path / "orders.parquet", to="shop.order", by="order_id")
    assert (answer.json["started"], answer.json["quarantined"]) == (1, 2)
    assert [reason.partition(":")[0] for _, _, reason in books.quarantine()] == ["undecodable", "undecodable"]


def test_a_compressed_file_is_read_and_named_by_what_it_holds(cli: Cli, books: Books, tmp_path: Path) -> None:
    (tmp_path / "orders.csv.gz").write_bytes(gzip.compress(b"order_id,quantity\nA,1\nB,x\n"))
    answer = cli.initiate(tmp_path / "orders.csv.gz", to="shop.order", by="order_id")
    assert (answer.json["started"], answer.json["quarantined"]) == (1, 1)
    assert books.quarantine()[0][:2] == ("orders.csv.gz", 2)


def test_a_flow_that_was_started_from_a_file_is_the_one_that_the_app_starts(
    cli: Cli, books: Books, tmp_path: Path
) -> None:
    """The same flow id, target and content: neither starts what the other did, and the ids are Python's own."""
    app = books.app
    target = app.target("shop.product")
    lamp = Product("A,1", "lamp", 12, Decimal("19.90"), None, 1.5, labels=["ž"], added=dt.date(2026, 2, 28))
    chair = Product("ž%", "chair", 1, Decimal("5"), "red", None)
    assert app.start(target, lamp, flow_id="p:A%2C1").is_new
    lines = [bytes(codec.encode(each, Product)).decode() for each in (lamp, chair)]
    (tmp_path / "products.jsonl").write_text("\n".join(lines))
    answer = cli.initiate(tmp_path / "products.jsonl", "--flow-prefix", "p")
    assert (answer.json["started"], answer.json["repeated"], answer.json["quarantined"]) == (1, 1, 0)
    again = app.start(target, chair, flow_id="p:ž%25")
    assert not again.is_new
    keys = {key for (key,) in books.rows("SELECT key FROM stagepost_accepted")}
    assert keys == {ids.from_key(flow, "shop.product", 0) for flow in ("p:A%2C1", "p:ž%25")}
    assert again.message_id in keys


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet"])
def test_1_and_1_0_in_a_float_field_are_one_content_for_the_app_and_for_a_file(
    cli: Cli, books: Books, tmp_path: Path, name: str
) -> None:
    app = books.app
    for sku, weight in (("A", 1), ("B", 1.0)):
        assert app.start(app.target("shop.product"), product(sku, "", 1, "1", weight=weight), flow_id=f"p:{sku}").is_new
    if name == "a.parquet":
        rows = {"sku": ["A", "B"], "name": "", "pieces": 1, "price": "1", "colour": None, "weight": 1}
        table = {key: value if isinstance(value, list) else [value] * 2 for key, value in rows.items()}
        pq.write_table(pa.table({**table, "colour": pa.array([None, None], pa.string())}), tmp_path / name)
    elif name == "a.csv":
        csv(tmp_path / name, "sku,name,pieces,price,colour,weight", "A,,1,1,,1.0", "B,,1,1,,1")
    else:
        rest = '"name": "", "pieces": 1, "price": "1", "colour": null, "weight"'
        (tmp_path / name).write_text(f'{{"sku": "A", {rest}: 1.0}}\n{{"sku": "B", {rest}: 1}}\n')
    answer = cli.initiate(tmp_path / name, "--flow-prefix", "p")
    assert (answer.json["repeated"], answer.json["quarantined"]) == (2, 0)


def test_a_started_row_runs_its_flow_to_the_end_and_its_reply_finds_its_way(
    cli: Cli, books: Books, tmp_path: Path
) -> None:
    file = csv(tmp_path / "orders.csv", "order_id,quantity", *(f"{each},2" for each in range(5)))
    assert cli.initiate(file, "--reply-to", "shop.done", "--flow-prefix", "o", to="shop.order", by="order_id").code == 0
    books.drain()
    found = books.rows("SELECT stage, count(*), sum(quantity) FROM ledger GROUP BY stage ORDER BY stage")
    assert found == [(stage, 5, 10) for stage in sorted(("shop.order", "shop.stock", "shop.order.pack", "shop.done"))]


@pytest.mark.parametrize("name", ["orders.csv", "orders.jsonl", "empty.csv"])
def test_a_field_that_a_file_leaves_to_its_default_makes_the_message_that_the_app_makes(
    cli: Cli, books: Books, tmp_path: Path, name: str
) -> None:
    app = books.app
    app.start(app.target("shop.order"), Order("A", 3), flow_id="shop.order:A")
    rows = {
        "orders.csv": "order_id,quantity\nA,3\n",
        "orders.jsonl": '{"order_id": "A", "quantity": 3}\n',
        "empty.csv": "order_id,quantity,fault\nA,3,\n",
    }
    (tmp_path / name).write_text(rows[name])
    answer = cli.initiate(tmp_path / name, to="shop.order", by="order_id")
    assert (answer.json["repeated"], answer.json["quarantined"]) == (1, 0)


def test_cells_that_are_not_utf_8_are_quarantined(cli: Cli, books: Books, tmp_path: Path) -> None:
    """As a file that was exported in Latin-1: Ém and Èm are two."""
    (tmp_path / "orders.csv").write_bytes("order_id,quantity\nÉm,1\nÈm,1\nok,1\n".encode("latin-1"))
    answer = cli.initiate(tmp_path / "orders.csv", to="shop.order", by="order_id")
    assert (answer.json["started"], answer.json["repeated"], answer.json["quarantined"]) == (1, 0, 2)


def test_a_line_of_json_that_is_not_utf_8_is_quarantined_and_no_other(cli: Cli, books: Books, tmp_path: Path) -> None:
    (tmp_path / "orders.jsonl").write_bytes(f"{json_lines('Ém', 'Èm')}\n{json_lines('ok')}".encode("latin-1"))
    answer = cli.initiate(tmp_path / "orders.jsonl", to="shop.order", by="order_id")
    assert (answer.json["started"], answer.json["quarantined"]) == (1, 2)


def json_lines(*order_ids: str) -> str:
    return "\n".join(json.dumps({"order_id": each, "quantity": 1}, ensure_ascii=False) for each in order_ids)


def test_a_row_that_the_message_type_itself_refuses_is_quarantined_and_no_other(
    cli: Cli, books: Books, tmp_path: Path
) -> None:
    file = csv(tmp_path / "a.csv", "sku", "allowed", "forbidden", "fine")
    answer = cli.initiate(file, to="shop.picky")
    assert (answer.json["started"], answer.json["quarantined"]) == (2, 1)


NOT_TEXT = pa.Array.from_buffers(pa.string(), 2, pa.array([b"A", b"\xff"]).buffers())
FAR = 4_000_000


@pytest.mark.parametrize(("sku", "says"), [("forbidden", "NotForSale: forbidden"), ("mute", "Mute: (its text")])
def test_checker_gives_a_row_that_its_message_refuses_a_reason(sku: str, says: str) -> None:
    """An exception would end the task, and the next run would meet the same row."""
    checker = Checker(ReadSettings("csv", ["sku"], "p", ",", ["sku"], Numbering({("a.csv", 0): 0}, {})), Picky)
    checked = checker.check("a.csv", 0, 1, sku.encode(), None)
    assert checked is not None
    assert (checked.body, checked.flow_id) == (None, flow_id("p", [sku]))
    assert str(checked.reason).startswith(f"undecodable: {says}")


@pytest.mark.parametrize("column", [NOT_TEXT, pa.array([1, FAR], pa.int32()).cast(pa.date32())], ids=["text", "date"])
def test_only_the_value_that_python_cannot_hold_is_unreadable(column: pa.Array) -> None:
    first, second = values_of(column)
    assert first in ("A", dt.date(1970, 1, 2))
    assert isinstance(second, UnreadableValue)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("surrogate.jsonl", '{"order_id": "\\ud800", "quantity": 1}'),
        ("key.jsonl", '{"order_id": "B", "quantity": 1, "\\ud800": 1, "\\ud800": 2}'),
        ("nul.jsonl", '{"order_id": "a\\u0000b", "quantity": 1}'),
        ("nul.csv", "a\0b,1"),
        ("id.parquet", {"order_id": NOT_TEXT}),
        ("text.parquet", {"more": NOT_TEXT}),
        ("date.parquet", {"more": pa.array([1, FAR], pa.int32()).cast(pa.date32())}),
        ("moment.parquet", {"more": pa.array([1, FAR * 86_400_000_000], pa.int64()).cast(pa.timestamp("us", "UTC"))}),
    ],
)
def test_a_value_that_no_text_or_moment_can_hold_is_quarantined_and_ends_no_job(
    cli: Cli, books: Books, tmp_path: Path, name: str, content: str | dict[str, pa.Array]
) -> None:
    file = tmp_path / name
    if isinstance(content, dict):
        pq.write_table(pa.table({"order_id": ["A", "B"], "quantity": [1, 1], **content}), file)
    elif file.suffix == ".csv":
        file.write_text(f"order_id,quantity\nA,1\n{content}\n")
    else:
        file.write_text(f"{json_lines('A')}\n{content}\n")
    answer = cli.initiate(file, to="shop.order", by="order_id")
    assert (answer.json["started"], answer.json["quarantined"], answer.json["balanced"]) == (1, 1, True), answer
    ((_, record, reason),) = books.quarantine()
    assert (record, reason.isprintable()) == (2, True)


def test_what_a_message_says_of_a_row_that_it_refuses_may_not_be_printable(
    cli: Cli, books: Books, tmp_path: Path
) -> None:
    file = csv(tmp_path / "a.csv", "sku", "mute", "fine")
    answer = cli.initiate(file, to="shop.picky")
    assert (answer.json["started"], answer.json["quarantined"]) == (1, 1)
    assert books.quarantine()[0][2] == "undecodable: Mute: (its text cannot be printed: RuntimeError)"


@pytest.mark.parametrize("indent", [None, 2])
def test_json_arrays_and_objects_of_several_lines_are_cut_into_records(
    cli: Cli, books: Books, tmp_path: Path, indent: int | None
) -> None:
    orders = [{"order_id": f"a{n}", "quantity": n, "more": "[{,"} for n in range(3)]
    (tmp_path / "1.json").write_text("\n" + json.dumps([*orders, {"order_id": "bad"}, 7], indent=indent))
    with gzip.open(tmp_path / "2.json.gz", "wt") as file:
        file.write("\n".join(json.dumps({"order_id": f"b{n}", "quantity": n}, indent=2) for n in range(2)))
    (tmp_path / "3.json").write_text('{"order_id": "c", "quantity": 1}\n\n{"order_id": "d", "quantity": 1}\n')
    (tmp_path / "4.json").write_text('[{"order_id": "e", "quantity": 1},\n{"order_id": "f]')
    (tmp_path / "5.json").write_text("[]")
    answer = cli.initiate(*sorted(tmp_path.glob("*.json*")), "--flow-prefix", "o", to="shop.order", by="order_id")
    assert (answer.json["rows_in"], answer.json["started"], answer.json["balanced"]) == (11, 8, True)
    assert sorted(books.waiting_messages()) == ["o:a0", "o:a1", "o:a2", "o:b0", "o:b1", "o:c", "o:d", "o:e"]
    assert [(name, record, reason.partition(" ")[0]) for name, record, reason in books.quarantine()] == [
        ("1.json", 4, "undecodable:"),
        ("1.json", 5, "undecodable:"),
        ("4.json", 2, "malformed:"),
    ]
