"""``stagepost initiate``: what cannot be done as it was said is said in one paragraph, and nothing is started."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.books import Books
from tests.pipeline.commands import Answer, Cli


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    file = tmp_path / "orders.csv"
    file.write_text("order_id,quantity\nA,1\n")
    return file


def refused(books: Books, answer: Answer, says: str) -> None:
    assert answer.code == 2, answer
    assert answer.is_one_paragraph, answer.err
    assert says in answer.err
    assert answer.out == ""
    assert books.waiting() == 0
    assert books.number("SELECT count(*) FROM stagepost_run") == 0


def test_a_file_that_is_not_there(cli: Cli, books: Books, orders: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing.csv"
    refused(books, cli.initiate(missing, to="shop.order", by="order_id"), f"{missing} does not exist")
    refused(books, cli.initiate(orders, missing, to="shop.order", by="order_id"), f"{missing} does not exist")
    refused(books, cli.initiate(tmp_path / "*.tsv", to="shop.order", by="order_id"), f"{tmp_path}/*.tsv does not exist")
    says = f"missing.csv does not exist in the folder {Path.cwd()}. Check its name."
    refused(books, cli.initiate("missing.csv", to="shop.order", by="order_id"), says)


def test_a_format_that_a_name_does_not_say(cli: Cli, books: Books, tmp_path: Path) -> None:
    file = tmp_path / "orders.txt"
    file.write_text("order_id,quantity\nA,1\n")
    refused(
        books,
        cli.initiate(file, to="shop.order", by="order_id"),
        "its suffix names no known format; name it: --format csv or json or parquet",
    )
    assert cli.initiate(file, "--format", "csv", to="shop.order", by="order_id").code == 0


def test_files_of_several_formats(cli: Cli, books: Books, orders: Path, tmp_path: Path) -> None:
    lines = tmp_path / "more.jsonl"
    lines.write_text('{"order_id": "B", "quantity": 1}\n')
    says = f"{orders} is csv by its suffix, and {lines} is json. Start one after the other"
    refused(books, cli.initiate(orders, lines, to="shop.order", by="order_id"), says)


def test_a_format_that_there_is_not(cli: Cli, orders: Path) -> None:
    answer = cli.initiate(orders, "--format", "xml", to="shop.order", by="order_id")
    assert answer.code == 2
    assert "'xml' is not one of 'csv', 'json', 'parquet'" in answer.err


def test_an_endpoint_that_there_is_not(cli: Cli, books: Books, orders: Path) -> None:
    says = (
        "app 'shop' has no endpoint 'shop.odrer'; it has: shop.broken, shop.done, shop.gated, shop.later, "
        "shop.note, shop.order, shop.picky, shop.product, shop.stock"
    )
    refused(books, cli.initiate(orders, to="shop.odrer", by="order_id"), says)
    refused(books, cli.initiate(orders, "--reply-to", "shop.odrer", to="shop.order", by="order_id"), says)


def test_a_later_stage_is_no_endpoint_to_start_at(cli: Cli, books: Books, orders: Path) -> None:
    refused(books, cli.initiate(orders, to="shop.order.pack", by="order_id"), "has no endpoint 'shop.order.pack'")


def test_a_column_that_there_is_not(cli: Cli, books: Books, orders: Path) -> None:
    refused(
        books,
        cli.initiate(orders, to="shop.order", by="orderid"),
        "there is no column 'orderid' to make ids of; the columns are order_id, quantity",
    )
    refused(
        books,
        cli.initiate(orders, to="shop.order", by="order_id,region"),
        "there is no column 'region' to make ids of; the columns are order_id, quantity",
    )
    # Names are told apart by their case, as fields are.
    refused(books, cli.initiate(orders, to="shop.order", by="Order_Id"), "there is no column 'Order_Id'")


@pytest.mark.parametrize("columns", ["", " ", "order_id,", ","])
def test_a_name_that_cannot_be_a_columns(cli: Cli, books: Books, orders: Path, columns: str) -> None:
    refused(books, cli.initiate(orders, to="shop.order", by=columns), "cannot be the name of an id column")


def test_columns_that_the_message_needs(cli: Cli, books: Books, tmp_path: Path) -> None:
    file = tmp_path / "orders.csv"
    file.write_text("order_id;count\nA;1\n")
    refused(
        books,
        cli.initiate(file, "--separator", ";", to="shop.order", by="order_id"),
        "shop.order takes messages of the type Order, which needs quantity; the columns are order_id, "
        "count. Name the columns after the fields.",
    )
    # The separator was forgotten.
    refused(
        books,
        cli.initiate(file, to="shop.order", by="order_id"),
        "there is no column 'order_id' to make ids of; the only column is order_id;count. If ';' separates the cells, "
        "name it: --separator ';'",
    )
    file.write_text("order_id\tcount\nA\t1\n")
    says = r"the only column is 'order_id\tcount'. If '\t' separates the cells, name it: --separator '\t'"
    refused(books, cli.initiate(file, to="shop.order", by="order_id"), says)


def test_a_first_line_that_does_not_name_the_columns(cli: Cli, books: Books, tmp_path: Path) -> None:
    file = tmp_path / "orders.csv"
    file.write_text("")
    refused(
        books, cli.initiate(file, to="shop.order", by="order_id"), "its first line must name the columns, each once"
    )
    file.write_text("order_id,quantity,ORDER_ID\nA,1,B\n")
    assert cli.initiate(file, to="shop.order", by="order_id").code == 2


def test_columns_of_one_name(cli: Cli, books: Books, tmp_path: Path) -> None:
    file = tmp_path / "orders.csv"
    file.write_text("order_id,quantity,order_id\nA,1,B\n")
    answer = cli.initiate(file, to="shop.order", by="order_id")
    refused(books, answer, "its first line must name the columns, each once; it names order_id, order_id")


def test_a_database_that_is_none(cli: Cli, books: Books, orders: Path) -> None:
    words = ("initiate", str(orders), "--to", "shop.order", "--id", "order_id", "--app", cli.app)
    # The last one said counts.
    refused(books, cli(*words, url="mysql://here/shop"), "is not a database URL Stagepost knows")


def test_an_app_that_is_none(cli: Cli, books: Books, orders: Path) -> None:
    words = ("initiate", str(orders), "--to", "shop.order", "--id", "order_id")
    refused(books, cli(*words), "no app is named. Name it as MODULE:APP")
    refused(books, cli(*words, "--app", "no_such_module:app"), "no module 'no_such_module'")
    refused(books, cli(*words, "--app", cli.app.replace(":app", ":shop")), "does not exist. Apps there: shop_")


@pytest.mark.parametrize(("target", "reply_to"), [("shop.done", "shop.order"), ("shop.order", "shop.stock")])
def test_a_reply_that_never_comes_or_does_not_fit(
    cli: Cli, books: Books, tmp_path: Path, target: str, reply_to: str
) -> None:
    file = tmp_path / "orders.csv"
    file.write_text("order_id,quantity\nA,1\n")
    answer = cli.initiate(file, "--reply-to", reply_to, to=target, by="order_id")
    refused(books, answer, "")


@pytest.mark.parametrize("separator", ["", "\\"])
def test_a_separator_that_cannot_be_one(cli: Cli, books: Books, orders: Path, separator: str) -> None:
    refused(books, cli.initiate(orders, "--separator", separator, to="shop.order", by="order_id"), "separator")


def test_a_file_that_is_not_of_its_format(cli: Cli, books: Books, tmp_path: Path) -> None:
    file = tmp_path / "orders.parquet"
    file.write_text("order_id,quantity\nA,1\n")
    refused(books, cli.initiate(file, to="shop.order", by="order_id"), "cannot be read as parquet")


def test_files_whose_first_lines_differ(cli: Cli, books: Books, tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("order_id,quantity\nA,1\n")
    (tmp_path / "2.csv").write_text("quantity,order_id\n1,B\n")
    answer = cli.initiate(tmp_path / "1.csv", tmp_path / "2.csv", to="shop.order", by="order_id")
    if answer.code == 0:
        # Better still: each by its own.
        assert set(books.waiting_messages()) == {"shop.order:A", "shop.order:B"}
    else:
        refused(books, answer, "2.csv")


@pytest.mark.parametrize("name", ["order.id", "order`id"])
def test_a_column_may_have_a_dot_in_its_name(cli: Cli, books: Books, tmp_path: Path, name: str) -> None:
    file = tmp_path / "orders.csv"
    file.write_text(f"{name},order_id,quantity\nX,A,1\n")
    assert cli.initiate(file, to="shop.order", by=name).code == 0
    assert set(books.waiting_messages()) == {"shop.order:X"}


@pytest.mark.parametrize("name", ["e f", "'", "select", "a.b", "c`d"])
def test_columns_that_are_no_ids_may_have_any_name(cli: Cli, books: Books, tmp_path: Path, name: str) -> None:
    file = tmp_path / "orders.csv"
    file.write_text(f"{name},order_id,quantity\nX,A,1\n")
    assert cli.initiate(file, to="shop.order", by="order_id").code == 0
    assert set(books.waiting_messages()) == {"shop.order:A"}


@pytest.mark.parametrize(
    "column",
    [pa.array([[1, 2]]), pa.array([{"a": 1}]), pa.array([b"\xff\x00"])],
    ids=["list", "struct", "bytes"],
)
def test_an_id_of_a_type_that_names_nothing(cli: Cli, books: Books, tmp_path: Path, column: pa.Array) -> None:
    file = tmp_path / "orders.parquet"
    pq.write_table(pa.table({"id": column, "order_id": ["A"], "quantity": [1]}), file)
    refused(books, cli.initiate(file, to="shop.order", by="id"), "id")


def test_an_id_that_no_line_of_json_has(cli: Cli, books: Books, tmp_path: Path) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_text('{"order_id": "A", "quantity": 1}\n' * 3)
    assert cli.initiate(file, to="shop.order", by="orderid").code != 0
