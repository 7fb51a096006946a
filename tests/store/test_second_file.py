"""The second file of an SQLite store is made once, belongs to the first one, and is refused without it."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from stagepost import StoreUnavailable
from stagepost.flow.clock import SECOND
from stagepost.flow.effects import EffectId
from stagepost.flow.errors import SchemaMismatch
from stagepost.ports.findings import Finding
from stagepost.store.sqlite import second_file
from stagepost.store.sqlite.examination import examine
from stagepost.store.sqlite.store import SqliteStore
from stagepost.testing import ManualClock
from stagepost.testing.contract.givens import NOW, an_acceptance, committed
from tests.cli.shop import command

CARD = EffectId("m1", "pay", 0, "", "card", 0)

KILLED_WHILE_IT_MAKES = """
import os, signal, sys
from pathlib import Path
from stagepost.store.sqlite import second_file
from stagepost.store.sqlite.store import SqliteStore

def killed(*arguments, **options):
    made = make(*arguments, **options)
    os.kill(os.getpid(), signal.SIGKILL)

make, second_file.SecondFile._made = second_file.SecondFile._made, killed
SqliteStore(Path(sys.argv[1])).apart.session()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


def second_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-apart")


def add(store: SqliteStore) -> None:
    with closing(store.apart.session()) as session, committed(session):
        session.effects.add(CARD, "order:1", 0, "d", b"{}")


def is_there(store: SqliteStore) -> bool:
    with closing(store.apart.session()) as session:
        return session.effects.find(CARD) is not None


def test_it_is_made_when_it_is_first_used(path: Path) -> None:
    store = SqliteStore(path)
    assert (store.apart.exists, second_of(path).exists()) == (False, False)
    add(store)
    assert SqliteStore(path).apart.exists
    assert is_there(SqliteStore(path))


def test_it_opens_while_this_thread_has_a_transaction_open(path: Path) -> None:
    add(SqliteStore(path))
    store = SqliteStore(path)
    with closing(store.session()) as session:
        session.begin()
        assert is_there(store)
        session.rollback()


def test_a_missing_one_is_refused(path: Path) -> None:
    SqliteStore(path).apart.renumber()
    second_of(path).unlink()
    with pytest.raises(StoreUnavailable, match=r"shop\.db-apart is missing, and .* has a record of it"):
        SqliteStore(path).apart.session()


@pytest.mark.parametrize("how", ["missing", "restored"])
def test_a_log_that_cannot_be_restored_starts_over(path: Path, how: str) -> None:
    add(SqliteStore(path))
    for _ in range(3):
        SqliteStore(path).apart.renumber()
    if how == "missing":
        second_of(path).unlink()
    else:
        with closing(sqlite3.connect(second_of(path))) as file, file:
            file.execute("UPDATE stagepost_meta SET value = '1' WHERE key = 'number'")
    with pytest.raises(StoreUnavailable, match="stagepost migrate --start-over"):
        SqliteStore(path).apart.renumber()
    assert command("migrate", "--start-over", "--database", f"sqlite:///{path}").exit_code == 0
    store = SqliteStore(path)
    store.apart.renumber()
    assert not is_there(store)
    assert second_of(path).with_name(f"{second_of(path).name}.old").exists() == (how == "restored")


def test_one_of_another_store_is_refused(path: Path, tmp_path: Path) -> None:
    add(SqliteStore(path))
    other = tmp_path / "other.db"
    add(SqliteStore(other))
    shutil.copy(second_of(other), second_of(path))
    with pytest.raises(StoreUnavailable, match=r"shop\.db-apart does not belong to"):
        SqliteStore(path).apart.session()


def test_a_first_file_restored_from_before_the_second_one_takes_the_second_one_of_its_own(path: Path) -> None:
    store = SqliteStore(path)
    shutil.copy(path, f"{path}.backup")
    add(store)
    shutil.copy(f"{path}.backup", path)
    assert is_there(SqliteStore(path))


