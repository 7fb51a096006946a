"""A store of each earlier version, with something in each of its tables, comes to this one, and what waited goes on.

The tables are made by the migrations that there were, and filled by plain statements, with values as they were written
then: nothing here is made by the code of today, which must find its way in it.
"""

from __future__ import annotations

import hashlib
import json
import signal
import sqlite3
import subprocess
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import msgspec
import psycopg
import pytest

from stagepost import App, Context, IdConflict
from stagepost.liveness.proof import survey_of
from stagepost.liveness.survey import LOOKS_MIN
from stagepost.liveness.takeover import Takeover
from stagepost.store.postgres import migrate as postgres_migrate
from stagepost.store.postgres.store import migrate_database
from stagepost.store.sqlite import migrate as sqlite_migrate
from stagepost.store.sqlite.store import migrate_file
from stagepost.testing import Harness, ManualClock
from stagepost.testing.harness import running
from tests.cli.shop import command, parsed
from tests.faults.waiting import wait_until

pytestmark = pytest.mark.more

Row = dict[str, Any]

NOW = 1_700_000_000_000_000
SECOND = 1_000_000


# The shop


@dataclass
class Order:
    number: int


@dataclass
class Taken:
    number: int


@dataclass
class Basket:
    total: int = 0


PAYMENT = "CREATE TABLE payment (flow TEXT NOT NULL, number INTEGER NOT NULL)"


def enter(ctx: Context, number: int) -> None:
    ctx.sql("INSERT INTO payment (flow, number) VALUES (:flow, :number)", flow=ctx.flow_id, number=number)


def open_shop(database: str, transport: str | None = None) -> App:
    app = App("shop", database=database, transport=transport, clock=ManualClock(NOW + SECOND), random=Random(0))

    @app.endpoint("shop.pay")
    def pay(ctx: Context, order: Order) -> None:
        enter(ctx, order.number)

    @app.endpoint("shop.take")
    def take(ctx: Context, order: Order) -> Taken:
        return Taken(order.number)

    place = app.staged("shop.place")

    @place.stage
    def ask(ctx: Context, basket: Basket, order: Order) -> None:
        ctx.request(take, order)

    @place.stage
    def confirm(ctx: Context, basket: Basket, taken: Taken) -> None:
        enter(ctx, basket.total + taken.number)

    return app


# What was in it


def envelope(flow: str, to: str = "shop.pay", **more: Any) -> bytes:
    """Of the message ``m-<flow>``, as it travels since the first version."""
    return json.dumps(
        {
            "message_id": f"m-{flow}",
            "flow_id": flow,
            "kind": "send",
            "to": to,
            "sender": "app@old:1",
            "messages": [{"type": "Order", "body": {"number": 1}}],
            "origin_at": NOW,
            "sent_at": NOW,
            **more,
        },
        separators=(",", ":"),
    ).encode()


def message(flow: str, *, stage: str = "shop.pay", **columns: Any) -> Row:
    return {
        "stage": stage,
        "message_id": f"m-{flow}",
        "flow_id": flow,
        "failures": 0,
        "deaths": 0,
        "deliveries": 0,
        "origin_at": NOW,
        "envelope": envelope(flow, stage),
        **columns,
    }


def letter(flow: str, **columns: Any) -> Row:
    causes = '[{"type":"stagepost.Refuse","message":"žluť \\u0000 [/red]"}]'
    return {
        **message(flow),
        "reason": "refused",
        "causes": causes,
        "stack": "Traceback …\n  \U0001f9fe",
        "fingerprint": "0123456789ab",
        "dead_at": NOW,
        "node": "worker@old:1",
        "declared_at": "shop.py:1",
        **columns,
    }


def line(waypoint: str, flow: str, **columns: Any) -> Row:
    return {
        "waypoint": waypoint,
        "at": NOW,
        "node": "worker@old:1",
        "stage": "shop.pay",
        "message_id": f"m-{flow}",
        "flow_id": flow,
        "attempt": 1,
        "origin_at": NOW,
        **columns,
    }


