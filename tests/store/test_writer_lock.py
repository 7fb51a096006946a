"""Writers take turns: across threads, and across processes, where SQLite's own busy handler starves all but one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stagepost import StoreContention, StoreError
from stagepost.store.sqlite import connection
from stagepost.store.sqlite import writer_lock as module
from stagepost.store.sqlite.store import SqliteStore
from stagepost.store.sqlite.writer_lock import WriterLock, writer_locks
from stagepost.testing.contract.givens import a_waypoint, committed
from tests.waiting import wait_until

PROCESSES = 4
COMMITS = 2_000

# Commits back to back until all together have made enough, then says how many were its own.
WRITER = """
import sys
from pathlib import Path
from stagepost.store.sqlite.store import SqliteStore
from stagepost.testing.contract.givens import a_waypoint, committed

name, commits = sys.argv[2], int(sys.argv[3])
session = SqliteStore(Path(sys.argv[1])).session()
print("ready", flush=True)
sys.stdin.readline()
mine = 0
while session.circuits.last_line() < commits:
    with committed(session):
        session.journal.record([a_waypoint(node=name)])
    mine += 1
print(mine)
"""


def test_of_several_processes_that_write_without_pause_each_gets_its_turns(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = SqliteStore(path)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), f"n{n}", str(COMMITS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(PROCESSES)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    shares = [int(writer.communicate()[0]) for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * PROCESSES
    assert sum(shares) == store.session().circuits.last_line()
    fair = COMMITS / PROCESSES
    assert min(shares) >= fair / 10, shares


def test_one_file_has_one_writer_lock_in_a_process_whatever_it_is_called(tmp_path: Path) -> None:
    """POSIX locks are dropped when any descriptor of the file is closed, so there may be only one."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    plain = writer_locks.of(tmp_path / "folder" / "store.db")
    assert writer_locks.of(tmp_path / "folder" / ".." / "folder" / "store.db") is plain
    assert writer_locks.of(tmp_path / "link" / "store.db") is plain
    assert writer_locks.of(tmp_path / "folder" / "other.db") is not plain


def test_a_writer_lock_is_open_for_as_long_as_anybody_uses_it(tmp_path: Path) -> None:
    """And no longer: a process may see many databases."""

    def is_open() -> bool:
        writer_lock = (tmp_path / "store.db-writer-lock").resolve()
        return any(each.resolve() == writer_lock for each in Path("/proc/self/fd").iterdir())

    store = SqliteStore(tmp_path / "store.db")
    assert not is_open()
    first, second = store.session(), store.session()
    first.close()
    first.close()
    second.reconnect()
    assert is_open()
    second.begin()
    second.commit()
    second.close()
    assert not is_open()


class Writer:
    is_open = True

    def __init__(self, doing: str = "the test") -> None:
        self.doing = doing


@pytest.fixture
def writer_lock(tmp_path: Path) -> Iterator[WriterLock]:
    (tmp_path / "store.db").touch()
    given = writer_locks.of(tmp_path / "store.db")
    yield given
    writer_locks.done(given)


