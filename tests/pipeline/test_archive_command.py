"""``stagepost archive`` on Spark, and ``stagepost trace`` of what is archived."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from benchmarks import archive_rows
from stagepost.app.app import engine_of
from stagepost.flow.clock import HOUR, SystemClock
from stagepost.pipeline.archive_folder import digest_of
from stagepost.pipeline.jobs.archive import archive
from stagepost.ports.session import Session
from stagepost.runtime.access import Access
from stagepost.runtime.databases import open_store
from stagepost.testing.contract.givens import committed
from tests.pipeline.books import Books, SqliteBooks, orders
from tests.pipeline.commands import Cli
from tests.pipeline.postgres_books import PostgresBooks
from tests.processes import ROOT
from tests.waiting import PATIENCE_SECONDS

KEEP = 24
# Archives on Spark, and kills itself when the files are written.
VICTIM = """
import os, signal, sys
from pathlib import Path
from stagepost.flow.clock import SystemClock
from stagepost.pipeline.jobs.archive import archive
from stagepost.ports.session import Session
from stagepost.pipeline.session import spark_session
from stagepost.runtime.access import Access
from stagepost.runtime.databases import open_store

url, folder = sys.argv[1:]

def listen(step):
    os.kill(os.getpid(), signal.SIGKILL)

store = open_store(url)
with spark_session("victim") as spark:
    archive(spark, store, Access(store.session(), SystemClock()), Path(folder), clock=SystemClock(), listener=listen)
"""


def age(books: Books) -> None:
    """Let all that is there become old, and close its range."""
    with closing(engine_of(books.app).access()) as access:
        grow_old(access.session)


def grow_old(session: Session) -> None:
    with committed(session):
        session.retention.declare("tests", {"@journal": KEEP, "@dead_letters": KEEP})
    for hour in range(KEEP + 2):
        with committed(session):
            session.retention.count_hour(SystemClock().now() + hour * HOUR)
    mark = session.retention.mark(session.retention.hours())
    assert mark is not None
    with committed(session):
        session.retention.cut(mark.line)


def archived(cli: Cli, folder: Path) -> list[dict[str, Any]]:
    answer = cli("archive", str(folder), "--json")
    assert answer.code == 0, answer.err
    found: list[dict[str, Any]] = answer.json
    return found


def check_archive(cli: Cli, books: Books, folder: Path) -> None:
    """Archive a store with 20 flows that ended, and one that died. The archive has all of it, and trace finds it."""
    books.start(orders(20))
    books.start_broken("broken")
    books.drain()
    before = {flow: cli("trace", flow, "--json").json for flow in ("o3", "broken")}
    lines = books.rows("SELECT count(*) FROM stagepost_journal")[0][0]
    age(books)
    assert cli("archive").code == 2
    journal, letters = archived(cli, folder)
    assert (journal["rows"], letters["rows"]) == (lines, 1)
    files = sorted(Path(journal["folder"]).glob("*.parquet"))
    for file in files:
        group = pq.ParquetFile(file).metadata.row_group(0)
        assert {group.column(at).compression for at in range(group.num_columns)} == {"ZSTD"}
        messages = pq.read_table(file)["message_id"].to_pylist()
        assert messages == sorted(messages)
    # The lines of the letter were kept, and the next run removes them.
    assert books.rows("SELECT DISTINCT flow_id FROM stagepost_journal") == [("broken",)]
    assert archived(cli, folder) == []
    assert books.rows("SELECT count(*) FROM stagepost_journal") == [(0,)]
    for flow, history in before.items():
        assert cli("trace", flow, "--json", "--archive", str(folder)).json == history
        message = history["messages"][-1]["message_id"]
        assert cli("trace", message, "--json", "--archive", str(folder)).json == history
    nothing = cli("trace", "o3")
    assert (nothing.code, "name its folder with --archive" in nothing.err) == (1, True)
    assert cli("trace", "nobody", "--archive", str(folder)).code == 1


@pytest.mark.more
def test_an_old_journal_moves_to_parquet_and_trace_finds_it_there(
    cli: Cli, books: SqliteBooks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "archive"
    check_archive(cli, books, folder)
    (file,) = sorted(folder.glob("journal-*/*.parquet"))
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 255
    file.write_bytes(content)
    changed = cli("trace", "o3", "--archive", str(folder))
    assert (changed.code, changed.is_one_paragraph) == (2, True)
    other = SqliteBooks(tmp_path / "other.db")
    refused = cli("archive", str(folder), url=other.url)
    assert (refused.code, "is of another store" in refused.err) == (2, True)
    assert cli("archive", "--end").code == 0
    assert cli("archive", "--end").code == 1
    monkeypatch.setenv("STAGEPOST_ARCHIVE", str(tmp_path / "next"))
    assert cli("archive").code == 0
    assert (tmp_path / "next" / "archive.json").exists()


@pytest.mark.more
def test_a_journal_in_postgres_moves_to_parquet(cli: Cli, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    books = PostgresBooks(request.getfixturevalue("new_postgres")())
    cli._books = books
    check_archive(cli, books, tmp_path / "archive")


@pytest.mark.more
def test_an_archiver_that_is_killed_after_spark_wrote_is_ended_by_the_next_one(
    spark: SparkSession, books: SqliteBooks, tmp_path: Path
) -> None:
    books.start(orders(20))
    books.drain()
    age(books)
    lines = books.rows("SELECT count(*) FROM stagepost_journal")[0][0]
    folder = tmp_path / "archive"
    words = [sys.executable, "-c", VICTIM, books.url, str(folder)]
    assert subprocess.run(words, cwd=ROOT, timeout=PATIENCE_SECONDS).returncode == -signal.SIGKILL
    (left,) = folder.glob("journal-*")
    digests = [digest_of(each) for each in left.glob("*.parquet")]
    store = open_store(books.url)
    with closing(Access(store.session(), SystemClock())) as access:
        (manifest,) = archive(spark, store, access, folder, clock=SystemClock())
    assert (manifest.rows, manifest.folder == left.name) == (lines, False)
    assert books.rows("SELECT count(*) FROM stagepost_journal") == [(0,)]
    assert [digest_of(each) for each in left.glob("*.parquet")] == digests


@pytest.mark.more
def test_the_benchmark_archives_all_its_rows(
    spark: SparkSession, new_postgres: Callable[[], str], tmp_path: Path
) -> None:
    url = new_postgres()
    archive_rows.fill(url, 1_000)
    assert archive_rows.archived(spark, url, 1_000, tmp_path / "archive") > 0
