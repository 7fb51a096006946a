"""``stagepost doctor`` on SQLite: each trouble is really made, and seen."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from stagepost.store.sqlite import checks as limits
from stagepost.store.sqlite.disk import file_system
from stagepost.store.sqlite.store import SqliteStore
from stagepost.testing.contract.givens import a_row, committed
from tests.cli.doctoring import visit
from tests.cli.shop import Shop
from tests.faults.test_database_unavailable import immutable
from tests.liveness.scripted_worker import scripted_worker
from tests.store.test_writer_lock import stopped_writer

MIB = 1024**2
# What the machine that runs the tests may be.
OF_THE_MACHINE = {"file-system", "disk-space"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return SqliteStore(tmp_path / "store.db").path


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


@pytest.fixture
def foreign(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


def as_it_lies(path: Path) -> tuple[bytes, int]:
    return path.read_bytes(), path.stat().st_mtime_ns


def test_a_file_that_is_well_is_well_and_nothing_is_changed(path: Path, url: str) -> None:
    before = as_it_lies(path)
    for arguments in ([], ["--thorough"]):
        seen = visit(url, *arguments)
        assert seen.exit_code == 0
        assert seen.severities().keys() <= OF_THE_MACHINE
    assert as_it_lies(path) == before
    assert not path.with_name("store.db-workers").exists()


def test_a_file_that_is_not_in_wal_mode_is_left_so(url: str, foreign: sqlite3.Connection) -> None:
    foreign.execute("PRAGMA journal_mode = DELETE")
    seen = visit(url)
    assert seen.exit_code == 0
    assert seen["journal-mode"]["severity"] == "warning"
    assert foreign.execute("PRAGMA journal_mode").fetchone() == ("delete",)


@pytest.mark.parametrize("content", [b"Dear Sir or Madam, " * 100, b"\x00" * 4096])
def test_a_file_of_something_else_cannot_be_looked_at(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_bytes(content)
    seen = visit(f"sqlite:///{path}")
    assert seen.exit_code == 2
    assert "file is not a database" in seen["file-unreadable"]["seen"]


def test_a_folder_in_the_place_of_the_file_cannot_be_looked_at(tmp_path: Path) -> None:
    assert visit(f"sqlite:///{tmp_path}").exit_code == 2


def test_a_name_that_the_system_refuses_cannot_be_looked_at(tmp_path: Path) -> None:
    seen = visit(f"sqlite:///{tmp_path}/{'x' * 300}.db")
    assert seen.exit_code == 2
    assert "name too long" in seen["file-unreadable"]["seen"]


def test_damage_is_found_by_a_thorough_look_alone(path: Path, url: str, foreign: sqlite3.Connection) -> None:
    foreign.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, name TEXT)")
    foreign.execute("CREATE INDEX account_name ON account (name)")
    foreign.executemany("INSERT INTO account (name) VALUES (?)", [(f"name {n}",) for n in range(1000)])
    (root,) = foreign.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'account_name'").fetchone()
    (page,) = foreign.execute("PRAGMA page_size").fetchone()
    foreign.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    foreign.close()
    with path.open("r+b") as file:
        file.seek((root - 1) * page)
        file.write(b"\xff" * page)
    assert visit(url).exit_code == 0
    seen = visit(url, "--thorough")
    assert seen.exit_code == 1
    assert seen.severities().keys() - OF_THE_MACHINE == {"integrity"}


def test_a_reader_that_never_ends_is_seen_by_the_log_that_grows(
    url: str, path: Path, foreign: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WAL_BYTES_WARNING", 8 * MIB)
    foreign.execute("CREATE TABLE heap (data BLOB)")

    def write() -> None:
        for _ in range(16):
            foreign.execute("INSERT INTO heap VALUES (zeroblob(1048576))")

    write()
    # SQLite begins the log anew each time it has been copied into the file.
    assert visit(url)["wal-size"]["severity"] == "ok"
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM heap").fetchone()
        write()
        seen = visit(url)
    assert seen.exit_code == 0
    assert seen["wal-size"]["severity"] == "warning"
    assert "end its transaction" in seen["wal-size"]["remedy"]
    monkeypatch.setattr(limits, "WAL_BYTES_CRITICAL", 8 * MIB)
    assert visit(url).exit_code == 1


def test_a_disk_that_is_nearly_full(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FREE_BYTES_WARNING", 2**60)
    assert visit(url).severities()["disk-space"] == "warning"
    monkeypatch.setattr(limits, "FREE_BYTES_CRITICAL", 2**60)
    seen = visit(url)
    assert seen.exit_code == 1
    assert seen["disk-space"]["severity"] == "critical"


def test_a_file_in_memory() -> None:
    if file_system(Path("/dev/shm")).kind != "memory":
        pytest.skip("/dev/shm does not lie in memory here")
    with TemporaryDirectory(dir="/dev/shm") as folder:
        store = SqliteStore(Path(folder) / "store.db")
        seen = visit(store.url)
    assert seen["file-system"]["severity"] == "warning"
    assert "tmpfs" in seen["file-system"]["seen"]


def test_a_lock_folder_that_is_none(path: Path, url: str) -> None:
    path.with_name("store.db-workers").touch()
    seen = visit(url)
    assert seen.exit_code == 1
    assert seen.severities().keys() - OF_THE_MACHINE == {"lock-folder"}


@contextmanager
def unwritable(*paths: Path) -> Iterator[None]:
    """Root may write everywhere, but to what cannot be changed."""
    if os.geteuid() == 0:
        with immutable(*paths):
            yield
        return
    modes = [path.stat().st_mode for path in paths]
    for path in paths:
        path.chmod(0o500)
    try:
        yield
    finally:
        for path, mode in zip(paths, modes, strict=True):
            path.chmod(mode)


def test_a_file_and_folders_that_may_not_be_written_to(path: Path, url: str) -> None:
    locks = path.with_name("store.db-workers")
    locks.mkdir()
    with unwritable(path, locks):
        seen = visit(url)
    assert seen.exit_code == 1
    assert seen.severities("file-writable", "lock-folder") == {"file-writable": "critical", "lock-folder": "critical"}
    assert str(path) in seen["file-writable"]["seen"]


def test_workers_that_died_or_are_paused(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "shop.db")
    locks = shop.path.with_name("shop.db-workers")
    with scripted_worker(locks, app="shop") as first, scripted_worker(locks, app="shop") as second:
        assert visit(shop.url).severities("workers") == {"workers": "ok"}
        shop.order("order:1")
        owner = f"shop/{first.path.name.removeprefix('shop@').removesuffix('.lock')}"
        shop.harness.access.claimer.claim(["shop.pay"], 1, owner, "node")
        first.kill()
        seen = visit(shop.url)
        assert seen.exit_code == 0
        (lost,) = seen["workers"]["who"]
        assert (lost["pid"], lost["state"], lost["holds"], lost["app"]) == (first.pid, "dead", 1, "shop")
        # Its process is there, and its heart does not beat.
        an_hour_ago = second.path.stat().st_mtime - 3600
        os.utime(second.path, (an_hour_ago, an_hour_ago))
        seen = visit(shop.url)
        assert seen.exit_code == 1
        assert seen["workers"]["severity"] == "critical"
        assert {each["pid"]: each["state"] for each in seen["workers"]["who"]} == {
            first.pid: "dead",
            second.pid: "paused",
        }
        assert first.path.exists()
        second.told("beat")
        assert visit(shop.url).severities("workers") == {"workers": "warning"}
    shop.close()


def test_it_looks_while_somebody_else_writes(path: Path, url: str, foreign: sqlite3.Connection) -> None:
    session = SqliteStore(path).session()
    with committed(session):
        session.queue.enqueue([a_row("m1")])
    session.close()
    foreign.execute("BEGIN EXCLUSIVE")
    assert "1 message ready" in visit(url)["ready-waiting"]["seen"]


@pytest.mark.parametrize("kind", ["writer", "outsider"])
def test_a_stopped_process_that_keeps_all_others_from_writing_is_named_and_its_remedy_works(
    kind: str, path: Path, url: str
) -> None:
    with stopped_writer(path, kind) as holder:
        seen = visit(url)
        assert seen.exit_code == 1
        assert seen["writer"]["severity"] == "critical"
        (culprit,) = seen["writer"]["who"]
        assert (culprit["pid"], culprit["state"]) == (holder.pid, "stopped")
        assert f"kill -KILL {holder.pid} " in seen["writer"]["remedy"]
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        assert visit(url)["writer"]["severity"] == "ok"
        session = SqliteStore(path).session()
        with committed(session):
            session.queue.enqueue([a_row("m1")])
        session.close()


def test_a_process_that_writes_for_long_is_named(path: Path, url: str, foreign: sqlite3.Connection) -> None:
    foreign.execute("BEGIN IMMEDIATE")
    seen = visit(url)
    assert seen["writer"]["severity"] == "warning"
    assert [each["pid"] for each in seen["writer"]["who"]] == [os.getpid()]
