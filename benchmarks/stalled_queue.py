"""Measure the effect of a stalled queue on callers that do not need it.

25 callers write to the business database and send a message each. They share a pool of 10 connections with four callers
that only write. Our way starts flows in the caller's own transaction, and a relay moves them to the queue. The naive
way commits, and then sends while it still holds the connection. Each way runs with a queue that answers, and with a
queue whose server is suspended all the time.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg

from benchmarks.job import Item
from benchmarks.machine import BUSY_MAX, watched
from stagepost import App, Target
from stagepost.app.app import engine_of
from stagepost.flow.clock import SECOND, SystemClock
from stagepost.flow.ids import node_name
from stagepost.runtime.connections import Connections
from stagepost.runtime.pool import Pool
from stagepost.runtime.relay_service import RelayService
from stagepost.testing.postgres import PostgresServer
from tests.servers.stalling import stalled as stalled_server

POOL = 10
CALLERS = 25
OTHERS = 4
SECONDS = 4.0
ROUNDS = 3
# The pauses between two calls of one thread.
CALLER_PAUSE_SECONDS = 0.2
OTHER_PAUSE_SECONDS = 0.005
# The time that idle callers get at the end to return their connections.
GRACE_SECONDS = 1.0
THROUGHPUT_MIN = 0.95
P99_MAX = 1.05

Connection = psycopg.Connection[Any]
Call = Callable[[Connection, str], None]

WORK = "INSERT INTO work (what) VALUES (%s)"


@dataclass
class Run:
    """One run. ``milliseconds`` are those of each call that needs no queue. ``figures`` show the pool at the end."""

    seconds: float
    milliseconds: list[float] = field(default_factory=list)
    figures: Connections | None = None
    ended_at: int = 0

    @property
    def throughput(self) -> float:
        return len(self.milliseconds) / self.seconds

    @property
    def p99(self) -> float:
        return sorted(self.milliseconds)[int(len(self.milliseconds) * 0.99)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    name: str
    calm: Sequence[Run]
    stalled: Sequence[Run]
    what: str = "queue"

    @property
    def throughput(self) -> float:
        return statistics.median(b.throughput / a.throughput for a, b in zip(self.calm, self.stalled, strict=True))

    @property
    def p99(self) -> float:
        return statistics.median(b.p99 / a.p99 for a, b in zip(self.calm, self.stalled, strict=True))

    def lines(self) -> Iterator[str]:
        yield f"  {self.name}"
        for kind, runs in (("answers", self.calm), ("stalls", self.stalled)):
            throughput = statistics.median(run.throughput for run in runs)
            p99 = statistics.median(run.p99 for run in runs)
            figures = f"{throughput:>8,.0f} calls/s, p99 {p99:>9,.1f} ms"
            yield f"    the {self.what} {kind:<8} {figures}; {_at_the_end(runs[-1])}"
        yield f"    ratio              throughput {self.throughput:.2f}, p99 {self.p99:.2f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    ours: Variant
    naive: Variant
    others: float

    @property
    def is_valid(self) -> bool:
        return self.others <= BUSY_MAX

    @property
    def is_reached(self) -> bool:
        """Return whether our callers hold no connection while the queue stalls, and no other caller is slower."""
        holds_none = all(run.figures is not None and run.figures.in_use == 0 for run in self.ours.stalled)
        return holds_none and self.ours.throughput >= THROUGHPUT_MIN and self.ours.p99 <= P99_MAX

    def lines(self) -> list[str]:
        head = f"A queue that stalls: calls without a queue, with {CALLERS} callers that use it, on {POOL} connections"
        if not self.is_valid:
            return [head, f"  not measured: other processes used {self.others:.0%} of a core; run it again"]
        goal = f"no connection in use, throughput {THROUGHPUT_MIN:g} at least, p99 {P99_MAX:g} at most"
        return [
            head,
            *self.ours.lines(),
            *self.naive.lines(),
            f"  goal for ours: {goal}: {'reached' if self.is_reached else 'MISSED'}",
        ]


def measure() -> Stall:
    with TemporaryDirectory(prefix="stagepost-bench-") as temporary, ExitStack() as running:
        folder = Path(temporary)
        folder.chmod(0o755)
        business, queue = (_started(folder / each, running) for each in ("business", "queue"))
        for server, statement in ((business, "work (what text)"), (queue, "sent (what text)")):
            with psycopg.connect(server.url) as connection:
                connection.execute(f"CREATE TABLE {statement}")
        app = App("bench", database=business.url, queue=queue.url)
        relay_service = RelayService(engine_of(app), node_name("bench"))
        relay_service.start()
        variants: dict[str, Call] = {
            "ours: app.initiate(connection=…), then commit": partial(in_the_transaction, app, app.remote("to", Item)),
            "naive: commit, then send, and then return the connection": AfterCommit(queue.url),
        }
        runs: dict[str, tuple[list[Run], list[Run]]] = {name: ([], []) for name in variants}
        with watched(business.pid, queue.pid) as quiet:
            for _ in range(ROUNDS):
                for name, call in variants.items():
                    calm, stalled = runs[name]
                    calm.append(run(call, business.url, nullcontext))
                    stalled.append(run(call, business.url, partial(stalled_server, queue)))
        relay_service.stop()
        relay_service.join(60)
        app.close()
        ours, naive = (Variant(name=name, calm=calm, stalled=stalled) for name, (calm, stalled) in runs.items())
        return Stall(ours=ours, naive=naive, others=quiet.others)


def in_the_transaction(app: App, target: Target[Item, None], connection: Connection, name: str) -> None:
    connection.execute(WORK, (name,))
    with app.initiate(connection=connection) as out:
        out.send(target, Item(0, name), flow_id=name)
    connection.commit()


class AfterCommit:
    """The naive way: send after the commit, with a connection to the queue for each thread."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._mine = threading.local()

    def __call__(self, connection: Connection, name: str) -> None:
        connection.execute(WORK, (name,))
        connection.commit()
        if not hasattr(self._mine, "queue"):
            self._mine.queue = psycopg.connect(self._url, autocommit=True)
        self._mine.queue.execute("INSERT INTO sent (what) VALUES (%s)", (name,))


