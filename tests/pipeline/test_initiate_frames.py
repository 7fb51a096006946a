"""``stagepost.pipeline.frames``: flows for the rows of DataFrames and streams, and ``stagepost initiate --stream``."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from urllib.parse import urlsplit

import psycopg
import pytest
from pyspark import SparkConf
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from stagepost import DeclarationError
from stagepost.flow.codec import decode_envelope
from stagepost.pipeline import staging
from stagepost.pipeline.frames import initiate, initiate_stream
from stagepost.pipeline.java import find_java, quiet_home
from stagepost.pipeline.jobs.initiate import CHUNK
from stagepost.pipeline.jobs.initiate_stream import check_folder
from stagepost.ports.runs import RunCounts
from stagepost.testing.postgres import ServerUnavailableError
from tests.pipeline.books import Books
from tests.pipeline.commands import Answer, Cli, Commands
from tests.pipeline.shop import module_of
from tests.servers.postgres import ensure_installed

ORDERS = "order_id string, quantity string"


@pytest.fixture
def app(books: Books, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return module_of(tmp_path, database=books.url)


def start(frame: DataFrame, app: str, run_id: str | None = None) -> RunCounts:
    return initiate(frame, app, "shop.order", id_columns=["order_id"], flow_prefix="o", run_id=run_id)


def rows_of(spark: SparkSession, *rows: tuple[str | None, str | None]) -> DataFrame:
    return spark.createDataFrame(list(rows), ORDERS)


def quantities(books: Books) -> dict[str, int]:
    return {flow: order.quantity for flow, order in books.waiting_messages().items()}


@pytest.mark.parametrize("value", ["true", " TRUE"])
def test_a_session_that_runs_copies_of_slow_tasks_is_refused(
    spark: SparkSession, books: Books, app: str, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    conf = SparkConf(loadDefaults=False).set("spark.speculation", value)
    monkeypatch.setattr(spark.sparkContext, "_conf", conf)
    with pytest.raises(DeclarationError, match=r"spark\.speculation is on: .* the counts of a killed one\. Make the"):
        start(rows_of(spark, ("A", "1")), app)
    assert books.waiting_messages() == {}


def test_a_session_of_spark_connect_is_refused(books: Books, app: str) -> None:
    """Its frames know no driver, and its session has no such attribute."""
    frame = SimpleNamespace(sparkSession=SimpleNamespace(), columns=["order_id"])
    with pytest.raises(DeclarationError, match=r"one of Spark Connect, whose driver runs elsewhere\. Make a session"):
        start(cast(DataFrame, frame), app)


@pytest.mark.more
def test_a_run_may_have_any_name(spark: SparkSession, books: Books, app: str) -> None:
    """Its rows are staged in a folder that is named after it."""
    assert start(rows_of(spark, ("A", "1")), app, "../a/b=1/{x}*" + "y" * 300) == RunCounts(1, 1, 0, 0)
    assert books.rows("SELECT count(*) FROM stagepost_run WHERE id LIKE '../a/b=1/{x}*y%'") == [(1,)]


def test_rows_of_a_data_frame_start_flows_and_a_known_run_counts_the_same_again(
    spark: SparkSession, books: Books, app: str
) -> None:
    rows = [("A", "1"), ("A", "1"), ("B", "2"), ("bad", "x"), ("bad", "x"), (None, "1")]
    found = RunCounts(6, 2, 1, 3)
    assert start(rows_of(spark, *rows), app, "run") == found
    quarantine = books.rows("SELECT file, record, reason, row FROM stagepost_quarantine ORDER BY file, record")
    assert {str(file).partition(":")[0] for file, *_ in quarantine} == {"sha256"}
    assert sorted(record for _, record, *_ in quarantine) == [1, 1, 2]
    # In another order, as another reading may give them.
    assert start(rows_of(spark, *reversed(rows)).repartition(2), app, "run") == found
    assert start(rows_of(spark, *rows), app, "another") == RunCounts(6, 0, 3, 3)
    assert quantities(books) == {"o:A": 1, "o:B": 2}
    assert (
        books.rows(
            "SELECT file, record, reason, row FROM stagepost_quarantine WHERE run_id = 'run' ORDER BY file, record"
        )
        == quarantine
    )


@pytest.mark.more
def test_a_run_that_goes_on_starts_what_is_left_of_it(spark: SparkSession, books: Books, app: str) -> None:
    rows = [(f"{number}", "1") for number in range(CHUNK + 50)]
    start(rows_of(spark, *rows[: CHUNK // 2]), app, "run")
    assert start(rows_of(spark, *rows), app, "run") == RunCounts(len(rows), len(rows), 0, 0)
    assert books.waiting() == books.waypoints("accepted") == len(rows)


@pytest.mark.more
def test_rows_that_would_differ_in_another_reading_are_read_once(
    spark: SparkSession, books: Books, app: str, tmp_path: Path
) -> None:
    seen = str(tmp_path / "seen")

    def noted(order: str) -> str:
        with Path(seen).open("a") as file:
            file.write(f"{order}\n")
        return order

    orders = rows_of(spark, *((f"{number}", "1") for number in range(20)))
    with_ids = orders.withColumn("order_id", F.udf(noted, "string", useArrow=False)("order_id"))
    with_ids = with_ids.withColumn("order_id", F.concat("order_id", F.lit("-"), F.rand()))
    assert start(with_ids, app) == RunCounts(20, 20, 0, 0)
    assert len(Path(seen).read_text().splitlines()) == 20
    assert books.waiting() == 20


def test_what_is_wrong_with_a_data_frame_is_said_before_its_first_row_is_read(
    spark: SparkSession, books: Books, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_delete", lambda *_: pytest.fail("rows were written"))
    good = rows_of(spark, ("A", "1"))
    with pytest.raises(DeclarationError, match="there is no column 'id' to make ids of; the columns are order_id"):
        initiate(good, app, "shop.order", id_columns=["id"])
    with pytest.raises(DeclarationError, match="which needs quantity; the columns are order_id"):
        start(good.select("order_id"), app)
    with pytest.raises(DeclarationError, match="is of type double; ids are made of texts"):
        start(good.withColumn("order_id", F.lit(1.5)), app)
    with pytest.raises(DeclarationError, match=r"column 'm' is of type array<interval month>, which Python cannot"):
        start(good.withColumn("m", F.expr("array(INTERVAL '1' MONTH)")), app)
    with pytest.raises(DeclarationError, match="no endpoint 'shop"):
        initiate(good, app, "shop.nothing", id_columns=["order_id"])
    with pytest.raises(DeclarationError, match="columns of equal name: order_id, order_id"):
        start(good.select("*", "order_id"), app)
    with pytest.raises(DeclarationError, match="initiate_stream takes a DataFrame of spark"):
        initiate_stream(good, app, "shop.order", checkpoint="c", id_columns=["order_id"])
    monkeypatch.setattr(staging, "is_local", lambda master: False)
    with pytest.raises(DeclarationError, match="Name a folder that driver and executors share"):
        start(good, app)
    assert books.waiting() == 0


@pytest.mark.parametrize("staging_folder", ["{shared}", "file:{shared}", "file://{shared}"])
def test_rows_are_staged_at_each_address_of_a_local_folder(
    spark: SparkSession, books: Books, app: str, tmp_path: Path, staging_folder: str
) -> None:
    shared = tmp_path / "shared [1]"
    shared.mkdir()
    place = staging_folder.format(shared=shared)
    found = initiate(rows_of(spark, ("A", "1")), app, "shop.order", id_columns=["order_id"], staging=place)
    assert (found, list(shared.iterdir())) == (RunCounts(1, 1, 0, 0), [])


@pytest.mark.parametrize("place", [None, "/rows", "viewfs:/rows", "viewfs://shared/rows", "file:{shared}"])
def test_rows_are_staged_where_paths_lead_to_another_file_system(
    spark: SparkSession, books: Books, app: str, tmp_path: Path, place: str | None
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    session = spark.newSession()
    session.conf.set("fs.defaultFS", "viewfs://shared/")
    session.conf.set("fs.viewfs.mounttable.shared.link./rows", f"file://{shared}")
    staging_folder = place and place.format(shared=shared)
    found = initiate(rows_of(session, ("A", "1")), app, "shop.order", id_columns=["order_id"], staging=staging_folder)
    assert (found, list(shared.iterdir())) == (RunCounts(1, 1, 0, 0), [])


def test_an_address_that_no_setting_completes_is_refused_before_rows_are_written(
    spark: SparkSession, books: Books, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_delete", lambda *_: pytest.fail("rows were written"))
    for place in ("hdfs:/tmp", "nosuch://host/tmp"):
        with pytest.raises(DeclarationError, match=f"cannot be staged at {place}/.* Name a folder with its whole add"):
            initiate(rows_of(spark, ("A", "1")), app, "shop.order", id_columns=["order_id"], staging=place)
    assert books.waiting() == 0


# Streams


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    folder = tmp_path / "orders in"
    folder.mkdir()
    return folder


def put(folder: Path, name: str, *rows: str, days: int = 0) -> None:
    """Files come into a folder whole. They may have been written some days before."""
    hidden = folder / f".{name}"
    hidden.write_text("\n".join(["order_id,quantity", *rows]) + "\n")
    written = hidden.stat().st_mtime - days * 86_400
    os.utime(hidden, (written, written))
    hidden.rename(folder / name)


def runs(books: Books) -> list[tuple[int, int]]:
    """The batch of each run, and how often it was begun."""
    found = books.rows("SELECT id, starts FROM stagepost_run ORDER BY started_at")
    return [(int(str(run).rpartition(":")[2]), int(starts)) for run, starts in found]


def counts(books: Books) -> list[tuple[object, ...]]:
    return books.rows(
        "SELECT rows_in, sum(started), sum(repeated), sum(quarantined) FROM stagepost_run JOIN stagepost_run_task "
        "ON run_id = id AND start = ended_start GROUP BY id ORDER BY id"
    )


Stream = Callable[[], object]


@pytest.fixture(params=["frames", "command"])
def stream(request: pytest.FixtureRequest, spark: SparkSession, inbox: Path, tmp_path: Path) -> Stream:
    """Start the flows of the files that are in the folder, in one batch."""
    checkpoint = str(tmp_path / "checkpoint")
    if request.param == "command":
        cli: Cli = request.getfixturevalue("cli")

        def command() -> object:
            words = (inbox, "--stream", "--once", "--checkpoint", checkpoint, "--format", "csv", "--flow-prefix", "o")
            answer = cli.initiate(*words, to="shop.order", by="order_id")
            assert answer.code == 0, answer.err
            assert answer.json["balanced"]
            return answer

        return command
    app: str = request.getfixturevalue("app")

    def function() -> object:
        rows = spark.readStream.schema(ORDERS).option("header", "true").csv(str(inbox))
        query = initiate_stream(
            rows,
            app,
            "shop.order",
            checkpoint=checkpoint,
            id_columns=["order_id"],
            flow_prefix="o",
            is_endless=False,
        )
        query.awaitTermination()
        return query

    return function


@pytest.mark.more
def test_each_batch_of_a_stream_is_a_run_and_one_that_is_run_again_continues(
    books: Books, inbox: Path, tmp_path: Path, stream: Stream
) -> None:
    put(inbox, "1.csv", "A,1", "A,1", "B,2", "bad,x")
    put(inbox, "2.csv", "C,1")
    stream()
    assert (runs(books), counts(books)) == ([(0, 1)], [(5, 3, 1, 1)])
    # As after a crash when the rows were committed, and Spark did not know it yet.
    (tmp_path / "checkpoint" / "commits" / "0").unlink()
    (tmp_path / "checkpoint" / "commits" / ".0.crc").unlink(missing_ok=True)
    put(inbox, "3.csv", "C,1", "D,1")
    stream()
    assert (runs(books), counts(books)) == ([(0, 2), (1, 1)], [(5, 3, 1, 1), (2, 1, 1, 0)])
    assert len(books.quarantine()) == 1
    # With a lost checkpoint, all files come again, as batches of another query.
    shutil.rmtree(tmp_path / "checkpoint")
    stream()
    assert sorted(counts(books))[-1] == (7, 0, 6, 1)
    assert quantities(books) == {"o:A": 1, "o:B": 2, "o:C": 1, "o:D": 1}
    assert books.waypoints("accepted") == 4


@pytest.mark.more
def test_batch_of_a_stream_names_the_first_reason_and_the_command_that_lists_all(
    cli: Cli, books: Books, inbox: Path, tmp_path: Path
) -> None:
    put(inbox, "1.csv", "A,1", "bad,x", "worse,y")
    words = ("--stream", "--once", "--checkpoint", tmp_path / "checkpoint", "--format", "csv")
    answer = cli.initiate(inbox, *words, to="shop.order", by="order_id")
    (run,) = (str(row[0]) for row in books.rows("SELECT id FROM stagepost_run"))
    count, first, remedy = answer.err.splitlines()
    assert count == f"run {run}: 3 rows in = 1 started + 0 repeated + 2 quarantined"
    assert first.startswith(f"  quarantined  {inbox / '1.csv'} record 2: "), first
    assert "quantity" in first
    assert remedy == f"  stagepost quarantine list --run {run} lists all of them"


@pytest.mark.more
def test_a_file_of_a_stream_that_cannot_be_read_ends_it_with_the_reason(
    cli: Cli, books: Books, inbox: Path, tmp_path: Path
) -> None:
    words = ("--checkpoint", tmp_path / "checkpoint", "--format", "csv", "--flow-prefix", "o")

    def once() -> tuple[int, str]:
        answer = cli.initiate(inbox, "--stream", "--once", *words, to="shop.order", by="order_id")
        return answer.code, answer.err

    (inbox / "1.csv").write_text("order,quantity\nA,1\n")
    # Known before Spark starts, because the file is there.
    code, text = once()
    assert (code, "there is no column 'order_id' to make ids of; the columns are order, quantity" in text) == (2, True)
    put(inbox, "1.csv", "A,1")
    assert once()[0] == 0
    assert quantities(books) == {"o:A": 1}


@pytest.mark.more
def test_a_stream_reads_files_that_were_written_long_before_they_came(cli: Cli, books: Books, tmp_path: Path) -> None:
    """A rename keeps a file's time. By default Spark skips a file that is a week older than the newest one."""
    inbox = tmp_path / "in[1]"
    inbox.mkdir()
    words = ("--stream", "--once", "--checkpoint", tmp_path / "checkpoint", "--format", "csv", "--flow-prefix", "o")
    for number, days in ((1, 0), (2, 400), (3, 0)):
        put(inbox, f"{number}.csv", f"{number},1", days=days)
        answer = cli.initiate(inbox, *words, to="shop.order", by="order_id")
        assert (answer.code, answer.json["started"]) == (0, 1), answer
    assert sorted(quantities(books)) == ["o:1", "o:2", "o:3"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--stream", "--format", "csv"], "--stream needs --checkpoint FOLDER"),
        (["--stream", "--checkpoint", "c"], "--stream needs --format"),
        (["--once"], "--once and --checkpoint belong to --stream"),
        (["more", "--stream", "--format", "csv", "--checkpoint", "c"], "--stream takes one folder"),
        (["--stream", "--format", "csv", "--checkpoint", "/dev/null/c"], "c: it cannot be written: Not a directory."),
    ],
)
def test_what_a_stream_lacks_is_said_before_java_starts(
    cli: Cli, inbox: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], reason: str
) -> None:
    monkeypatch.setattr("stagepost.cli.initiate.session", lambda *_: pytest.fail("Spark was started"))
    answer = cli.initiate(inbox, *words, to="shop.order", by="order_id")
    assert (answer.code, reason in answer.err) == (2, True), answer.err


