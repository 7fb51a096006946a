"""SQLite on a disk that is full, and on one that fails: the error names the file, the reason and the remedy."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path

import pytest

from stagepost.flow.errors import StoreUnavailable
from stagepost.store.sqlite.export import SqliteExport
from stagepost.store.sqlite.faults import REMEDIES, UNAVAILABLE, translate
from stagepost.store.sqlite.store import SqliteStore
from tests.faults.disks import full, mounted


def begin(path: Path) -> None:
    with closing(SqliteStore(path).session()) as session:
        session.begin()


def read_for_spark(path: Path) -> None:
    SqliteExport(path).disk_usage()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", "3m", 100) as disk:
        yield disk


@contextmanager
def without_room(disk: Path) -> Iterator[None]:
    """A disk that takes more files, and no more bytes. SQLite then fails with another error."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    yield
    filler.unlink()


@pytest.mark.parametrize("use", [begin, read_for_spark])
@pytest.mark.parametrize("filled", [full, without_room])
def test_a_full_disk_is_named_with_the_remedy(
    small_disk: Path, filled: Callable[[Path], AbstractContextManager[None]], use: Callable[[Path], None]
) -> None:
    path = small_disk / "shop.db"
    begin(path)
    with filled(small_disk), pytest.raises(StoreUnavailable) as caught:
        use(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert text.endswith(", because its disk is full. Free some disk space.")
    use(path)


@pytest.mark.parametrize("code", sorted(UNAVAILABLE))
def test_each_error_of_the_database_has_a_remedy(tmp_path: Path, code: int) -> None:
    error = sqlite3.OperationalError("it failed")
    error.sqlite_errorcode = code | 9 << 8  # the higher byte tells people more
    assert str(translate(error, tmp_path / "a.db")) == f"{tmp_path / 'a.db'}: it failed. {REMEDIES[code]}"
