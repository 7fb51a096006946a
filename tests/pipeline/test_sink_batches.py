"""The sink below Spark's API: staged rows, and the driver's one transaction for each batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import SparkFiles
from pyspark.sql.types import (
    DataType,
    DoubleType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
    YearMonthIntervalType,
)

from pyspark_stagepost.sink_options import sink_plan
from stagepost.app.app import engine_of
from stagepost.app.loading import load_app
from stagepost.flow.errors import CapabilityMissing, DeclarationError, IllegalCall
from stagepost.pipeline import sink
from stagepost.pipeline.sink import (
    BatchDiffers,
    SinkPlan,
    StagedRowsMissing,
    StagedTask,
    commit_batch,
    discard_tasks,
    require_shared,
    stage,
)
from stagepost.ports.runs import RunCounts
from stagepost.ports.staging import ALONE, BatchKey
from tests.pipeline.books import Books, SqliteBooks
from tests.pipeline.postgres_books import PostgresBooks
from tests.pipeline.shop import Order, module_of
from tests.waiting import PATIENCE_SECONDS

KEY = BatchKey("shop.order", "query", 4)
ROWS: list[dict[str, Any]] = [{"order_id": name, "quantity": number} for number, name in enumerate("ABCDE", 1)]


@pytest.fixture(params=["sqlite", "postgres"])
def books(request: pytest.FixtureRequest, tmp_path: Path) -> Books:
    if request.param == "sqlite":
        return SqliteBooks(tmp_path / "shop.db")
    return PostgresBooks(request.getfixturevalue("new_postgres")())


@pytest.fixture
def plan(books: Books, tmp_path: Path) -> SinkPlan:
    return plan_for(books, tmp_path)


def plan_for(books: Books, folder: Path, **settings: Any) -> SinkPlan:
    app = module_of(folder, database=books.url)
    place = engine_of(load_app(app, folder)).databases.place
    made = SinkPlan(app, str(folder), place, "shop.order", None, ("order_id",), "o", False, "files")
    return replace(made, **settings)


def staged(plan: SinkPlan, rows: Sequence[dict[str, Any]], key: BatchKey = KEY) -> StagedTask:
    return stage(plan, key, [pa.RecordBatch.from_pylist(list(rows))] if rows else [])


def started(books: Books) -> dict[str, int]:
    return {flow: order.quantity for flow, order in books.waiting_messages().items()}


def left(books: Books) -> int:
    return books.number("SELECT count(*) FROM stagepost_staged_row") + books.number(
        "SELECT count(*) FROM stagepost_staged"
    )


def counts(books: Books, run_id: str = KEY.run_id) -> tuple[object, ...]:
    """Rows in, started, repeated, quarantined."""
    (found,) = books.rows(
        "SELECT rows_in, sum(started), sum(repeated), sum(quarantined) FROM stagepost_run JOIN stagepost_run_task ON "
        "run_id = id AND start = ended_start WHERE id = ? GROUP BY id",
        run_id,
    )
    return tuple(int(str(each)) for each in found)


# A batch that comes again


def test_a_batch_that_comes_again_in_other_tasks_and_another_order_is_skipped(books: Books, plan: SinkPlan) -> None:
    tasks = [staged(plan, ROWS[:3]), staged(plan, ROWS[3:]), staged(plan, [])]
    assert started(books) == {}
    assert commit_batch(plan, tasks) == RunCounts(5, 5, 0, 0)
    assert commit_batch(plan, [staged(plan, ROWS[::-1])]) is None
    assert started(books) == {"o:A": 1, "o:B": 2, "o:C": 3, "o:D": 4, "o:E": 5}
    assert books.waypoints("accepted") == 5
    assert counts(books) == (5, 5, 0, 0)
    assert left(books) == 0


def test_equal_rows_do_not_cancel_each_other(books: Books, plan: SinkPlan) -> None:
    twice = [ROWS[0], ROWS[0]]
    assert commit_batch(plan, [staged(plan, [ROWS[1], *twice])]) == RunCounts(3, 2, 1, 0)
    with pytest.raises(BatchDiffers):
        commit_batch(plan, [staged(plan, [ROWS[1], ROWS[2], ROWS[2]])])


def test_a_batch_that_comes_again_with_other_rows_fails_and_says_why(books: Books, plan: SinkPlan) -> None:
    """Spark builds the batch anew after a restored checkpoint. Its rows may be lost, so nobody may skip them."""
    commit_batch(plan, [staged(plan, ROWS[:3])])
    other = staged(plan, ROWS[2:4])
    with pytest.raises(BatchDiffers) as caught:
        commit_batch(plan, [other])
    said = str(caught.value)
    assert "batch 4 of the streaming query query to shop.order was committed before with 3 rows" in said
    assert "comes again with 2 rows that are not the same" in said
    assert "checkpoint was restored from a copy, or two drivers use it at once" in said
    assert "the ids or the fields of its rows differ each time they are read" in said
    assert 'option("repeated", "accept")' in said
    assert sorted(started(books)) == ["o:A", "o:B", "o:C"]
    discard_tasks(plan, [other])
    assert left(books) == 0


def test_other_rows_of_a_known_batch_may_be_accepted_by_their_ids(books: Books, plan: SinkPlan) -> None:
    commit_batch(plan, [staged(plan, ROWS[:3])])
    accepting = replace(plan, accepts_other_rows=True)
    assert commit_batch(accepting, [staged(plan, ROWS[2:4])]) == RunCounts(2, 2, 0, 0)
    assert sorted(started(books)) == ["o:A", "o:B", "o:C", "o:D"]
    assert books.waypoints("accepted") == 4
    # It is the batch's content now.
    assert commit_batch(plan, [staged(plan, ROWS[2:4])]) is None


def test_each_sink_query_and_batch_has_a_key_of_its_own(books: Books, plan: SinkPlan, tmp_path: Path) -> None:
    for number, key in enumerate([KEY, KEY._replace(batch=5), KEY._replace(query="other")]):
        commit_batch(plan, [staged(plan, ROWS[: number + 1], key)])
    assert sorted(started(books)) == ["o:A", "o:B", "o:C"]
    assert counts(books, "other:4") == (3, 1, 2, 0), "a query with a new checkpoint starts no flow twice"
    assert counts(books, "query:5") == (2, 1, 1, 0)


def test_of_two_drivers_of_one_batch_the_second_finds_what_the_first_committed(
    books: Books, plan: SinkPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = staged(plan, ROWS), staged(plan, ROWS)
    has_entered, may_go = threading.Event(), threading.Event()
    flows_of = sink._flows

    def held(*arguments: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            has_entered.set()
            assert may_go.wait(PATIENCE_SECONDS)
        return flows_of(*arguments)

    monkeypatch.setattr(sink, "_flows", held)
    results: list[RunCounts | None] = []
    driver = threading.Thread(target=lambda: results.append(commit_batch(plan, [first])))
    driver.start()
    assert has_entered.wait(PATIENCE_SECONDS)
    threading.Timer(0.2, may_go.set).start()
    assert commit_batch(plan, [second]) is None
    driver.join()
    assert results == [RunCounts(5, 5, 0, 0)]
    assert books.waypoints("accepted") == 5
    assert left(books) == 0


# Staged rows


def test_staged_rows_that_are_gone_fail_the_batch_whatever_was_accepted_of_them(books: Books, plan: SinkPlan) -> None:
    commit_batch(plan, [staged(plan, ROWS, BatchKey(KEY.sink, "before"))])
    tasks = [staged(plan, ROWS[:2]), staged(plan, ROWS[2:])]
    books.change("DELETE FROM stagepost_staged_row WHERE token = ? AND place = 1", tasks[1].token)
    with pytest.raises(StagedRowsMissing, match=r"staged 5 rows for shop\.order, and 4 are there"):
        commit_batch(plan, tasks)
    assert books.rows("SELECT batch FROM stagepost_sink_batch") == [(ALONE,)]
    discard_tasks(plan, tasks)
    assert commit_batch(plan, [staged(plan, ROWS)]) == RunCounts(5, 0, 5, 0)


def test_an_abort_deletes_staged_rows_and_nothing_of_a_committed_batch(books: Books, plan: SinkPlan) -> None:
    """Spark aborts a batch too if its commit stood and only the answer was lost."""
    tasks = [staged(plan, ROWS)]
    other = staged(plan, ROWS[:1], KEY._replace(batch=9))
    commit_batch(plan, tasks)
    discard_tasks(plan, tasks)
    discard_tasks(plan, [])
    assert len(started(books)) == 5
    assert commit_batch(plan, [staged(plan, ROWS)]) is None
    assert commit_batch(plan, [other]) == RunCounts(1, 0, 1, 0)


def test_rows_of_attempts_that_do_not_count_are_swept_with_their_batch(books: Books, plan: SinkPlan) -> None:
    for key in (KEY._replace(batch=3), KEY):
        staged(plan, ROWS[:2], key)
    commit_batch(plan, [staged(plan, ROWS[2:])])
    assert sorted(started(books)) == ["o:C", "o:D", "o:E"]
    assert left(books) == 0


def test_a_task_that_fails_leaves_no_rows(books: Books, plan: SinkPlan) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist(ROWS)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        stage(plan, KEY, broken())
    assert left(books) == 0


def test_a_task_whose_rows_were_swept_fails(books: Books, plan: SinkPlan) -> None:
    def slow() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist(ROWS[:2])
        commit_batch(plan, [staged(plan, ROWS)])
        yield pa.RecordBatch.from_pylist(ROWS[2:])

    with pytest.raises(Exception, match="were deleted while it ran: its batch is committed"):
        stage(plan, KEY, slow())
    assert left(books) == 0


def test_more_rows_than_a_chunk_are_staged_in_chunks(books: Books, plan: SinkPlan) -> None:
    rows = [{"order_id": str(number), "quantity": number} for number in range(2 * sink.CHUNK + 1)]
    assert commit_batch(plan, [staged(plan, rows)]) == RunCounts(len(rows), len(rows), 0, 0)
    assert books.waiting() == len(rows)


# Rows


def test_a_row_that_was_started_by_hand_is_not_started_again(books: Books, plan: SinkPlan) -> None:
    app = books.app
    app.start(app.target("shop.order"), Order("A", 1), flow_id="o:A")
    assert commit_batch(plan, [staged(plan, ROWS[:2])]) == RunCounts(2, 1, 1, 0)


def test_rows_that_do_not_fit_are_quarantined_and_the_others_start(books: Books, plan: SinkPlan) -> None:
    commit_batch(plan, [staged(plan, ROWS[:1], BatchKey(KEY.sink, "before"))])
    rows: list[dict[str, Any]] = [
        {"order_id": "A", "quantity": 99},
        {"order_id": None, "quantity": 1},
        {"order_id": "N", "quantity": None},
        {"order_id": "N", "quantity": None},
        {"order_id": "O", "quantity": 7},
    ]
    assert commit_batch(plan, [staged(plan, rows[:3]), staged(plan, rows[3:])]) == RunCounts(5, 1, 0, 4)
    assert started(books) == {"o:A": 1, "o:O": 7}
    found = books.rows("SELECT reason, record FROM stagepost_quarantine WHERE run_id = ?", KEY.run_id)
    assert sorted((str(reason).partition(":")[0], record) for reason, record in found) == [
        ("id-conflict", 1),
        ("undecodable", 1),
        ("undecodable", 1),
        ("undecodable", 2),
    ]
    assert commit_batch(plan, [staged(plan, rows)]) is None, "quarantined rows belong to the digest"


def test_ids_are_those_that_initiate_makes_of_the_same_values(books: Books, plan: SinkPlan) -> None:
    values = ["a,b", 7, Decimal("1.10"), Decimal("0E-8"), date(2026, 3, 1)]
    texts = ["a%2Cb", "7", "1.10", "0.00000000", "2026-03-01"]
    by = tuple(f"key{number}" for number in range(len(values)))
    row = {"order_id": "A", "quantity": 1, **dict(zip(by, values, strict=True))}
    commit_batch(replace(plan, id_columns=by), [staged(replace(plan, id_columns=by), [row])])
    assert list(started(books)) == [f"o:{','.join(texts)}"]


def test_replies_go_to_the_endpoint_that_is_named(books: Books, plan: SinkPlan) -> None:
    asking = replace(plan, reply_to="shop.done")
    commit_batch(asking, [staged(asking, ROWS[:1])])
    books.drain()
    assert books.rows("SELECT DISTINCT kind FROM stagepost_journal WHERE waypoint = 'accepted'") == [("request",)]
    assert books.rows("SELECT stage FROM ledger WHERE stage = 'shop.done'") == [("shop.done",)]


# What is refused


def schema(**columns: DataType) -> StructType:
    found = StructType()
    for name, kind in columns.items():
        found.add(name, kind)
    return found


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., SinkPlan]:
    """Ask for a sink as Spark does."""
    shop = SqliteBooks(tmp_path / "shop.db")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(SparkFiles, "getRootDirectory", lambda: "files")
    given = {"app": module_of(tmp_path, database=shop.url), "target": "shop.order", "idColumns": "order_id"}

    def ask(columns: StructType | None = None, *, overwrite: bool = False, **more: str | None) -> SinkPlan:
        wanted = {name: value for name, value in {**given, **more}.items() if value is not None}
        columns = columns or schema(order_id=StringType(), quantity=IntegerType())
        return sink_plan({name.lower(): value for name, value in wanted.items()}, columns, overwrite=overwrite)

    return ask


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"app": None}, 'the sink stagepost needs .option("app", "myapp:app")'),
        ({"target": None}, 'the sink stagepost needs .option("target", "payments.pay")'),
        ({"idColumns": None}, 'the sink stagepost needs .option("idColumns", "order_id")'),
        ({"url": "sqlite:///x.db"}, "the sink stagepost has no option 'url'; it has app, flowPrefix, idColumns"),
        ({"idColumns": "order_id, order_id"}, "must name columns, each once, such as 'order_id, line', not"),
        ({"idColumns": "order_id,"}, "must name columns, each once"),
        ({"idColumns": "id"}, "there is no column 'id' to make ids of; the columns are order_id, quantity"),
        ({"repeated": "yes"}, "option repeated of the sink stagepost must be fail or accept, not 'yes'"),
        ({"target": "shop.nothing"}, "app 'shop' has no endpoint 'shop.nothing'; it has:"),
        ({"app": "no_such_module:app"}, "no module 'no_such_module' in"),
        ({"columns": schema(order_id=StringType())}, "which needs quantity; the columns are order_id"),
        ({"columns": schema(order_id=DoubleType(), quantity=IntegerType())}, "is of type double; the sink makes ids"),
        (
            {"columns": schema(order_id=StringType(), quantity=IntegerType(), m=YearMonthIntervalType())},
            "column 'm' is of type interval year to month, which Python cannot read. Leave it out",
        ),
        ({"columns": schema(order_id=TimestampType(), quantity=IntegerType())}, "Cast the column to a text"),
        (
            {"columns": schema(order_id=StringType(), quantity=IntegerType(), Quantity=IntegerType())},
            "the rows have columns of equal name: quantity, Quantity. Rename one",
        ),
        ({"overwrite": True}, 'only adds messages: write with mode("append"), and a stream with outputMode("append")'),
    ],
    ids=str,
)
def test_a_sink_that_cannot_be_is_refused_before_the_first_row(
    options: Callable[..., SinkPlan], given: dict[str, Any], says: str
) -> None:
    with pytest.raises(DeclarationError) as caught:
        options(**given)
    assert says in str(caught.value)


def test_an_empty_prefix_is_the_targets_name_as_with_initiate(options: Callable[..., SinkPlan]) -> None:
    assert options(flowPrefix="").flow_prefix == options(flowPrefix=None).flow_prefix == "shop.order"


def test_replies_that_no_endpoint_takes_are_refused(options: Callable[..., SinkPlan]) -> None:
    with pytest.raises(IllegalCall, match=r"shop\.note takes a Note"):
        options(replyTo="shop.note")


def test_a_file_is_for_the_driver_and_tasks_in_its_process(
    options: Callable[..., SinkPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = options()
    require_shared(plan)
    monkeypatch.setattr(SparkFiles, "getRootDirectory", lambda: ".")
    with pytest.raises(CapabilityMissing, match=r"Spark's tasks run on executors\. Use the master local\[\*\]"):
        require_shared(plan)