STACK = [{"to": "shop.place.confirm", "state": {"total": 6}}]
ASKED = envelope("asked", "shop.take", kind="request", cause_id="m-cause", hops=1, stack=STACK)
# Of the flow "done" at shop.pay, and of its message's body.
DONE_KEY = "50f79da1-184f-54a8-b54e-8e9faa8ba623"
DONE_DIGEST = "3d6a916e86efba9105154ea95dda8d8da47df173d931c23e7a346c7babd81a3e"
PRODUCED = [NOW, "worker@old:1", 1, 0.5, None, [[envelope("produced", cause_id="m-handled"), None, None]]]
HANDLED = {"stage": "shop.pay", "handled_at": NOW, "leased_until": NOW}


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# The first version that had the table, and what was in it.
ROWS: list[tuple[int, str, list[Row]]] = [
    (
        1,
        "ready",
        [
            message("ready"),
            message("again", failures=1, deliveries=3),
            message("claimed", deliveries=1, owner="shop/old"),
            message("asked", stage="shop.take", envelope=ASKED),
        ],
    ),
    (1, "delayed", [message("delayed", due_at=NOW + 60 * SECOND, failures=1, deliveries=1)]),
    (1, "suspect", [message("suspect", due_at=NOW, deaths=1, deliveries=2)]),
    (
        1,
        "dead_letter",
        [
            letter("refused", failures=1, deliveries=1),
            letter("kept", reason="undecodable", envelope=b"\xff\x00{", failures=1, deliveries=1),
            letter("deadly", reason="worker-died", deaths=3, deliveries=4, causes='[{"type":"a","message":"b"}]'),
        ],
    ),
    (
        1,
        "accepted",
        [
            {"scope": "shop.pay", "key": DONE_KEY, "digest": DONE_DIGEST, "run_id": None, "accepted_at": NOW},
            {"scope": "shop.pay", "key": "another", "digest": DONE_DIGEST, "run_id": "run", "accepted_at": NOW},
        ],
    ),
    (
        1,
        "journal",
        [
            line("accepted", "done", attempt=0, kind="send", ordinal=0, bytes=2**40, detail="run"),
            line("received", "done"),
            line("committed", "done", ms=0.1),
            line("sent", "asked", attempt=0, cause_id="m-cause", kind="request", ordinal=0, detail="shop.place"),
            line("failed", "again", detail="RuntimeError: žluť \U0001f9fe"),
        ],
    ),
    (
        1,
        "run",
        [
            {"id": "run", "target": "shop.pay", "source": "a.csv", "started_at": NOW, "rows_in": 4, "ended_at": NOW},
            {
                "id": "cut",
                "target": "shop.pay",
                "source": "b.csv",
                "started_at": NOW,
                "rows_in": None,
                "ended_at": None,
            },
        ],
    ),
    (1, "run_chunk", [{"run_id": "run", "task": 0, "chunk": 1, "started": 2, "repeated": 1, "quarantined": 1}]),
    (
        1,
        "quarantine",
        [{"run_id": "run", "file": "a.csv", "record": 3, "reason": "no-id", "flow_id": None, "row": '{"ž": null}'}],
    ),
    (
        2,
        "inbox",
        [
            {**HANDLED, "message_id": "m-sent", "digest": digest(b"sent"), "produced": None, "is_sent": True},
            {
                **HANDLED,
                "message_id": "m-handled",
                "digest": digest(envelope("handled")),
                "produced": msgspec.msgpack.encode(PRODUCED),
                "is_sent": False,
            },
        ],
    ),
    (
        2,
        "outbox",
        [
            {
                "next_at": at,
                "attempts": attempts,
                "scope": "shop.pay",
                "key": f"m-{flow}",
                "digest": DONE_DIGEST,
                "run_id": None,
                "due_at": due_at,
                "topic": None,
                "node": "app@old:1",
                "held_at": NOW,
                "envelope": envelope(flow),
            }
            for flow, at, attempts, due_at in (("held", 0, 0, None), ("refused-twice", NOW, 2, NOW + 30 * SECOND))
        ],
    ),
    (
        3,
        "replay",
        [
            {"who": "ada", "asked_at": NOW, "selection": "all", "rate": None, "letters": 1, "replayed": 1, "gone": 0},
            {"who": "žofie", "asked_at": NOW, "selection": "all", "rate": 99.5, "letters": 2, "replayed": 1, "gone": 0},
        ],
    ),
    # Broken off: the last letter is left of it.
    (3, "replay_letter", [{"replay": 2, "letter": 3}]),
    (4, "subscription", [{"topic": "bank.booked", "subscriber": "bank.tell", "app": "bank"}]),
    (
        5,
        "streak",
        [
            {
                "stage": stage,
                "messages": '["m-again"]',
                "line": 5,
                "error": "RuntimeError: žluť",
                "paused_at": paused_at,
                "next_probe_at": paused_at,
                "probes": probes,
                "probe": probes,
                "probe_message": None,
            }
            for stage, paused_at, probes in (("shop.pay", None, None), ("bank.book", NOW, 2))
        ],
    ),
    (5, "probed", [{"stage": "bank.book", "message_id": "m-bank"}]),
]
DECLARATIONS: list[Row] = [
    {"stage": "shop.pay", "endpoint": "shop.pay", "app": "shop", "dropped_at": None},
    {"stage": "shop.place.check", "endpoint": "shop.place", "app": "shop", "dropped_at": NOW},
]
ROWS_OF_SQLITE: list[tuple[int, str, list[Row]]] = [*ROWS, (6, "declaration", DECLARATIONS)]
# With rows for those who live: the one who held what is claimed is dead, for nobody holds its lock.
ROWS_OF_POSTGRES: list[tuple[int, str, list[Row]]] = [
    *ROWS,
    (
        1,
        "incarnation",
        [
            {
                "app": "shop",
                "owner": "shop/old",
                "node": "worker@old:1",
                "host": "old",
                "process": 1,
                "slots": 1,
                "started_at": NOW,
                "beat": 9,
                "states": '{"9 9": "timed-out"}',
            }
        ],
    ),
    (7, "declaration", DECLARATIONS),
    (2, "decision", [{"gid": f"stagepost:{each}", "is_commit": each, "decided_at": NOW} for each in (True, False)]),
]