def test_a_checkpoint_beside_a_remote_folder_is_left_to_spark(tmp_path: Path) -> None:
    """A path may belong to Spark's default file system there, and this machine may not have it."""
    assert check_folder(["hdfs://shared/inbox"], str(tmp_path / "c")) == "hdfs://shared/inbox"
    assert list(tmp_path.iterdir()) == []


# A table that is read by JDBC

JDBC_JAR = Path("/usr/share/java/postgresql.jar")
JDBC_SCRIPT = f"""
import json, sys
from dataclasses import asdict
from pyspark.sql import SparkSession
from stagepost.pipeline.frames import initiate

app, url = sys.argv[1:]
settings = {{"spark.master": "local[2]", "spark.jars": "{JDBC_JAR}", "spark.ui.enabled": "false"}}
spark = SparkSession.builder.config(map=settings).getOrCreate()
orders = spark.read.jdbc(url, "orders", properties={{"driver": "org.postgresql.Driver"}})
print(json.dumps(asdict(initiate(orders, app, "shop.order", id_columns=["order_id"], flow_prefix="o"))))
"""


def find_jdbc_jar() -> None:
    if not JDBC_JAR.exists():
        raise ServerUnavailableError(f"{JDBC_JAR} is missing: install the package libpostgresql-jdbc-java")


