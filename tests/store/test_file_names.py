"""A file has one lock and one folder of lock files, whatever its names are, and whoever made them."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from stagepost import App, Context, NothingSent, StoreUnavailable
from stagepost.app.app import engine_of
from stagepost.flow.clock import SystemClock
from stagepost.store.sqlite.store import SqliteStore, migrate_file
from stagepost.store.sqlite.writer_lock import writer_locks
from stagepost.testing import Harness


@dataclass
class Order:
    number: int


def shop(path: Path) -> App:
    app = App("shop", database=f"sqlite:///{path}")

    @app.endpoint("place")
    def place(ctx: Context, order: Order) -> None: ...

    return app


# Names


@pytest.fixture(params=["the file", "its folder"])
def two_names(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    folder = tmp_path / "folder"
    folder.mkdir()
    if request.param == "the file":
        (tmp_path / "link.db").symlink_to(folder / "store.db")
        return folder / "store.db", tmp_path / "link.db"
    (tmp_path / "link").symlink_to(folder)
    return folder / "store.db", tmp_path / "link" / "store.db"


def test_a_file_with_two_names_has_one_lock_and_one_folder_of_lock_files(two_names: tuple[Path, Path]) -> None:
    name, link = two_names
    first, second = SqliteStore(name), SqliteStore(link)
    assert first.liveness(SystemClock()).folder == second.liveness(SystemClock()).folder
    assert writer_locks.of(first.path) is writer_locks.of(second.path)
    assert first.identity == second.identity
    assert migrate_file(link) == []
    assert [each.name for each in name.parent.iterdir() if each.name.endswith("-writer-lock")] == [
        "store.db-writer-lock"
    ]


def test_what_is_started_under_one_name_is_handled_under_the_other(two_names: tuple[Path, Path]) -> None:
    name, link = two_names
    first, second = shop(name), shop(link)
    with closing(Harness(second)) as worker:
        for number in range(3):
            first.start(first.target("place"), Order(number), flow_id=f"order:{number}")
        assert len(worker.drain()) == 3
    first.close()


def test_a_file_with_two_hard_links_is_refused_for_sqlite_keeps_a_log_for_each(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "store.db")
    os.link(tmp_path / "store.db", tmp_path / "again.db")
    for name in ("store.db", "again.db"):
        with pytest.raises(StoreUnavailable, match=r"has 2 names \(hard links\).*Remove the other names"):
            SqliteStore(tmp_path / name)


def test_links_that_lead_in_a_circle_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.db").symlink_to(tmp_path / "b.db")
    (tmp_path / "b.db").symlink_to(tmp_path / "a.db")
    with pytest.raises(StoreUnavailable, match=r"a\.db.*Check the database URL"):
        SqliteStore(tmp_path / "a.db")


# Another file in its place


@pytest.mark.parametrize("how", ["removed", "replaced", "led elsewhere"])
@pytest.mark.parametrize("is_joined", [False, True], ids=["by the app", "in the caller's transaction"])
def test_nothing_is_started_in_a_file_that_was_taken_away(how: str, is_joined: bool, tmp_path: Path) -> None:
    SqliteStore(tmp_path / "store.db")
    backup = tmp_path / "backup.db"
    with closing(sqlite3.connect(tmp_path / "store.db")) as source, closing(sqlite3.connect(backup)) as copy:
        source.backup(copy)
    (tmp_path / "link.db").symlink_to(tmp_path / "store.db")
    app = shop(tmp_path / "link.db")
    app.start(app.target("place"), Order(1), flow_id="order:1")
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection:
        match how:
            case "removed":
                (tmp_path / "store.db").unlink()
            case "replaced":
                backup.rename(tmp_path / "store.db")
            case _:
                (tmp_path / "link.db").unlink()
                (tmp_path / "link.db").symlink_to(backup)
        for _ in range(2):
            with (
                pytest.raises(NothingSent, match=r"was removed or replaced.*Restart this process"),
                app.initiate(connection=connection if is_joined else None) as out,
            ):
                out.send(app.target("place"), Order(2), flow_id="order:2")
        connection.rollback()
    app.close()


# Owners

NOBODY = 65_534

# As another user: loads all that it needs, for its modules may be where only root may read.
AS_ANOTHER = """
import json, os, sys
import stagepost.store.sqlite.lock_file, stagepost.testing
from pathlib import Path
from stagepost.store.sqlite.store import SqliteStore, migrate_file
from tests.store.test_file_names import Order, shop

os.setgid({nobody})
os.setuid({nobody})
path = Path(sys.argv[1])

def start():
    app = shop(path)
    app.start(app.target("place"), Order(2), flow_id="order:2")
    app.close()

def look():
    from stagepost.flow.clock import SystemClock
    SqliteStore(path).liveness(SystemClock()).look("shop")

said = {{}}
for name, act in dict(start=start, migrate=lambda: migrate_file(path), look=look).items():
    try:
        act()
        said[name] = "done"
    except Exception as error:
        said[name] = f"{{type(error).__name__}}: {{error}}"
print(json.dumps(said))
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that every user may enter and write to."""
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    with tempfile.TemporaryDirectory(prefix="stagepost-") as name:
        Path(name).chmod(0o777)
        yield Path(name)


def as_another(path: Path) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", AS_ANOTHER.format(nobody=NOBODY), str(path)], capture_output=True, text=True, check=True
    )
    said: dict[str, str] = json.loads(done.stdout)
    return said


def test_what_root_makes_beside_another_users_file_is_that_users_too(open_folder: Path) -> None:
    path = open_folder / "store.db"
    path.touch()
    os.chown(path, NOBODY, NOBODY)
    app = shop(path)
    app.start(app.target("place"), Order(1), flow_id="order:1")
    with closing(engine_of(app).incarnate("node")):
        assert as_another(path) == {"start": "done", "migrate": "done", "look": "done"}
    app.close()


def test_lock_files_of_another_user_are_told_with_the_remedy(open_folder: Path) -> None:
    path = open_folder / "store.db"
    app = shop(path)
    app.start(app.target("place"), Order(1), flow_id="order:1")
    with closing(engine_of(app).incarnate("node")):
        # The file is given to the other user alone, with its logs, and not what was made beside it.
        for each in open_folder.glob("store.db*"):
            if not each.name.endswith(("-writer-lock", "-workers")):
                os.chown(each, NOBODY, NOBODY)
        said = as_another(path)
    app.close()
    assert (
        "store.db-writer-lock: Permission denied. Run all processes that use the database as one user" in said["start"]
    )
    assert said["start"].startswith("NothingSent: ")
    assert said["migrate"].startswith("StoreUnavailable: ")
    assert ".lock: Permission denied. Whether its process lives cannot be seen" in said["look"]
