"""Measure started flows a second on PostgreSQL, against plain inserts of the same rows into the same tables.

The first ratio is one ``app.initiate`` of many messages. Its limit is one ``INSERT … SELECT unnest`` into each of the
three tables, in one commit. The others are ``initiate`` of a CSV file on Spark, in a session that is warm. The limits
insert the rows by ``executemany`` on one connection, in one commit: the rows of the queue alone, and those of all three
tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg
from pyspark.sql import SparkSession

from benchmarks.job import Item, make_app_on
from benchmarks.machine import watched
from benchmarks.postgres_stage import copy, running_server
from benchmarks.result import Ratio, Results
from stagepost.pipeline.jobs.initiate import InitiationPlan, initiate
from stagepost.pipeline.session import spark_session
from stagepost.runtime.settings import Place
from stagepost.store.postgres.store import migrate_database
from stagepost.testing.postgres import PostgresServer

MESSAGES = 5_000
ROWS = 30_000
ROUNDS = 5
GOAL = 0.7
GOAL_ON_SPARK = 0.5
TEXT = "x" * 400
APP = """
from benchmarks.job import make_app_on

app = make_app_on({url!r})
"""

QUEUE = "stagepost_ready"
# The rows of each table, as columns with their types.
TABLES: dict[str, dict[str, str]] = {
    "stagepost_accepted": {
        "scope": "text",
        "key": "text",
        "digest": "text",
        "run_id": "text",
        "accepted_at": "bigint",
        "flow_id": "text",
        "hour": "bigint",
    },
    QUEUE: {
        "stage": "text",
        "message_id": "text",
        "flow_id": "text",
        "failures": "int",
        "deaths": "int",
        "deliveries": "int",
        "origin_at": "bigint",
        "envelope": "bytea",
    },
    "stagepost_journal": {
        "waypoint": "text",
        "at": "bigint",
        "node": "text",
        "stage": "text",
        "message_id": "text",
        "flow_id": "text",
        "attempt": "int",
        "origin_at": "bigint",
        "kind": "text",
        "ordinal": "int",
        "bytes": "bigint",
    },
}
# The rows that each limit inserts.
INSERTED = {
    "the queue's rows alone": (QUEUE,),
    "the same rows into the same three tables": tuple(TABLES),
}


def measure() -> Results:
    with running_server() as (server, folder):
        return Results([_started(server), _started_on_spark(server, folder)])


def _started(server: PostgresServer) -> Ratio:
    ours: list[float] = []
    limit: list[float] = []
    with watched(server.pid) as quiet:
        for number in range(ROUNDS):
            url = new(server, f"ours{number}")
            ours.append(MESSAGES / start(url))
            limit.append(MESSAGES / insert(new(server, f"limit{number}"), columns_of(url)))
    return Ratio(
        name=f"PostgreSQL, one app.initiate of {MESSAGES:,} messages",
        unit="messages/s",
        ours=ours,
        limit=limit,
        limit_name="INSERT … SELECT unnest of the same rows into the same tables, one commit",
        goal=GOAL,
        others=quiet.others,
    )


def _started_on_spark(server: PostgresServer, folder: Path) -> Results:
    file = folder / "items.csv"
    write_items(file, ROWS)
    with spark_session("benchmark of initiate") as spark:
        return compare_with_inserts(
            f"PostgreSQL, initiate of {ROWS:,} rows of a CSV file on Spark, local[*]",
            GOAL_ON_SPARK,
            server,
            lambda url, number: start_on_spark(spark, url, folder, file, number),
        )


def compare_with_inserts(
    name: str,
    goal: float | None,
    server: PostgresServer,
    start_all: Callable[[str, int], float],
    *,
    rows: int = ROWS,
    rounds: int = ROUNDS,
    warm_ups: int = 1,
) -> Results:
    """Compare with inserts of the same rows. ``start_all`` starts a flow for each row in a database, and returns the
    seconds that it takes. Its second argument is the number of the round. ``warm_ups`` rounds do not count.
    """
    ours: list[float] = []
    limits: dict[str, list[float]] = {each: [] for each in INSERTED}
    with watched(server.pid) as quiet:
        for number in range(warm_ups + rounds):
            url = new(server, f"spark{number}")
            ours.append(rows / start_all(url, number))
            columns = columns_of(url)
            assert len(columns[QUEUE][0]) == rows, len(columns[QUEUE][0])
            for each, tables in INSERTED.items():
                limits[each].append(rows / insert_each(new(server, f"each{number}_{len(tables)}"), columns, tables))
    return Results(
        [
            Ratio(
                name=name,
                unit="rows/s",
                ours=ours[warm_ups:],
                limit=limit[warm_ups:],
                limit_name=f"executemany of {each}, one commit",
                goal=goal,
                others=quiet.others,
            )
            for each, limit in limits.items()
        ]
    )


def write_items(file: Path, rows: int) -> None:
    file.write_text("n,text\n" + "".join(f"{n},{TEXT}\n" for n in range(rows)))


def new(server: PostgresServer, name: str) -> str:
    url = copy(server, name, "template1")
    migrate_database(url)
    return url


def start(url: str) -> float:
    """Return the seconds that the initiation takes."""
    app = make_app_on(url)
    target = app.target("bench.first")
    app.start(target, Item(0, ""), flow_id="connects")
    begin = time.perf_counter()
    with app.initiate() as out:
        for n in range(MESSAGES):
            out.send(target, Item(n, TEXT), flow_id=f"item:{n}")
    seconds = time.perf_counter() - begin
    app.close()
    return seconds


def start_on_spark(spark: SparkSession, url: str, folder: Path, file: Path, number: int) -> float:
    """Return the seconds that the job takes in a session that has started."""
    module = f"bench_app_{number}"
    (folder / f"{module}.py").write_text(APP.format(url=url))
    plan = InitiationPlan(f"{module}:app", str(folder), Place(url, None), "bench.first", None, f"run{number}", "csv")
    begin = time.perf_counter()
    counts = initiate(spark, plan, [str(file)], id_columns=["n"], flow_prefix="item")
    seconds = time.perf_counter() - begin
    assert (counts.started, counts.is_balanced) == (ROWS, True), counts
    return seconds


def columns_of(url: str) -> dict[str, list[list[Any]]]:
    """Return the columns of each table's rows."""
    with psycopg.connect(url) as connection:
        found = {
            table: connection.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()
            for table, columns in TABLES.items()
        }
    return {table: [list(column) for column in zip(*rows, strict=True)] for table, rows in found.items()}


def insert(url: str, columns: dict[str, list[list[Any]]]) -> float:
    """Insert the rows by a statement for each table. Return the seconds that this takes."""
    with psycopg.connect(url) as connection:
        begin = time.perf_counter()
        for table, types in TABLES.items():
            arrays = ", ".join(f"%s::{kind}[]" for kind in types.values())
            connection.execute(
                f"INSERT INTO {table} ({', '.join(types)}) SELECT * FROM unnest({arrays})",
                columns[table],
            )
        connection.commit()
        return time.perf_counter() - begin


def insert_each(url: str, columns: dict[str, list[list[Any]]], tables: Sequence[str]) -> float:
    """Insert the rows of the tables one by one. Return the seconds that this takes."""
    rows = {table: list(zip(*columns[table], strict=True)) for table in tables}
    with psycopg.connect(url) as connection:
        begin = time.perf_counter()
        for table in tables:
            names = TABLES[table]
            marks = ", ".join(["%s"] * len(names))
            statement = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})"
            connection.cursor().executemany(statement, rows[table])
        connection.commit()
        return time.perf_counter() - begin
