"""``stagepost reconcile FILE``: the rows of files against a store's journal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from stagepost import DeclarationError
from stagepost.cli import reconcile_rows as command
from stagepost.flow.clock import SECOND, to_microseconds
from stagepost.pipeline.frames import reconcile
from stagepost.pipeline.jobs import reconcile_rows as job
from stagepost.pipeline.transforms.row_verdicts import per_flow
from stagepost.ports.declarations import Declaration
from stagepost.ports.journal import Waypoint
from stagepost.store.postgres.store import PostgresStore
from stagepost.store.sqlite.store import SqliteStore
from stagepost.testing.contract.givens import an_acceptance, committed
from tests.pipeline.books import Books, orders
from tests.pipeline.commands import Answer, Cli

NOON = to_microseconds(datetime(2026, 3, 1, 12, tzinfo=UTC))


class Bank:
    """A store in which ``pay`` committed messages with amounts."""

    def __init__(self, url: str, store: SqliteStore | PostgresStore) -> None:
        self.url = url
        self._store = store
        with closing(self._store.session()) as session, committed(session):
            session.declarations.put([Declaration("pay", "pay", "bank")])

    def pay(self, payments: Mapping[str, str | None], *, seconds: int = 0) -> None:
        at = NOON + seconds * SECOND
        lines = []
        for key, amount in payments.items():
            about = ("n", "pay", f"m-{key}", f"pay:{key}", 1, at)
            lines.append(Waypoint("accepted", at, *about))
            lines.append(Waypoint("committed", at, *about, detail=amount and f"amount {amount}"))
        with closing(self._store.session()) as session, committed(session):
            session.journal.record(lines)

    def hold(self) -> None:
        """Let a flow wait in the second file."""
        assert isinstance(self._store, SqliteStore)
        with closing(self._store.apart.session()) as session, committed(session):
            session.outbox.hold([an_acceptance("started")], NOON, "app@here:1")

    def release(self) -> None:
        assert isinstance(self._store, SqliteStore)
        with closing(self._store.apart.session()) as session, committed(session):
            for each in session.outbox.lease(NOON + SECOND, NOON + 2 * SECOND, 1):
                session.outbox.remove(each.id)


@pytest.fixture
def bank(tmp_path: Path) -> Bank:
    path = tmp_path / "bank.db"
    return Bank(f"sqlite:///{path}", SqliteStore(path))


def compare(cli: Cli, bank: Bank, file: Path, *words: str) -> Answer:
    return cli("reconcile", str(file), "--stage", "pay", "--id", "key", "--json", *words, url=bank.url)


def found(answer: Answer) -> dict[str, int]:
    assert answer.out, answer.err
    return {name: number for name, number in answer.json["counts"].items() if number}


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.more
def test_the_rows_of_a_file_and_the_journal_are_compared_by_key_and_amount(
    cli: Cli, bank: Bank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_flow: list[int] = []

    def counted(events: DataFrame) -> DataFrame:
        by_flow.append(events.select("flow_id").distinct().count())
        return per_flow(events)

    monkeypatch.setattr(job, "per_flow", counted)
    many = {f"k{number}": f"{number}.25" for number in range(300)}
    bank.pay(many)
    file = written(tmp_path / "bank.csv", "key;text;amount", *(f"{key};x;{amount}0" for key, amount in many.items()))
    words = ("--separator", ";", "--amount", "amount")
    answer = compare(cli, bank, file, *words)
    assert answer.code == 0, answer.err
    assert (answer.json["clean"], found(answer), answer.json["differing"]) == (True, {"ok": 300}, 0)
    assert answer.json["amount"] == answer.json["committed_amount"] == "44925"
    assert by_flow == [], "no bucket differs"
    bank.pay({"late": "1", "nobody's": "2"}, seconds=60)
    with file.open("a") as more:
        more.write("k7;twice;7.25\nnew;x;3\nlate;x;1.5\n;no key;1\nbad;x;1,5\n")
    answer = compare(cli, bank, file, *words)
    assert answer.code == 1, answer.err
    assert found(answer) == {"ok": 299, "lost": 1, "unexpected": 1, "duplicated": 2, "unequal": 1, "unreadable": 2}
    lists = answer.json["findings"]
    assert [(row["flow_id"], row["place"]) for row in lists["lost"]] == [("pay:new", f"{file}:302")]
    assert [(row["flow_id"], row["amount"], row["committed_amount"]) for row in lists["unequal"]] == [
        ("pay:late", "1.5", "1")
    ]
    assert [(row["flow_id"], row["rows"], row["commits"]) for row in lists["duplicated"]] == [("pay:k7", 2, 1)]
    assert [row["reason"] for row in lists["unreadable"]] == [
        "no-id: an id column has no value",
        "'1,5' is no amount: write it as 1234.56, without other signs",
    ]
    assert answer.json["differing"] < answer.json["buckets"] / 2
    assert 0 < by_flow[0] < 300 / 2
    shown = cli("reconcile", str(file), "--stage", "pay", "--id", "key", *words, "--until", "2026-03-01", url=bank.url)
    assert shown.code == 1
    assert "rows and committed messages differ" in shown.out
    assert "pay:new" in shown.out
    assert "nobody's" not in shown.out


@pytest.mark.more
def test_the_journal_of_a_postgresql_store_is_compared_too(
    cli: Cli, new_postgres: Callable[[], str], tmp_path: Path
) -> None:
    url = new_postgres()
    bank = Bank(url, PostgresStore(url))
    bank.pay({"žluť": "1.50", "2": "2", "twice": "3", "nobody's": "4"})
    file = written(tmp_path / "bank.csv", "key,amount", "žluť,1.5", "2,2.01", "twice,3", "twice,3", "new,5")
    answer = compare(cli, bank, file, "--amount", "amount")
    assert answer.code == 1, answer.err
    assert found(answer) == {"ok": 1, "lost": 1, "unexpected": 1, "duplicated": 2, "unequal": 1}
    flows = {name: [row["flow_id"] for row in rows] for name, rows in answer.json["findings"].items() if rows}
    assert flows == {
        "lost": ["pay:new"], "duplicated": ["pay:twice"], "unequal": ["pay:2"], "unexpected": ["pay:nobody's"]
    }  # fmt: skip


@pytest.mark.more
def test_no_row_is_called_lost_while_a_started_flow_is_not_in_the_queue_yet(
    cli: Cli, bank: Bank, tmp_path: Path
) -> None:
    bank.pay({"paid": None})
    file = written(tmp_path / "bank.csv", "key", "paid", "started")
    bank.hold()
    answer = compare(cli, bank, file)
    assert (answer.code, found(answer)) == (1, {"ok": 1, "unprovable": 1})
    assert (answer.json["held"], answer.json["clean"]) == (1, False)
    shown = cli("reconcile", str(file), "--stage", "pay", "--id", "key", url=bank.url)
    assert "not in the queue yet: 1 started flow. So no row is proved lost" in shown.out
    bank.release()
    assert found(compare(cli, bank, file)) == {"ok": 1, "lost": 1}


@pytest.mark.more
def test_a_file_proves_the_flows_that_it_started(cli: Cli, books: Books, tmp_path: Path) -> None:
    file = written(tmp_path / "orders.json", *(f'{{"order_id": "o{n}", "quantity": 1, "fault": ""}}' for n in range(5)))
    assert cli.initiate(file, to="shop.order", by="order_id").code == 0
    words = (str(file), "--id", "order_id", "--flow-prefix", "shop.order", "--json")
    books.start(orders(1, name="by hand"))
    books.drain()
    answer = cli("reconcile", *words, "--stage", "shop.order")
    assert (answer.code, found(answer)) == (1, {"ok": 5, "unexpected": 1}), answer.err


@pytest.mark.more
def test_a_frame_is_compared_like_a_file(spark: SparkSession, bank: Bank, tmp_path: Path) -> None:
    bank.pay({"1": "0.1", "2": "20", "3": None})
    bank.pay({"4": "1"}, seconds=-1)
    rows = spark.createDataFrame([(1, 0.1, "x"), (2, 20.0, "x"), (3, 1.0, "x")], "key int, amount double, text string")
    report = reconcile(
        rows,
        bank.url,
        "pay",
        id_columns=["key"],
        amount="amount",
        since=datetime(2026, 3, 1, 12),  # noqa: DTZ001 - UTC
    )
    assert {name: number for name, number in report.counts.items() if number} == {"ok": 2, "unequal": 1}
    for changes, reason in (
        ({"id_columns": ["nr"]}, "the rows have no column 'nr' for ids; the columns are key, amount, text"),
        ({"id_columns": ["amount"]}, "column 'amount' is of type double; ids are made of"),
        ({"stage": "buy"}, "declares a stage 'buy'; the stages are pay. Name one"),
        ({"id_columns": ["key", "text"], "flow_prefix": ""}, "several id columns need a flow prefix"),
    ):
        arguments: dict[str, Any] = {"stage": "pay", "id_columns": ["key"], **changes}
        with pytest.raises(DeclarationError, match=reason):
            reconcile(rows, bank.url, **arguments)


def test_nothing_that_can_be_compared_is_an_error(cli: Cli, bank: Bank, tmp_path: Path) -> None:
    bank.pay({"1": None})
    file = written(tmp_path / "bank.csv", "key,amount", "1,five")
    for column, reason in (
        ("amount", "no row can be compared. The first one: 'five' is no amount"),
        ("key", "no message of pay has an amount in the journal. Call ctx.record_amount"),
    ):
        answer = compare(cli, bank, file, "--amount", column)
        assert (answer.code, reason in answer.err) == (2, True), answer.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere.csv", "--stage", "pay", "--id", "key"], "nowhere.csv does not exist"),
        (["FILE", "--id", "key"], "files with rows need --stage STAGE, and --id COLUMNS"),
        (["FILE", "--stage", "pay", "--id", "nr"], "the rows have no column 'nr' for ids; the columns are key, amount"),
        (["FILE", "--stage", "pay", "--id", "key", "--amount", "sum"], "have no column 'sum' for amounts"),
        (
            ["FILE", "--stage", "pay", "--id", "key", "--separator", ";"],
            "have no column 'key' for ids; the only column is key,amount. If ',' separates the cells, name it:",
        ),
        (["FILE", "--stage", "buy", "--id", "key"], "no app of sqlite://"),
        (
            ["FILE", "--stage", "pay", "--id", "key", "--with", "sqlite:///other.db"],
            "either services, by --with, or the",
        ),
        (["--with", "sqlite:///other.db", "--amount", "amount"], "--amount belongs to files with rows"),
    ],
    ids=str,
)
def test_what_is_known_before_java_starts_is_said_then(
    cli: Cli, bank: Bank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], says: str
) -> None:
    file = written(tmp_path / "bank.csv", "key,amount", "1,5")
    monkeypatch.setattr(command, "session", lambda *_: pytest.fail("Spark was started"))
    answer = cli("reconcile", *(str(file) if word == "FILE" else word for word in words), url=bank.url)
    assert (answer.code, says in " ".join(answer.err.split())) == (2, True), answer.err
