"""Measure the effect of stored rows.

The first ratio compares ten million rows in inbox and journal with an empty store. Its mode is ``outbox``, which has an
inbox and a journal, in two databases of one server. The second ratio compares dead rows, which no vacuum can remove
while a snapshot is held, with none. Its mode is ``single``. All rounds of a side use the same databases.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from benchmarks.engine import drain
from benchmarks.job import make_app_on, start
from benchmarks.machine import watched
from benchmarks.postgres_stage import TABLE, copy, running_server
from benchmarks.result import Ratio, Results
from stagepost.store.postgres.store import migrate_database
from stagepost.testing.postgres import PostgresServer

ROWS = 10_000_000
# A commit of more rows would write too much write-ahead log in one transaction.
ROWS_A_COMMIT = 500_000
# The number that a snapshot of some minutes leaves at the measured speed.
DEAD_ROWS = 300_000
ITEMS = 3_000
ROUNDS = 5
GOAL = 0.9
# Ids in ascending order, which fill an index fast, over the whole range of ids, so that new ids belong between them.
ID = f"lpad(to_hex(n * {2**32 // ROWS}), 8, '0') || '-0000-5000-8000-000000000000'"
FILL_INBOX = f"""
    INSERT INTO stagepost_inbox (stage, message_id, digest, handled_at, leased_until, is_sent, hour)
    SELECT 'bench.first', {ID}, lpad(n::text, 64, '0'), n, n, true, 0
    FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n
"""
FILL_JOURNAL = f"""
    INSERT INTO stagepost_journal (waypoint, at, node, stage, message_id, flow_id, attempt, origin_at, ms)
    SELECT 'committed', n, 'worker@here:1', 'bench.first', {ID}, lpad(n::text, 16, '0'), 1, n, 1.5
    FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n
"""

MAKE_ROWS = """
    INSERT INTO stagepost_ready (stage, message_id, flow_id, failures, deaths, deliveries, origin_at, envelope)
    SELECT CASE WHEN mod(n, 2) = 0 THEN 'bench.first' ELSE 'bench.second' END, n::text, n::text, 0, 0, 0, n, '{}'
    FROM generate_series(1, %(rows)s::bigint) AS n
"""


def measure() -> Results:
    with running_server("2GB") as (server, _):
        return Results([_with_rows(server), _with_a_snapshot(server)])


def _with_rows(server: PostgresServer) -> Ratio:
    full, full_queue = made(server, "full"), new(server, "full_queue")
    empty, empty_queue = made(server, "empty"), new(server, "empty_queue")
    fill(full, FILL_INBOX)
    fill(full_queue, FILL_JOURNAL)
    for url in (full, full_queue, empty, empty_queue):
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
            connection.execute("CHECKPOINT")
    ours: list[float] = []
    limit: list[float] = []
    with watched(server.pid) as quiet:
        for number in range(ROUNDS):
            ours.append(rate(full, full_queue, f"full{number}"))
            limit.append(rate(empty, empty_queue, f"empty{number}"))
    return Ratio(
        name=f"PostgreSQL, mode outbox, {ROWS:,} rows in the inbox and in the journal, one worker thread",
        unit="messages/s",
        ours=ours,
        limit=limit,
        limit_name="the same on empty stores",
        goal=GOAL,
        others=quiet.others,
    )


def _with_a_snapshot(server: PostgresServer) -> Ratio:
    held, free = made(server, "held"), made(server, "free")
    ours: list[float] = []
    limit: list[float] = []
    with watched(server.pid) as quiet, snapshot_of(held):
        wear(held)
        for number in range(ROUNDS):
            ours.append(rate(held, None, f"held{number}"))
            limit.append(rate(free, None, f"free{number}"))
    return Ratio(
        name=f"PostgreSQL, mode single, a snapshot held all the time, {DEAD_ROWS:,} dead rows, one worker thread",
        unit="messages/s",
        ours=ours,
        limit=limit,
        limit_name="the same without it",
        goal=GOAL,
        others=quiet.others,
    )


def made(server: PostgresServer, name: str) -> str:
    """Create a database with the tables of the store and the job. Return its URL."""
    url = new(server, name)
    with psycopg.connect(url) as connection:
        connection.execute(TABLE)
    return url


def new(server: PostgresServer, name: str) -> str:
    url = copy(server, name, "template1")
    migrate_database(url)
    return url


def fill(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET synchronous_commit TO off")
        for first in range(1, ROWS + 1, ROWS_A_COMMIT):
            connection.execute(statement, {"first": first, "last": min(first + ROWS_A_COMMIT - 1, ROWS)})


def wear(url: str) -> None:
    """Leave ``DEAD_ROWS`` dead rows, as claimed and handled messages do."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(MAKE_ROWS, {"rows": DEAD_ROWS})
        connection.execute("UPDATE stagepost_ready SET owner = 'worn', claimed_in = pg_current_xact_id()")
        connection.execute("DELETE FROM stagepost_ready")


def rate(database: str, queue: str | None, name: str) -> float:
    """Return the handled messages a second."""
    # The flows start directly in the queue, because only their handling is measured.
    starter = make_app_on(queue or database)
    start(starter, ITEMS, name)
    starter.close()
    return 2 * ITEMS / drain(make_app_on(database, queue=queue))


@contextmanager
def snapshot_of(url: str) -> Iterator[None]:
    with psycopg.connect(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT count(*) FROM stagepost_ready")
        yield
