"""The callers: each takes an order, writes it in a transaction, and sends a message about it."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Self
from urllib.parse import urlsplit

import amqp
import psycopg

from examples.slow_callbacks.pool import APPLICATION, Pool
from stagepost import App

CALLERS = 25
CONNECTIONS = 10
# So many orders show that the callers work.
WORKING = 100
# A connection that is held for longer starves the others.
HELD_SECONDS = 1.0
DEADLINE_SECONDS = 120.0

Kind = Literal["send after the commit", "stagepost"]
Send = Callable[[psycopg.Connection, int], None]


@dataclass
class Order:
    number: int


@dataclass(frozen=True)
class Outcome:
    """The state while the broker is stopped, and whether the callers work again when it goes on.

    ``done``      orders that were taken while the broker was stopped, up to ``WORKING``
    ``in_use``    connections of the pool that were held
    ``idle``      of these, how many were idle for the server, with COMMIT as the last statement
    ``culprit``   the function in which most of them were held
    """

    done: int
    in_use: int
    idle: int
    culprit: str | None
    has_recovered: bool


class Callers:
    """``send`` commits an order's transaction and sends its message, in one order or in the other."""

    def __init__(self, pool: Pool, send: Send) -> None:
        self._pool = pool
        self._send = send
        self._numbers = itertools.count(1)
        self._ended = threading.Event()
        self._done = itertools.count(1)
        self.done = 0
        self._threads = [threading.Thread(target=self._call) for _ in range(CALLERS)]

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for each in self._threads:
            each.join()

    def _call(self) -> None:
        while not self._ended.is_set():
            with self._pool.connection(self._ended) as connection:
                if connection is None:
                    return
                number = next(self._numbers)
                connection.execute("INSERT INTO orders (number) VALUES (%s)", (number,))
                self._send(connection, number)
            self.done = next(self._done)


def run(kind: Kind, database: str, broker: str, broker_pid: int) -> Outcome:
    """Let the callers work, stop the broker, look, and let it go on."""
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS orders (number bigint)")
    pool = Pool(database, CONNECTIONS)
    with closing(pool), sending(kind, database, broker) as send, Callers(pool, send) as callers:
        work(callers)
        os.kill(broker_pid, signal.SIGSTOP)
        try:
            before = callers.done
            wait_until(lambda: callers.done >= before + WORKING or len(pool.culprits(HELD_SECONDS)) == CONNECTIONS)
            found = Counter(pool.culprits(HELD_SECONDS))
            culprit = found.most_common(1)[0][0] if found else None
            done, in_use, idle = min(callers.done - before, WORKING), pool.in_use, idle_after_commit(database)
        finally:
            os.kill(broker_pid, signal.SIGCONT)
        work(callers)
    return Outcome(done, in_use, idle, culprit, has_recovered=True)


@contextmanager
def sending(kind: Kind, database: str, broker: str) -> Iterator[Send]:
    if kind == "stagepost":
        app = App("orders", database=database, broker=broker)
        ship: Any = app.remote("shipping.ship", Order)

        def start(connection: psycopg.Connection, number: int) -> None:
            with app.initiate(connection=connection) as out:
                out.send(ship, Order(number), flow_id=f"order-{number}")
            connection.commit()

        # The first start opens the store, which is no part of the measurement.
        app.connections()
        with closing(app):
            yield start
        return
    with closing(Publisher(broker)) as publisher:
        yield partial(commit_and_send, publisher)


def commit_and_send(publisher: Publisher, connection: psycopg.Connection, number: int) -> None:
    connection.commit()
    send_after_commit(publisher, number)


def send_after_commit(publisher: Publisher, number: int) -> None:
    """Send as the after-commit hooks of web frameworks do: the caller still holds its connection."""
    publisher.publish(f'{{"number": {number}}}')


class Publisher:
    """A connection to the broker for each thread, with confirms."""

    def __init__(self, broker: str) -> None:
        self._parts = urlsplit(broker)
        self._own = threading.local()
        self._opened: list[amqp.Connection] = []

    def publish(self, body: str) -> None:
        channel = getattr(self._own, "channel", None)
        if channel is None:
            parts = self._parts
            connection = amqp.Connection(
                f"{parts.hostname}:{parts.port}",
                userid=parts.username,
                password=parts.password,
                virtual_host=parts.path[1:] or "/",
                confirm_publish=True,
            )
            connection.connect()
            self._opened.append(connection)
            channel = self._own.channel = connection.channel()
            channel.queue_declare("orders.naive", durable=True, auto_delete=False)
        channel.basic_publish(amqp.Message(body, delivery_mode=2), routing_key="orders.naive")

    def close(self) -> None:
        for each in self._opened:
            each.close()


def idle_after_commit(database: str) -> int:
    with psycopg.connect(database) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND state = 'idle' AND query = 'COMMIT'",
            (APPLICATION,),
        ).fetchone()
    assert row is not None
    return int(row[0])


def work(callers: Callers) -> None:
    before = callers.done
    wait_until(lambda: callers.done >= before + WORKING)


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not is_true():
        if time.monotonic() > deadline:
            raise TimeoutError("the callers did not go on in time")
        time.sleep(0.02)
