"""Tables are made, checked and brought up to date: forward only, by whoever comes first."""

from __future__ import annotations

import re
import signal
import sqlite3
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from stagepost import SchemaMismatch, StoreError, StoreUnavailable
from stagepost.store.postgres import migrate as postgres_migrate
from stagepost.store.postgres.store import PostgresStore, migrate_database
from stagepost.store.sqlite import migrate as sqlite_migrate
from stagepost.store.sqlite.store import SqliteStore, migrate_file
from tests.servers.postgres import Server
from tests.waiting import wait_until


class Place(ABC):
    """A file or a database with nothing in it yet. ``migrations`` is its store's module."""

    migrations: Any

    @abstractmethod
    def open(self) -> SqliteStore | PostgresStore: ...

    @abstractmethod
    def migrate(self) -> list[int]: ...

    @abstractmethod
    def query(self, statement: str) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def tables(self) -> set[str]: ...

    @property
    @abstractmethod
    def address(self) -> str: ...

    def version(self) -> str:
        found: str = self.query("SELECT value FROM stagepost_meta WHERE key = 'version'")[0][0]
        return found

    def meta(self) -> list[tuple[Any, ...]]:
        return self.query("SELECT * FROM stagepost_meta ORDER BY key")


class FilePlace(Place):
    migrations = sqlite_migrate

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self) -> SqliteStore:
        return SqliteStore(self.path)

    def migrate(self) -> list[int]:
        return migrate_file(self.path)

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path)) as connection:
            rows = connection.execute(statement).fetchall()
            connection.commit()
            return rows

    def tables(self) -> set[str]:
        return {name for (name,) in self.query("SELECT name FROM sqlite_schema WHERE type = 'table'")}

    @property
    def address(self) -> str:
        return str(self.path)


class DatabasePlace(Place):
    migrations = postgres_migrate

    def __init__(self, url: str) -> None:
        self.url = url

    def open(self) -> PostgresStore:
        return PostgresStore(self.url)

    def migrate(self) -> list[int]:
        return migrate_database(self.url)

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def tables(self) -> set[str]:
        return {name for (name,) in self.query("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")}

    @property
    def address(self) -> str:
        return self.url


@pytest.fixture(params=["sqlite", "postgres"])
def new_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Place]]:
    """Another one each time."""
    made: list[str] = []

    def make() -> Place:
        if request.param == "sqlite":
            made.append(f"store-{len(made)}.db")
            return FilePlace(tmp_path / made[-1])
        made.append(server().new_database())
        return DatabasePlace(made[-1])

    def server() -> Server:
        found: Server = request.getfixturevalue("postgres_server")
        return found

    yield make
    if request.param == "postgres":
        for url in made:
            server().drop_database(url)