@pytest.fixture
def jdbc_jar() -> None:
    """Install PostgreSQL's driver for Java."""
    try:
        ensure_installed(find_jdbc_jar, "libpostgresql-jdbc-java")
    except ServerUnavailableError as reason:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no JDBC driver: {reason}")


@pytest.mark.more
@pytest.mark.usefixtures("jdbc_jar")
def test_a_table_is_read_by_jdbc_in_a_session_of_the_users_own(
    commands: Commands, books: Books, tmp_path: Path, new_postgres: Callable[[], str]
) -> None:
    url = new_postgres()
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE orders (order_id text, quantity int, note numeric(10, 2))")
        connection.execute("INSERT INTO orders SELECT n::text, 1 + n % 3, n FROM generate_series(1, 1000) AS n")
        connection.execute("INSERT INTO orders VALUES ('7', 9, 0), (NULL, 1, 0)")
    app = module_of(tmp_path, database=books.url)
    place = urlsplit(url)
    jdbc = f"jdbc:postgresql://{place.hostname}:{place.port}{place.path}?user={place.username}"
    environment = {"JAVA_HOME": java_home(), "PYSPARK_PYTHON": sys.executable}
    answer = commands.run([sys.executable, "-c", JDBC_SCRIPT, app, jdbc], environment).answer()
    assert answer.code == 0, answer.err
    assert answer.json == {"rows_in": 1002, "started": 1000, "repeated": 0, "quarantined": 2}
    assert quantities(books) == {f"o:{n}": 1 + n % 3 for n in range(1, 1001) if n != 7} | {
        "o:7": quantities(books)["o:7"]
    }


