"""A file is made, checked and brought up to date: forward only, by whoever comes first."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from stagepost import SchemaMismatch, StoreUnavailable
from stagepost.store.sqlite import migrate
from stagepost.store.sqlite.store import SqliteStore, migrate_file


def query(path: Path, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute(statement).fetchall()
        connection.commit()
        return rows


def tables(path: Path) -> set[object]:
    return {name for (name,) in query(path, "SELECT name FROM sqlite_schema WHERE type = 'table'")}


def version(path: Path) -> object:
    return query(path, "SELECT value FROM stagepost_meta WHERE key = 'version'")[0][0]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def a_newer_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the next release will have it: one more migration."""
    numbered = migrate.migrations()
    following = (len(numbered) + 1, "-- a remark; with a semicolon\nCREATE TABLE stagepost_next (a TEXT);\n")
    monkeypatch.setattr(migrate, "migrations", lambda: [*numbered, following])


def test_opening_makes_the_tables_in_a_file_that_is_not_there(path: Path) -> None:
    store = SqliteStore(path)
    assert version(path) == str(migrate.newest())
    assert {"stagepost_meta", "stagepost_ready", "stagepost_journal"} <= tables(path)
    assert query(path, "PRAGMA journal_mode") == [("wal",)]
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", store.uuid)


def test_opening_makes_the_tables_beside_those_of_the_user(path: Path) -> None:
    query(path, "CREATE TABLE payment (id TEXT)")
    SqliteStore(path)
    assert {"payment", "stagepost_ready"} <= tables(path)


def test_opening_again_changes_nothing_and_finds_the_same_store(path: Path, tmp_path: Path) -> None:
    first = SqliteStore(path)
    before = query(path, "SELECT * FROM stagepost_meta ORDER BY key")
    assert SqliteStore(path).uuid == first.uuid
    assert query(path, "SELECT * FROM stagepost_meta ORDER BY key") == before
    assert SqliteStore(tmp_path / "other.db").uuid != first.uuid


def test_an_empty_file_is_a_new_one(path: Path) -> None:
    path.touch()
    SqliteStore(path)
    assert version(path) == str(migrate.newest())


def test_a_file_of_a_newer_version_is_refused_with_the_remedy_and_left_as_it_is(path: Path) -> None:
    SqliteStore(path)
    query(path, "UPDATE stagepost_meta SET value = '99' WHERE key = 'version'")
    for open_it in (SqliteStore, migrate_file):
        with pytest.raises(SchemaMismatch, match=r"tables of version 99.*knows them up to.*Upgrade stagepost"):
            open_it(path)
    assert version(path) == "99"


def test_a_file_of_an_older_version_is_refused_until_it_was_migrated(
    path: Path, request: pytest.FixtureRequest
) -> None:
    made = SqliteStore(path)
    newest = migrate.newest()
    request.getfixturevalue("a_newer_version")
    text = rf"tables of version {newest}, and this Stagepost needs {newest + 1}.*Stop its workers.*stagepost migrate"
    with pytest.raises(SchemaMismatch, match=text):
        SqliteStore(path)
    assert "stagepost_next" not in tables(path)
    assert migrate_file(path) == [newest + 1]
    assert SqliteStore(path).uuid == made.uuid
    assert "stagepost_next" in tables(path)
    assert migrate_file(path) == []


@pytest.mark.usefixtures("a_newer_version")
def test_a_new_file_gets_all_migrations_at_once(path: Path) -> None:
    assert migrate_file(path) == list(range(1, migrate.newest() + 1))
    SqliteStore(path)


def test_a_migration_that_fails_leaves_the_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SqliteStore(path)
    numbered = migrate.migrations()
    broken = (len(numbered) + 1, "CREATE TABLE stagepost_next (a TEXT);\nCREATE TABLE stagepost_ready (a TEXT);\n")
    monkeypatch.setattr(migrate, "migrations", lambda: [*numbered, broken])
    before = tables(path)
    with pytest.raises(Exception, match="already exists"):
        migrate_file(path)
    assert tables(path) == before
    assert version(path) == str(len(numbered))


def test_migrations_are_numbered_without_a_gap_and_end_with_whole_statements() -> None:
    numbered = migrate.migrations()
    assert [number for number, _ in numbered] == list(range(1, len(numbered) + 1))
    for _, text in numbered:
        assert migrate.statements_of(text)


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
        assert version(path) == str(migrate.newest())
        assert query(path, "SELECT count(*) FROM stagepost_meta") == [(2,)]


MIGRATOR = """
import sys
from pathlib import Path
from stagepost.store.sqlite import migrate
from stagepost.store.sqlite.store import migrate_file

numbered = migrate.migrations()
following = [(len(numbered) + n, f"CREATE TABLE stagepost_next_{n} (a TEXT);\\n") for n in range(1, 30)]
migrate.migrations = lambda: [*numbered, *following]
print("ready", flush=True)
sys.stdin.readline()
print(*migrate_file(Path(sys.argv[1])))
"""


def test_of_several_processes_that_migrate_at_once_each_step_is_done_by_one(path: Path) -> None:
    SqliteStore(path)
    migrators = [
        subprocess.Popen(
            [sys.executable, "-c", MIGRATOR, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    for migrator in migrators:
        assert migrator.stdout is not None
        migrator.stdout.readline()
    for migrator in migrators:
        assert migrator.stdin is not None
        migrator.stdin.write("go\n")
        migrator.stdin.flush()
    applied = [int(number) for migrator in migrators for number in migrator.communicate()[0].split()]
    newest = migrate.newest()
    assert sorted(applied) == list(range(newest + 1, newest + 30))
    assert version(path) == str(newest + 29)


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
