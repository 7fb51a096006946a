"""Measure receiver, stage and dispatcher over each broker against a bare client that does the same work.

The bare client is one connection of the same client library, without Stagepost. It receives a window, inserts and
commits message after message, publishes the window with pipelined confirms, and settles it. Ours is ``stagepost
worker`` with one thread, and its broker process. Both take messages that wait at the broker already.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import psycopg

from benchmarks.broker_job import TABLE
from benchmarks.broker_servers import BROKERS, BrokerServer, broker_at, new_database, running_broker, working
from benchmarks.machine import watched
from benchmarks.postgres_stage import running_server
from benchmarks.result import Ratio, Results
from stagepost.flow.codec import encode_envelope
from stagepost.flow.envelope import Envelope, Message
from stagepost.ports.broker import Publication
from stagepost.testing.postgres import PostgresServer

ITEMS = 4_000
# The measurement begins after so many messages, when all processes are warm.
WARM = 500
WINDOW = 100
ROUNDS = 3
BATCH = 50
GOAL, GOAL_OF_BATCHES = 0.4, 0.7
CONFIRM_SECONDS = 30.0
LOOK_SECONDS = 0.05
STUCK_SECONDS = 300.0
INSERT = "INSERT INTO entry (n, stage, at) VALUES (%s, 1, 0)"
# The rows that say that a message left: the broker has confirmed it.
LEFT = "SELECT count(*) FROM stagepost_journal WHERE waypoint = 'confirmed'"


def measure() -> Results:
    ratios: list[Ratio] = []
    with TemporaryDirectory(prefix="stagepost-bench-") as name, running_server() as (database, _):
        for each in BROKERS:
            with running_broker(each, Path(name)) as broker:
                ratios += _measure(each, broker, database)
    return Results(ratios)


def _measure(name: str, broker: BrokerServer, database: PostgresServer) -> Sequence[Ratio]:
    ours: dict[int, list[float]] = {1: [], BATCH: []}
    bare: dict[int, list[float]] = {1: [], BATCH: []}
    with watched(database.pid) as quiet:
        for number in range(ROUNDS):
            for batch in (1, BATCH):
                run = f"{name}{number}x{batch}"
                ours[batch].append(run_ours(broker, new_database(database, f"ours_{run}", TABLE), f"o{run}-", batch))
                bare[batch].append(run_bare(broker, new_database(database, f"bare_{run}", TABLE), f"b{run}-", batch))
    given = {"unit": "messages/s", "others": quiet.others}
    client = "bare client on the same server"
    return [
        Ratio(
            name=f"{name}: receiver, stage and dispatcher, one message a transaction",
            ours=ours[1],
            limit=bare[1],
            limit_name=f"{client}, one message a commit",
            goal=GOAL,
            **given,  # type: ignore[arg-type]
        ),
        Ratio(
            name=f"{name}: the same with batch={BATCH}",
            ours=ours[BATCH],
            limit=bare[1],
            limit_name=f"{client}, one message a commit",
            goal=GOAL_OF_BATCHES,
            **given,  # type: ignore[arg-type]
        ),
        Ratio(
            name=f"{name}: the same with batch={BATCH}",
            ours=ours[BATCH],
            limit=bare[BATCH],
            limit_name=f"{client}, {BATCH} messages a commit",
            goal=None,
            **given,  # type: ignore[arg-type]
        ),
    ]


def run_ours(broker: BrokerServer, url: str, prefix: str, batch: int) -> float:
    """Return the messages a second of a worker, from its first ones to the confirm of the last one."""
    fill(broker, prefix)
    with working("app", url, broker, prefix, batch=batch), psycopg.connect(url, autocommit=True) as connection:
        begin = _wait_for(connection, WARM)
        end = _wait_for(connection, ITEMS)
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*), count(DISTINCT n) FROM entry").fetchone()
    assert row == (ITEMS, ITEMS), row
    return (ITEMS - WARM) / (end - begin)


def run_bare(broker: BrokerServer, url: str, prefix: str, batch: int) -> float:
    """Return the messages a second of the bare client, counted in the same way."""
    fill(broker, prefix)
    done, warm, begin = 0, 0, 0.0
    with closing(broker_at(broker).connect(CONFIRM_SECONDS)) as connection, psycopg.connect(url) as database:
        connection.subscribe({f"{prefix}bench.pass": WINDOW})
        while done < ITEMS:
            deliveries = connection.receive(CONFIRM_SECONDS)
            for number, each in enumerate(deliveries, 1):
                database.execute(INSERT, (int(each.message_id),))
                if number % batch == 0:
                    database.commit()
            database.commit()
            publications = [
                Publication(f"{prefix}elsewhere.take", each.message_id, each.body, {}) for each in deliveries
            ]
            results = connection.publish(publications, CONFIRM_SECONDS)
            assert set(results) <= {"confirmed"}, results
            connection.settle(deliveries)
            if done < WARM <= done + len(deliveries):
                begin, warm = time.perf_counter(), done + len(deliveries)
            done += len(deliveries)
    return (ITEMS - warm) / (time.perf_counter() - begin)


def fill(broker: BrokerServer, prefix: str) -> None:
    """Make the queues, and publish all messages. They hold many windows."""
    address = f"{prefix}bench.pass"
    with closing(broker_at(broker).connect(CONFIRM_SECONDS)) as connection:
        connection.prepare([f"{prefix}elsewhere.take"], "another store")
        # The store that receives from it gives it its mark.
        connection.prepare([address], "nobody")
        connection.release(address, "nobody")
        for begin in range(0, ITEMS, WINDOW):
            window = [Publication(address, f"{n}", envelope_of(address, n), {}) for n in range(begin, begin + WINDOW)]
            assert set(connection.publish(window, CONFIRM_SECONDS)) == {"confirmed"}


def envelope_of(address: str, n: int) -> bytes:
    body = msgspec.json.encode({"n": n, "text": "x" * 400})
    now = time.time_ns() // 1000
    return encode_envelope(
        Envelope(
            message_id=f"{n}",
            flow_id=f"item:{n}",
            kind="send",
            to=address,
            sender="bench",
            messages=(Message(type="Item", body=msgspec.Raw(body)),),
            origin_at=now,
            sent_at=now,
        )
    )


def _wait_for(connection: psycopg.Connection[tuple[int]], count: int) -> float:
    """Return the moment at which so many messages have left."""
    deadline = time.monotonic() + STUCK_SECONDS
    while time.monotonic() < deadline:
        try:
            row = connection.execute(LEFT.encode()).fetchone()
        except psycopg.errors.UndefinedTable:
            # The worker makes the tables.
            row = (0,)
        if row is not None and row[0] >= count:
            return time.perf_counter()
        time.sleep(LOOK_SECONDS)
    raise RuntimeError(f"{count} messages have not left within {STUCK_SECONDS:g} s: look at the worker's log")
