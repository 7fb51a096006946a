"""Measure the size of a store under steady traffic, with a purge after each hour of an injected clock.

    python -m benchmarks.store_size --store postgres --hours 240

Rows are kept for a day. The greatest size of each day is printed. It must be flat from the fourth day on.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

import psycopg

from benchmarks.job import TABLE, make_app_on, start
from benchmarks.machine import describe
from stagepost import App
from stagepost.app.app import engine_of
from stagepost.ports.registry import driver_of
from stagepost.runtime.purge_service import count_hour, purge_all
from stagepost.testing import Harness, ManualClock
from stagepost.transaction.retention import Rules

Store = Literal["sqlite", "postgres"]

DAY = 24
SETTLED_DAYS = 3
RULES = Rules({"@initiations": DAY, "@journal": DAY})
# The greatest size of the later days may be so many times their smallest.
GROWTH_MAX = 1.1


class Place(NamedTuple):
    """A store. ``execute`` runs a statement outside Stagepost, ``size`` returns the bytes that the store takes."""

    url: str
    execute: Callable[[str], object]
    size: Callable[[], int]


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.store_size")
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--hours", type=int, default=10 * DAY)
    parser.add_argument("--flows", type=int, default=200, help="flows an hour")
    options = parser.parse_args(words)
    print(describe())
    with opened(options.store) as place:
        sizes = list(curve(place, options.hours, options.flows))
    later = sizes[SETTLED_DAYS:]
    growth = max(later) / min(later)
    print(f"from day {SETTLED_DAYS + 1} on, the greatest size is {growth:.2f} times the smallest")
    return 0 if growth <= GROWTH_MAX else 1


def curve(place: Place, hours: int, flows: int) -> Iterator[int]:
    """Yield the greatest size of each day, in bytes."""
    clock, peak = ManualClock(), 0
    app: App = make_app_on(place.url, clock=clock)
    with closing(Harness(app)) as harness:
        for hour in range(1, hours + 1):
            clock.advance(3600)
            count_hour(harness.access, clock)
            start(app, flows, f"hour-{hour}")
            harness.drain()
            for _ in purge_all(harness.access, engine_of(app).store, rules=RULES):
                pass
            # The rows of the handlers are not the store's.
            place.execute("DELETE FROM entry")
            peak = max(peak, place.size())
            if hour % DAY == 0:
                print(f"day {hour // DAY}: at most {peak / 1e6:.2f} MB, after {hour * flows:,} flows", flush=True)
                yield peak
                peak = 0


@contextmanager
def opened(store: Store) -> Iterator[Place]:
    """Yield a new store with the table of the measured job."""
    with TemporaryDirectory(prefix="stagepost-bench-") as folder:
        if store == "sqlite":
            path = Path(folder) / "store.db"
            url = f"sqlite:///{path}"
            driver_of(url).open(url)
            with closing(sqlite3.connect(path, isolation_level=None)) as file:
                file.execute(TABLE)
                yield Place(url, file.execute, lambda: path.stat().st_size)
            return
        from benchmarks.postgres_stage import copy, make_template, running_server  # noqa: PLC0415 - needs a server

        with running_server() as (server, _):
            make_template(server)
            url = copy(server, "size")
            with psycopg.connect(url, autocommit=True) as connection:
                yield Place(url, partial(vacuumed, connection), lambda: size_of(connection))


def vacuumed(connection: psycopg.Connection, statement: str) -> None:
    """Run a statement, and do the work of the server's own vacuum, which may not come in so short a time."""
    connection.execute(statement)
    connection.execute("VACUUM")


def size_of(connection: psycopg.Connection) -> int:
    row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    assert row is not None
    return int(row[0])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