def java_home() -> str:
    return str(quiet_home(find_java(os.environ).program))


MIXED = """
from stagepost import Context
from tests.pipeline.shop import Note, Order, open_shop

app = open_shop(database={url!r})


@app.endpoint("shop.mixed")
def mixed(ctx: Context, note: Note) -> None: ...


@mixed.handler
def order(ctx: Context, order: Order) -> None: ...
"""


@pytest.fixture
def mixed(app: str, books: Books, tmp_path: Path) -> str:
    """An app whose endpoint ``shop.mixed`` takes two types."""
    module = f"{app.partition(':')[0]}_mixed"
    (tmp_path / f"{module}.py").write_text(MIXED.format(url=books.url))
    (tmp_path / "a.csv").write_text("order_id,quantity\nA,1\n")
    return f"{module}:app"


def start_mixed(cli: Cli, mixed: str, *more: str) -> Answer:
    return cli("initiate", "a.csv", "--to", "shop.mixed", "--id", "order_id", "--app", mixed, *more)


def test_rows_of_no_named_type_are_refused_where_an_endpoint_takes_several(
    cli: Cli, mixed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stagepost.pipeline.jobs.initiate.initiate", lambda *_, **__: pytest.fail("Spark was asked"))
    takes = "shop.mixed takes messages of the types Note, Order; "
    for more, says in (((), "the type of the rows is not named."), (("--type", "Ask"), "'Ask' is none of them.")):
        answer = start_mixed(cli, mixed, *more)
        assert (answer.code, takes + says in answer.err) == (2, True), answer.err


@pytest.mark.more
def test_rows_for_an_endpoint_of_several_types_name_theirs(
    spark: SparkSession, cli: Cli, books: Books, mixed: str, tmp_path: Path
) -> None:
    assert start_mixed(cli, mixed, "--type", "Order").code == 0
    frame = rows_of(spark, ("A", "1"), ("B", "2"))
    counts = initiate(frame, mixed, "shop.mixed", id_columns=["order_id"], message_type="Order")
    assert (counts.started, counts.repeated) == (1, 1)
    spark.sparkContext.addPyFile(str(tmp_path / f"{mixed.partition(':')[0]}.py"))
    sink = rows_of(spark, ("B", "2"), ("C", "3")).write.format("stagepost").mode("append")
    sink = sink.options(app=mixed, target="shop.mixed", idColumns="order_id")
    with pytest.raises(AnalysisException, match="the type of the rows is not named"):
        sink.save()
    sink.option("messageType", "Order").save()
    envelopes = [
        decode_envelope(data) for (data,) in books.rows("SELECT envelope FROM stagepost_ready ORDER BY flow_id")
    ]
    assert [(each.flow_id, each.messages[0].type) for each in envelopes] == [
        (f"shop.mixed:{key}", "Order") for key in "ABC"
    ]