@pytest.fixture
def place(new_place: Callable[[], Place]) -> Place:
    return new_place()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def add(place: Place, text: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """One migration more, as the next release has it; returns its number."""
    numbered = place.migrations.migrations()
    number = len(numbered) + 1
    monkeypatch.setattr(place.migrations, "migrations", lambda: [*numbered, (number, text)])
    return number


NEXT = "-- a remark; with a semicolon\nCREATE TABLE stagepost_next (a TEXT);\n"


def test_opening_makes_the_tables_beside_those_of_the_user(place: Place) -> None:
    place.query("CREATE TABLE payment (id TEXT)")
    store = place.open()
    assert place.version() == str(place.migrations.newest())
    assert {"payment", "stagepost_meta", "stagepost_ready", "stagepost_journal"} <= place.tables()
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", store.uuid)


def test_opening_makes_the_tables_in_a_file_that_is_not_there(path: Path) -> None:
    SqliteStore(path)
    assert "stagepost_ready" in FilePlace(path).tables()
    assert FilePlace(path).query("PRAGMA journal_mode") == [("wal",)]


def test_an_empty_file_is_a_new_one(path: Path) -> None:
    path.touch()
    SqliteStore(path)
    assert FilePlace(path).version() == str(sqlite_migrate.newest())


def test_opening_again_changes_nothing_and_finds_the_same_store(new_place: Callable[[], Place]) -> None:
    place = new_place()
    first = place.open()
    before = place.meta()
    assert place.open().uuid == first.uuid
    assert place.meta() == before
    assert place.migrate() == []
    assert new_place().open().uuid != first.uuid


def test_who_only_looks_is_refused_where_there_are_no_tables_and_makes_none(place: Place) -> None:
    place.query("CREATE TABLE payment (id TEXT)")
    open_it: Any = SqliteStore if isinstance(place, FilePlace) else PostgresStore
    where = place.path if isinstance(place, FilePlace) else place.address
    with pytest.raises(StoreUnavailable, match=r"has no tables of Stagepost.*Check the database URL"):
        open_it(where, may_make=False)
    assert place.tables() == {"payment"}
    place.migrate()
    open_it(where, may_make=False)


def test_tables_of_a_newer_version_are_refused_with_the_remedy_and_left_as_they_are(place: Place) -> None:
    place.migrate()
    place.query("UPDATE stagepost_meta SET value = '99' WHERE key = 'version'")
    for open_it in (place.open, place.migrate):
        with pytest.raises(SchemaMismatch, match=r"tables of version 99.*knows them up to.*Upgrade stagepost"):
            open_it()
    assert place.version() == "99"


def test_tables_of_an_older_version_are_refused_until_they_were_migrated(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = place.open()
    number = add(place, NEXT, monkeypatch)
    text = rf"tables of version {number - 1}, and this Stagepost needs {number}.*Stop its workers.*stagepost migrate"
    with pytest.raises(SchemaMismatch, match=text):
        place.open()
    assert "stagepost_next" not in place.tables()
    assert place.migrate() == [number]
    assert place.open().uuid == made.uuid
    assert "stagepost_next" in place.tables()
    assert place.migrate() == []


def test_new_tables_get_all_migrations_at_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    number = add(place, NEXT, monkeypatch)
    assert place.migrate() == list(range(1, number + 1))
    place.open()


def test_a_migration_that_fails_leaves_the_tables_as_they_were(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.migrate()
    text = "CREATE TABLE stagepost_next (a TEXT);\nCREATE TABLE stagepost_ready (a TEXT);\n"
    number = add(place, text, monkeypatch)
    before = place.tables()
    with pytest.raises(StoreError, match="already exists"):
        place.migrate()
    assert place.tables() == before
    assert place.version() == str(number - 1)


def test_who_may_make_no_tables_is_told_so(postgres_server: Server) -> None:
    url = postgres_server.new_database()
    name = url.rpartition("/")[2]
    DatabasePlace(url).query(f"CREATE ROLE {name}_guest LOGIN; REVOKE ALL ON SCHEMA public FROM PUBLIC")
    with pytest.raises(StoreError, match=r"permission denied|no schema has been selected"):
        PostgresStore(url.replace("//postgres@", f"//{name}_guest@"))
    DatabasePlace(url).query(f"DROP ROLE {name}_guest")
    postgres_server.drop_database(url)


def test_migrations_are_numbered_without_a_gap_and_end_with_whole_statements(place: Place) -> None:
    numbered = place.migrations.migrations()
    assert [number for number, _ in numbered] == list(range(1, len(numbered) + 1))
    assert all(text.strip() for _, text in numbered)
    if isinstance(place, FilePlace):
        assert all(sqlite_migrate.statements_of(text) for _, text in numbered)


# Opens each of many new files at the very moment when the other process does, until one of the two fails.
OPENER = """
import mmap, sys
from pathlib import Path
from stagepost.store.sqlite.store import SqliteStore, migrate_file

folder, how, me = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
open_it = {"open": SqliteStore, "migrate": migrate_file}[how]
with (folder / "reached").open("r+b") as file:
    reached = memoryview(mmap.mmap(file.fileno(), 12)).cast("I")
    for n in range(1, int(sys.argv[4]) + 1):
        reached[me] = n
        while min(reached[0], reached[1]) < n and not reached[2]:
            pass
        if reached[2]:
            break
        try:
            open_it(folder / f"{n}.db")
        except Exception as error:
            reached[2] = 1
            print(error)
"""


@pytest.mark.parametrize(
    ("how", "files"),
    [
        ("open", 50),
        pytest.param("open", 300, marks=pytest.mark.more),
        pytest.param("migrate", 300, marks=pytest.mark.soak),
    ],
)
def test_two_processes_may_make_the_same_file_at_once(tmp_path: Path, how: str, files: int) -> None:
    (tmp_path / "reached").write_bytes(bytes(12))
    openers = [
        subprocess.Popen(
            [sys.executable, "-c", OPENER, str(tmp_path), how, str(me), str(files)], stdout=subprocess.PIPE, text=True
        )
        for me in range(2)
    ]
    assert [opener.communicate()[0].splitlines() for opener in openers] == [[], []]
    for path in tmp_path.glob("*.db"):
        assert FilePlace(path).version() == str(sqlite_migrate.newest())
        assert len(FilePlace(path).meta()) == 2


# Several processes, each of which opens or migrates at the moment when it is told to.
MAKER = """
import sys
from importlib import import_module
from pathlib import Path

name, address, how = sys.argv[1:]
migrate = import_module(f"stagepost.store.{name}.migrate")
store = import_module(f"stagepost.store.{name}.store")
numbered = migrate.migrations()
following = [(len(numbered) + n, f"CREATE TABLE stagepost_next_{n} (a TEXT);\\n") for n in range(1, 30)]
migrate.migrations = lambda: [*numbered, *following]
print("ready", flush=True)
sys.stdin.readline()
where = Path(address) if name == "sqlite" else address
open_it = store.SqliteStore if name == "sqlite" else store.PostgresStore
migrate_it = store.migrate_file if name == "sqlite" else store.migrate_database
print(*(migrate_it(where) if how == "migrate" else [open_it(where).uuid]))
"""


def maker(place: Place, how: str) -> subprocess.Popen[str]:
    name = "sqlite" if isinstance(place, FilePlace) else "postgres"
    return subprocess.Popen(
        [sys.executable, "-c", MAKER, name, place.address, how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def at_once(place: Place, how: str) -> list[list[str]]:
    makers = [maker(place, how) for _ in range(3)]
    for each in makers:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    for each in makers:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    said = [each.communicate()[0].split() for each in makers]
    assert [each.returncode for each in makers] == [0, 0, 0]
    return said


@pytest.mark.parametrize("is_new", [True, False])
def test_of_several_processes_that_migrate_at_once_each_step_is_done_by_one(place: Place, is_new: bool) -> None:
    newest = place.migrations.newest()
    if not is_new:
        place.migrate()
    applied = [int(number) for each in at_once(place, "migrate") for number in each]
    assert sorted(applied) == list(range(1 if is_new else newest + 1, newest + 30))
    assert place.version() == str(newest + 29)
    assert len(place.meta()) == 2


def test_of_several_processes_that_open_a_new_database_at_once_all_find_the_same_store(place: Place) -> None:
    assert len({uuid for (uuid,) in at_once(place, "open")}) == 1


def test_one_that_migrates_waits_for_one_that_does_already(postgres_server: Server) -> None:
    """And finds it done; that each of the two asked before would not be enough."""
    place = DatabasePlace(postgres_server.new_database())
    with psycopg.connect(place.url) as other:
        other.execute(postgres_migrate.LOCK)
        waiting = maker(place, "migrate")
        assert waiting.stdin is not None
        waiting.stdin.write("go\n")
        waiting.stdin.flush()
        waits = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        while not place.query(waits):
            assert waiting.poll() is None
        for number, text in postgres_migrate.migrations():
            other.execute(text.encode(), prepare=False)
            other.execute("INSERT INTO stagepost_meta VALUES ('version', %s)", (str(number),))
    said, _ = waiting.communicate()
    assert said.split()[1:] == [str(postgres_migrate.newest() + n) for n in range(1, 30)]
    postgres_server.drop_database(place.url)


# It dies between two steps, the first of which is done.
KILLED = """
import os, signal, sys
from importlib import import_module
from pathlib import Path

name, address = sys.argv[1:]
migrate = import_module(f"stagepost.store.{name}.migrate")
store = import_module(f"stagepost.store.{name}.store")
numbered = migrate.migrations()

class Deadly(str):
    def splitlines(self, keepends=False):
        os.kill(os.getpid(), signal.SIGKILL)

    encode = splitlines

made = (len(numbered) + 1, "CREATE TABLE stagepost_next (a TEXT);\\n")
migrate.migrations = lambda: [*numbered, made, (len(numbered) + 2, Deadly())]
if name == "sqlite":
    store.migrate_file(Path(address))
else:
    store.migrate_database(address)
"""
OTHERS = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


def test_tables_whose_migration_was_killed_in_the_middle_are_what_they_were(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.migrate()
    before = place.tables(), place.meta()
    name = "sqlite" if isinstance(place, FilePlace) else "postgres"
    killed = subprocess.run([sys.executable, "-c", KILLED, name, place.address])
    assert killed.returncode == -signal.SIGKILL
    if isinstance(place, DatabasePlace):
        wait_until(lambda: not place.query(OTHERS), "the server has noticed")
    assert (place.tables(), place.meta()) == before
    number = add(place, NEXT, monkeypatch)
    assert place.migrate() == [number]


# Files that are none


@pytest.mark.parametrize("content", [b"id;name\n1;Ada\n" * 100, b"\x00" * 4096, b"short"])
def test_a_file_of_something_else_is_refused_and_left_as_it_is(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreUnavailable, match=r"store\.db: file is not a database.*check the database URL"):
        SqliteStore(path)
    assert path.read_bytes() == content


def test_a_folder_that_is_not_there_is_refused_with_the_remedy_and_not_made(tmp_path: Path) -> None:
    for open_it in (SqliteStore, migrate_file):
        with pytest.raises(StoreUnavailable, match=r"its folder does not exist. Make it, or check the database URL"):
            open_it(tmp_path / "missing" / "store.db")
    assert not (tmp_path / "missing").exists()


def test_a_folder_in_the_place_of_the_file_is_refused(path: Path) -> None:
    path.mkdir()
    with pytest.raises(StoreUnavailable, match=r"unable to open database file.*folder exists and may be written to"):
        SqliteStore(path)


def test_a_damaged_file_is_refused_with_the_remedy(path: Path) -> None:
    SqliteStore(path)
    whole = bytearray(path.read_bytes())
    whole[100:] = b"\xff" * (len(whole) - 100)
    path.write_bytes(whole)
    with pytest.raises(StoreUnavailable, match=r"malformed.*integrity_check.*backup"):
        SqliteStore(path)