# The two stores, as nobody's code but this module's sees them


class Old(ABC):
    """A store that is made here, version by version. ``?`` stands for a parameter."""

    migrations: ModuleType
    rows: list[tuple[int, str, list[Row]]]
    url: str

    @abstractmethod
    def migrate(self) -> list[int]: ...

    @abstractmethod
    def run(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def tables(self) -> set[str]:
        """Stagepost's, without the beginning that all their names have."""

    @abstractmethod
    def columns(self, table: str) -> list[str]: ...

    @abstractmethod
    def catalog(self) -> list[tuple[Any, ...]]:
        """All that the database says of what is in it, but for the rows."""

    def make(self, version: int) -> None:
        """The tables of that version, beside one of the user's, as whoever had it made them."""
        numbered = self.migrations.migrations()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.migrations, "migrations", lambda: numbered[:version])
            assert self.migrate() == list(range(1, version + 1))
        self.run(PAYMENT)

    def fill(self, version: int) -> None:
        """With rows of every kind that the version had."""
        filled = [(table, rows) for first, table, rows in self.rows if first <= version]
        assert {table for table, _ in filled} == self.tables() - {"meta"}, "a table has no rows here"
        for table, rows in filled:
            for row in rows:
                marks = ", ".join("?" * len(row))
                self.run(f"INSERT INTO stagepost_{table} ({', '.join(row)}) VALUES ({marks})", *row.values())
        self.run("INSERT INTO payment (flow, number) VALUES ('theirs', 1)")

    def version(self) -> int:
        return int(self.run("SELECT value FROM stagepost_meta WHERE key = 'version'")[0][0])

    def content(self) -> dict[str, Row]:
        """By table: the columns that it has, and its rows."""
        return {table: self._content_of(f"stagepost_{table}", self.columns(table)) for table in self.tables()}

    def content_of_the_same_columns(self, before: dict[str, Row]) -> dict[str, Row]:
        return {table: self._content_of(f"stagepost_{table}", was["columns"]) for table, was in before.items()}

    def _content_of(self, table: str, columns: list[str]) -> Row:
        where = " WHERE key <> 'version'" if table == "stagepost_meta" else ""
        found = self.run(f"SELECT {', '.join(columns)} FROM {table}{where}")
        return {"columns": columns, "rows": sorted(found, key=repr)}


class OldFile(Old):
    migrations = sqlite_migrate
    rows = ROWS_OF_SQLITE

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"

    def migrate(self) -> list[int]:
        return migrate_file(self.path)

    def run(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path)) as connection:
            found = connection.execute(statement, parameters).fetchall()
            connection.commit()
            return found

    def tables(self) -> set[str]:
        found = self.run("SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'stagepost%'")
        return {name.removeprefix("stagepost_") for (name,) in found}

    def columns(self, table: str) -> list[str]:
        return [name for (name,) in self.run(f"SELECT name FROM pragma_table_info('stagepost_{table}')")]

    def catalog(self) -> list[tuple[Any, ...]]:
        return self.run("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name")