def run(call: Call, url: str, stall: Callable[[], AbstractContextManager[object]], seconds: float = SECONDS) -> Run:
    """Let all callers work for some seconds within the block of ``stall``."""
    clock = SystemClock()
    pool: Pool[Connection] = Pool(lambda: psycopg.connect(url), clock, most=POOL)
    found = Run(seconds)
    end = threading.Event()
    # Before the measurement starts, all threads have made a call, so the pool has its connections.
    warm = threading.Barrier(CALLERS + OTHERS + 1)
    begin = threading.Event()

    def send_messages(name: str) -> None:
        number = 0
        while not end.is_set():
            with pool.taken() as connection:
                call(connection, f"{name} {clock.now()} {number}")
            if number == 0:
                warm.wait()
                begin.wait()
            number += 1
            end.wait(CALLER_PAUSE_SECONDS)

    def work(name: str) -> None:
        warm.wait()
        begin.wait()
        while not end.is_set():
            called_at = time.perf_counter()
            with pool.taken() as connection:
                connection.execute(WORK, (name,))
                connection.commit()
            found.milliseconds.append((time.perf_counter() - called_at) * 1000)
            end.wait(OTHER_PAUSE_SECONDS)

    names = [(send_messages, f"caller-{number}") for number in range(CALLERS)]
    names += [(work, f"other-{number}") for number in range(OTHERS)]
    threads = [threading.Thread(target=target, args=(name,), name=name) for target, name in names]
    for thread in threads:
        thread.start()
    warm.wait()
    with stall():
        begin.set()
        time.sleep(seconds)
        end.set()
        deadline = time.monotonic() + GRACE_SECONDS
        while pool.figures().in_use and time.monotonic() < deadline:
            time.sleep(0.01)
        found.figures, found.ended_at = pool.figures(), clock.now()
    for thread in threads:
        thread.join()
    with closing(pool):
        return found


def _started(folder: Path, running: ExitStack) -> PostgresServer:
    server = PostgresServer(folder)
    server.make()
    server.start()
    running.callback(server.stop, "immediate")
    return server


def _at_the_end(run: Run) -> str:
    figures = run.figures
    assert figures is not None
    text = f"at the end {figures.in_use} of {figures.most} in use, {figures.waiting} waiting"
    if not figures.holders:
        return text
    longest = figures.holders[0]
    return f"{text}, longest {(run.ended_at - longest.since) / SECOND:.1f} s by {longest}"