def test_each_start_gives_both_the_same_new_number(path: Path) -> None:
    for n in range(1, 4):
        SqliteStore(path).apart.renumber()
        assert numbers_of(path) == [str(n), str(n)]


@pytest.mark.parametrize("restored", ["shop.db", "shop.db-apart"])
def test_one_restored_without_the_other_is_refused(path: Path, restored: str) -> None:
    SqliteStore(path).apart.renumber()
    backup = path.with_name("backup")
    shutil.copy(path.with_name(restored), backup)
    for _ in range(2):
        SqliteStore(path).apart.renumber()
    shutil.copy(backup, path.with_name(restored))
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=rf"{restored} was restored without"):
            SqliteStore(path).apart.renumber()
        with pytest.raises(StoreUnavailable, match=r"Restore both files from the same backup"):
            SqliteStore(path).apart.session()


@pytest.mark.parametrize("lagging", ["shop.db", "shop.db-apart"])
def test_a_kill_between_the_two_numbers_is_made_up_for(path: Path, lagging: str) -> None:
    for _ in range(2):
        SqliteStore(path).apart.renumber()
    for _ in range(3):
        with closing(sqlite3.connect(path.with_name(lagging))) as file, file:
            file.execute("UPDATE stagepost_meta SET value = '1' WHERE key = 'number'")
        SqliteStore(path).apart.renumber()
        assert numbers_of(path) == ["2", "2"]


def findings_of(path: Path) -> dict[str, Finding]:
    health = examine(path, "the test", ManualClock(NOW + 600 * SECOND))
    return {each.code: each for each in health.findings if each.code in ("second-file", "independent-starts")}


def test_the_doctor_says_what_is_wrong_with_the_pair(path: Path) -> None:
    store = SqliteStore(path)
    assert findings_of(path) == {}
    store.apart.renumber()
    assert {each.severity for each in findings_of(path).values()} == {"ok"}
    with closing(store.apart.session()) as session, committed(session):
        session.outbox.hold([an_acceptance("a")], NOW, "here")
    held = findings_of(path)["independent-starts"]
    assert (held.severity, held.seen) == (
        "warning",
        "1 flow started independently and not moved yet, the oldest for 10 min",
    )
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE stagepost_meta SET value = '9' WHERE key = 'number'")
    assert "was restored without" in findings_of(path)["second-file"].seen
    second_of(path).write_bytes(b"no database, but long enough for one" * 9)
    assert "not a database" in findings_of(path)["second-file"].seen
    second_of(path).unlink()
    missing = findings_of(path)["second-file"]
    assert (missing.severity, "is missing" in missing.seen) == ("critical", True)
    assert "--start-over" in missing.remedy


def test_migrate_makes_its_tables_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(SqliteStore(path))
    with closing(sqlite3.connect(second_of(path))) as file, file:
        file.execute("DROP TABLE stagepost_outbox")
    newer = [*second_file.migrations(), (2, "CREATE TABLE stagepost_outbox (id INTEGER) STRICT;")]
    monkeypatch.setattr(second_file, "migrations", lambda: newer)
    with pytest.raises(SchemaMismatch, match="stagepost migrate"):
        SqliteStore(path).apart.session()
    told = command("migrate", "--database", f"sqlite:///{path}").stdout
    assert told.endswith(f"sqlite:///{path}, its second file: applied 0002\n")
    assert is_there(SqliteStore(path))


def numbers_of(path: Path) -> list[str]:
    found = []
    for each in (path, second_of(path)):
        with closing(sqlite3.connect(each)) as file:
            found += [number for (number,) in file.execute("SELECT value FROM stagepost_meta WHERE key = 'number'")]
    return found


def test_a_kill_while_it_is_made_leaves_one_that_is_taken(path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED_WHILE_IT_MAKES, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert second_of(path).exists()
    store = SqliteStore(path)
    add(store)
    assert is_there(SqliteStore(path))