# What each of these says is told in words, so that two databases can be compared.
CATALOG = [
    "SELECT relname, relkind, relpersistence, reloptions FROM pg_class WHERE relnamespace = 'public'::regnamespace",
    """
    SELECT attrelid::regclass::text, attnum, attname, format_type(atttypid, atttypmod), attnotnull, attidentity,
           attgenerated, attstorage, pg_get_expr(adbin, adrelid)
    FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
         LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
    WHERE relnamespace = 'public'::regnamespace AND attnum > 0
    """,
    "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'",
    """
    SELECT conrelid::regclass::text, conname, contype, pg_get_constraintdef(oid) FROM pg_constraint
    WHERE connamespace = 'public'::regnamespace
    """,
    "SELECT proname, pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace",
    """
    SELECT sequencename, data_type::text, start_value, min_value, max_value, increment_by, cycle FROM pg_sequences
    WHERE schemaname = 'public'
    """,
    "SELECT tgrelid::regclass::text, tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal",
]


class OldDatabase(Old):
    migrations = postgres_migrate
    rows = ROWS_OF_POSTGRES

    def __init__(self, url: str) -> None:
        self.url = url

    def migrate(self) -> list[int]:
        return migrate_database(self.url)

    def run(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url) as connection:
            cursor = connection.execute(statement.replace("%", "%%").replace("?", "%s").encode(), parameters)
            return cursor.fetchall() if cursor.description else []

    def tables(self) -> set[str]:
        found = self.run("SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename LIKE 'stagepost%'")
        return {name.removeprefix("stagepost_") for (name,) in found}

    def columns(self, table: str) -> list[str]:
        of_table = "SELECT column_name FROM information_schema.columns WHERE table_name = ? ORDER BY ordinal_position"
        return [name for (name,) in self.run(of_table, f"stagepost_{table}")]

    def catalog(self) -> list[tuple[Any, ...]]:
        return [row for query in CATALOG for row in sorted(self.run(query), key=repr)]


MakeOld = Callable[[str], Old]


@pytest.fixture
def old(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MakeOld]:
    """An empty one of ``sqlite`` or ``postgres``, another one each time."""
    made: list[str] = []

    def make(store: str) -> Old:
        if store == "sqlite":
            made.append("")
            return OldFile(tmp_path / f"{len(made)}.db")
        made.append(request.getfixturevalue("postgres_server").new_database())
        return OldDatabase(made[-1])

    yield make
    for url in filter(None, made):
        request.getfixturevalue("postgres_server").drop_database(url)


EARLIER = [
    (store, version)
    for store, migrations in (("sqlite", sqlite_migrate), ("postgres", postgres_migrate))
    for version in range(1, migrations.newest())
]


@pytest.mark.parametrize(("store", "version"), EARLIER)
def test_a_store_of_an_earlier_version_keeps_each_of_its_rows_and_has_the_tables_of_a_new_one(
    old: MakeOld, store: str, version: int
) -> None:
    earlier, new = old(store), old(store)
    earlier.make(version)
    earlier.fill(version)
    before = earlier.content()
    newest = earlier.migrations.newest()
    assert earlier.migrate() == list(range(version + 1, newest + 1))
    assert earlier.version() == newest
    assert earlier.content_of_the_same_columns(before) == before
    assert earlier.run("SELECT flow, number FROM payment") == [("theirs", 1)]
    new.make(newest)
    assert earlier.catalog() == new.catalog()


@pytest.mark.parametrize(("store", "version"), EARLIER)
def test_what_waited_in_a_store_of_an_earlier_version_is_handled_once_in_this_one(
    old: MakeOld, store: str, version: int
) -> None:
    earlier = old(store)
    earlier.make(version)
    earlier.fill(version)
    earlier.migrate()
    app = open_shop(earlier.url)
    expected = Counter({("theirs", 1): 1})
    with closing(app), running(app) as harness:
        assert taken_over(app, harness) == 1
        harness.drain()
        expected.update((flow, 1) for flow in ("ready", "again", "claimed", "delayed", "suspect"))
        expected["asked", 7] += 1
        assert paid(earlier) == expected
        assert [each.flow_id for each in harness.dead_letters()] == ["refused", "kept", "deadly"]

        # What was let in then is known now.
        pay = app.target("shop.pay")
        assert not app.start(pay, Order(1), flow_id="done").is_new
        with pytest.raises(IdConflict):
            app.start(pay, Order(2), flow_id="done")

        told = parsed(command("dead", "replay", "--flow", "refused", "--database", earlier.url, "--json"))
        assert (told["replayed"], told["left"]) == (1, 0)
        if version >= 3:
            told = parsed(command("dead", "replay", "--resume", "2", "--database", earlier.url, "--json"))
            assert (told["replay"], told["replayed"], told["left"]) == (2, 2, 0)
            expected["deadly", 1] += 1
        harness.drain()
        expected["refused", 1] += 1
        assert paid(earlier) == expected
        assert [each.flow_id for each in harness.dead_letters()] == ["kept", *(["deadly"] if version < 3 else [])]


