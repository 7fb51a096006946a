"""Writers take turns: across threads, and across processes, where SQLite's own busy handler starves all but one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stagepost import StoreError
from stagepost.store.sqlite.store import SqliteStore
from stagepost.store.sqlite.turnstile import Turnstile, turnstiles
from stagepost.testing.contract.givens import a_waypoint, committed

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
while session.reader.last_waypoint() < commits:
    with committed(session):
        session.record([a_waypoint(node=name)])
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
    assert sum(shares) == store.session().reader.last_waypoint()
    fair = COMMITS / PROCESSES
    assert min(shares) >= fair / 10, shares


def test_one_file_has_one_turnstile_in_a_process_whatever_it_is_called(tmp_path: Path) -> None:
    """POSIX locks are dropped when any descriptor of the file is closed, so there may be only one."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    plain = turnstiles.of(tmp_path / "folder" / "store.db")
    assert turnstiles.of(tmp_path / "folder" / ".." / "folder" / "store.db") is plain
    assert turnstiles.of(tmp_path / "link" / "store.db") is plain
    assert turnstiles.of(tmp_path / "folder" / "other.db") is not plain


def test_a_turnstile_is_open_for_as_long_as_anybody_uses_it(tmp_path: Path) -> None:
    """And no longer: a process may see many databases."""

    def is_open() -> bool:
        turnstile = (tmp_path / "store.db-turnstile").resolve()
        return any(each.resolve() == turnstile for each in Path("/proc/self/fd").iterdir())

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


def test_a_turnstile_lets_one_thread_in_at_a_time(tmp_path: Path) -> None:
    turnstile = Turnstile(tmp_path / "turnstile")
    inside = 0
    most = 0

    def pass_through() -> None:
        nonlocal inside, most
        for _ in range(200):
            turnstile.enter()
            inside += 1
            most = max(most, inside)
            # Gives the others every chance to come in.
            os.sched_yield()
            inside -= 1
            turnstile.leave()

    threads = [threading.Thread(target=pass_through) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (inside, most) == (0, 1)


def test_a_thread_that_would_wait_for_itself_is_refused_with_the_remedy(tmp_path: Path) -> None:
    turnstile = Turnstile(tmp_path / "turnstile")
    turnstile.enter()
    with pytest.raises(StoreError, match=r"has a transaction open on the same database already.*ctx\.initiate"):
        turnstile.enter()
    turnstile.leave()
    turnstile.enter()
    turnstile.leave()


# Holds the turnstile when it is killed, and leaves a child of its own behind that lives on.
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
            session.record([a_waypoint()])
        assert session.reader.last_waypoint() == 1
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
            session.record([a_waypoint(node=node)])

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
print(json.dumps([status, session.reader.committed_since(0)]))
"""


def test_a_forked_child_takes_its_turns_with_a_session_of_its_own(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING, str(tmp_path / "store.db")], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [0, {"before": 50, "parent": 50, "child": 50}]