def test_a_writer_lock_lets_one_thread_in_at_a_time(writer_lock: WriterLock) -> None:
    inside = 0
    most = 0

    def pass_through() -> None:
        nonlocal inside, most
        writer = Writer()
        for _ in range(200):
            writer_lock.enter(writer, time.monotonic())
            inside += 1
            most = max(most, inside)
            # Gives the others every chance to come in.
            os.sched_yield()
            inside -= 1
            writer_lock.leave(writer)

    threads = [threading.Thread(target=pass_through) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (inside, most) == (0, 1)


def test_a_thread_that_would_wait_for_itself_is_refused_with_the_remedy(writer_lock: WriterLock) -> None:
    first, second = Writer(), Writer()
    writer_lock.enter(first, time.monotonic())
    with pytest.raises(StoreError, match=r"has a transaction open on the same database already.*ctx\.initiate"):
        writer_lock.enter(second, time.monotonic())
    # One that is not inside changes nothing by leaving.
    writer_lock.leave(second)
    assert writer_lock.has_inside(first)
    writer_lock.leave(first)
    writer_lock.enter(second, time.monotonic())
    writer_lock.leave(second)
    writer_lock.leave(second)


# Waits for the writer inside, and holds the place that it waits in.
NEXT_ONE = """
import fcntl, sys
from stagepost.store.sqlite.writer_lock import NEXT

with open(sys.argv[1], "a") as writer_lock:
    fcntl.lockf(writer_lock, fcntl.LOCK_EX, 1, NEXT)
    print("next", flush=True)
    sys.stdin.readline()
"""


def test_a_writer_does_not_overtake_the_process_that_is_next(
    writer_lock: WriterLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAIT_SECONDS_MAX", 0.5)
    writer = Writer()
    command = [sys.executable, "-c", NEXT_ONE, str(writer_lock.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "next\n"
        with pytest.raises(StoreContention, match=f"because process {other.pid} "):
            writer_lock.enter(writer, time.monotonic())
        other.communicate("\n")
    writer_lock.enter(writer, time.monotonic())
    writer_lock.leave(writer)


# Waiting


def test_one_who_waits_for_a_thread_that_does_not_leave_is_told_which_and_does_not_wait_for_ever(
    writer_lock: WriterLock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "WAIT_SECONDS_MAX", 0.5)
    monkeypatch.setattr(module, "TELL_SECONDS", 0.02)
    first, second = Writer("bank.pay, a stage of this process,"), Writer()
    writer_lock.enter(first, time.monotonic())
    refused: list[StoreContention] = []

    def wait() -> None:
        for _ in range(2):
            try:
                writer_lock.enter(second, time.monotonic())
            except StoreContention as error:
                refused.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert len(refused) == 2
    assert "database is locked" in str(refused[0])
    assert "because bank.pay, a stage of this process, writes" in str(refused[0])
    assert "ctx.initiate()" in str(refused[0])
    # Not for each who waits.
    assert [record.event for record in caplog.records] == ["writer-waits"]  # type: ignore[attr-defined]
    assert "bank.pay" in caplog.text
    writer_lock.leave(first)
    writer_lock.enter(second, time.monotonic())
    writer_lock.leave(second)


# Writes, with the writer lock or past it, until it is killed.
STOPPED = """
import os, signal, sqlite3, sys
from pathlib import Path
from stagepost.store.sqlite.store import SqliteStore

if sys.argv[2] == "outsider":
    connection = sqlite3.connect(sys.argv[1], isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
else:
    session = SqliteStore(Path(sys.argv[1])).session()
    session.begin()
print("inside", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


@contextmanager
def stopped_writer(path: Path, kind: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", STOPPED, str(path), kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "inside\n"
        wait_until(lambda: Path(f"/proc/{holder.pid}/stat").read_text().rpartition(") ")[2][0] == "T", "it is stopped")
        yield holder
        holder.kill()


@pytest.mark.parametrize("kind", ["writer", "outsider"])
def test_one_who_waits_for_a_process_that_is_stopped_is_told_which_and_goes_on_when_it_is_ended(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "WAIT_SECONDS_MAX", 0.5)
    monkeypatch.setattr(module, "TELL_SECONDS", 0.05)
    monkeypatch.setattr(connection, "BUSY_TIMEOUT_SECONDS", 0.02)
    path = tmp_path / "store.db"
    session = SqliteStore(path).session()
    with stopped_writer(path, kind) as holder:
        for _ in range(2):
            with pytest.raises(StoreContention, match=rf"because process {holder.pid} \(python.*\), which is stopped,"):
                session.begin()
        assert f"process {holder.pid}" in caplog.text
        assert len(caplog.records) == 1
    with committed(session):
        session.journal.record([a_waypoint()])
    session.close()


# Holds the writer lock when it is killed, and leaves a child of its own behind that lives on.
HOLDER = """
import os, signal, subprocess, sys
from pathlib import Path
from stagepost.store.sqlite.store import SqliteStore

session = SqliteStore(Path(sys.argv[1])).session()
session.begin()
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False)
forked = os.fork()
if forked == 0:
    os.read(int(sys.argv[2]), 1)
    os._exit(0)
print(forked, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_dead_hold_up_nobody_though_their_children_live_on(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = SqliteStore(path)
    end_of_child, keep_alive = os.pipe()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), str(end_of_child)],
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[end_of_child],
    )
    try:
        assert holder.stdout is not None
        forked = int(holder.stdout.readline())
        holder.wait()
        os.kill(forked, 0)  # it lives
        session = store.session()
        with committed(session):
            session.journal.record([a_waypoint()])
        assert session.circuits.last_line() == 1
        session.close()
    finally:
        os.close(keep_alive)
        os.close(end_of_child)
        if holder.stdout is not None:
            holder.stdout.close()


# A child that writes while its parent does; each says how many of its commits there are in the end.
FORKING = """
import json, os, sys
from pathlib import Path
from stagepost.store.sqlite.store import SqliteStore
from stagepost.testing.contract.givens import a_waypoint, committed

store = SqliteStore(Path(sys.argv[1]))

def write(session, node):
    for _ in range(50):
        with committed(session):
            session.journal.record([a_waypoint(node=node)])

first = store.session()
write(first, "before")
# A connection that is open when the process forks is of no use to either side.
first.close()
del first
child = os.fork()
session = store.session()
if child == 0:
    write(session, "child")
    os._exit(0)
write(session, "parent")
_, status = os.waitpid(child, 0)
print(json.dumps([status, session.journal.since(0).committed]))
"""


def test_a_forked_child_takes_its_turns_with_a_session_of_its_own(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING, str(tmp_path / "store.db")], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [0, {"before": 50, "parent": 50, "child": 50}]
