"""The rows that benchmarks write by themselves fit the tables of the stores."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from benchmarks import initiate_rows, journal_lines, purge_beside_worker, source, stored_rows
from benchmarks.job import make_app_on, start
from stagepost.store.sqlite.store import migrate_file

RANGE = {"first": 1, "last": 2}


@pytest.mark.parametrize(
    ("statement", "values", "table"),
    [
        (stored_rows.FILL_INBOX, RANGE, "stagepost_inbox"),
        (stored_rows.FILL_JOURNAL, RANGE, "stagepost_journal"),
        (stored_rows.MAKE_ROWS, {"rows": 2}, "stagepost_ready"),
        (journal_lines.FILL_POSTGRES, RANGE, "stagepost_journal"),
        (source.FILL, {"rows": 2}, "stagepost_journal"),
    ],
    ids=["inbox", "journal", "ready", "journal_lines", "source"],
)
def test_rows_of_a_benchmark_fit_postgres(
    new_postgres: Callable[[], str], statement: str, values: Mapping[str, int], table: str
) -> None:
    url = new_postgres()
    with psycopg.connect(url) as connection:
        connection.execute(statement, values)
        row = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    assert row == (2,)


def test_inserts_one_by_one_write_the_rows_of_a_start_again(new_postgres: Callable[[], str]) -> None:
    url = new_postgres()
    app = make_app_on(url)
    start(app, 3)
    app.close()
    columns = initiate_rows.columns_of(url)
    copied = new_postgres()
    initiate_rows.insert_each(copied, columns, tuple(initiate_rows.TABLES))
    assert initiate_rows.columns_of(copied) == columns
    assert [len(each[0]) for each in columns.values()] == [3, 3, 3]


@pytest.mark.parametrize(
    ("statement", "table"),
    [(purge_beside_worker.FILL_IDS, "stagepost_accepted"), (purge_beside_worker.FILL_LINES, "stagepost_journal")],
    ids=["ids", "lines"],
)
def test_rows_of_a_benchmark_fit_sqlite(tmp_path: Path, statement: str, table: str) -> None:
    path = tmp_path / "bench.db"
    migrate_file(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement, {"rows": 2})
        row = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    assert row == (2,)