@pytest.mark.parametrize(("store", "version"), [(store, version) for store, version in EARLIER if version >= 2])
def test_what_was_held_for_a_queue_elsewhere_reaches_it(old: MakeOld, store: str, version: int) -> None:
    """What was started, and what was handled and not sent; whose handler does not run again."""
    earlier, queue = old(store), old(store)
    for each in (earlier, queue):
        each.make(version)
    earlier.fill(version)
    row = message("handled", deliveries=1)
    marks = ", ".join("?" * len(row))
    queue.run(f"INSERT INTO stagepost_ready ({', '.join(row)}) VALUES ({marks})", *row.values())
    for each in (earlier, queue):
        each.migrate()
    app = open_shop(earlier.url, queue.url)
    with closing(app), running(app) as harness:
        harness.drain()
        assert harness.dead_letters() == []
    assert paid(earlier) == Counter([("theirs", 1), ("held", 1), ("refused-twice", 1), ("produced", 1)])
    assert earlier.run("SELECT count(*) FROM stagepost_outbox") == [(0,)]
    assert earlier.run("SELECT message_id FROM stagepost_inbox WHERE NOT is_sent") == []


def taken_over(app: App, harness: Harness) -> int:
    """Whoever was on another machine is seen to be dead by looking at his heart for a while."""
    assert isinstance(app.clock, ManualClock)
    moved = 0
    with closing(survey_of(app.store, app.name, app.clock)) as survey:
        takeover = Takeover(app, harness.access, "worker@new:1", survey)
        for _ in range(LOOKS_MIN + 1):
            moved += takeover.sweep()
            app.clock.advance(5)
    return moved


def paid(store: Old) -> Counter[tuple[Any, ...]]:
    return Counter(store.run("SELECT flow, number FROM payment"))


# Killed in the middle of it: between the first step that is missing and the last


@pytest.fixture
def first_version(old: MakeOld, request: pytest.FixtureRequest) -> Old:
    made = old(request.param)
    made.make(1)
    made.fill(1)
    return made


KILLED = """
import os, signal, sys
from pathlib import Path
from stagepost.store.sqlite import migrate
from stagepost.store.sqlite.store import migrate_file

real, (_, last) = migrate.statements_of, migrate.migrations()[-1]

def statements_of(text):
    if text == last:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(text)

migrate.statements_of = statements_of
migrate_file(Path(sys.argv[1]))
"""


@pytest.mark.parametrize("first_version", ["sqlite"], indirect=True)
def test_a_file_whose_migration_was_killed_in_the_middle_is_what_it_was(first_version: OldFile) -> None:
    catalog, content = first_version.catalog(), first_version.content()
    killed = subprocess.run([sys.executable, "-c", KILLED, str(first_version.path)])
    assert killed.returncode == -signal.SIGKILL
    check_untouched_and_migrate(first_version, catalog, content)


KILLED_WHILE_IT_WAITS = """
import sys
from stagepost.store.postgres.store import migrate_database
migrate_database(sys.argv[1])
"""
WAITS = "SELECT 1 FROM pg_locks WHERE relation = 'stagepost_incarnation'::regclass AND NOT granted"
OTHERS = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


@pytest.mark.parametrize("first_version", ["postgres"], indirect=True)
def test_a_database_whose_migration_was_killed_in_the_middle_is_what_it_was(first_version: OldDatabase) -> None:
    """It waits for a table that the sixth step changes, which somebody reads."""
    catalog, content = first_version.catalog(), first_version.content()
    with psycopg.connect(first_version.url) as reader:
        reader.execute("LOCK TABLE stagepost_incarnation IN ACCESS SHARE MODE")
        migrator = subprocess.Popen([sys.executable, "-c", KILLED_WHILE_IT_WAITS, first_version.url])
        wait_until(lambda: first_version.run(WAITS) or migrator.poll() is not None, "it waits in the middle")
        migrator.kill()
        assert migrator.wait() == -signal.SIGKILL
    wait_until(lambda: not first_version.run(OTHERS), "the server has noticed")
    check_untouched_and_migrate(first_version, catalog, content)


def check_untouched_and_migrate(store: Old, catalog: list[tuple[Any, ...]], content: dict[str, Row]) -> None:
    assert store.version() == 1
    assert (store.catalog(), store.content()) == (catalog, content)
    assert store.migrate() == list(range(2, store.migrations.newest() + 1))
    assert store.content_of_the_same_columns(content) == content
