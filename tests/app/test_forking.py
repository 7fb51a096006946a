"""A process that forks: each side starts flows on connections of its own, and nothing of either is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.waiting import PATIENCE_SECONDS

APP = """
import json, os, sys
from dataclasses import dataclass
from stagepost import App, Context
from stagepost.app.app import engine_of
from stagepost.testing import Harness

@dataclass
class Order:
    id: str

app = App("shop", database=sys.argv[1])
pay = app.remote("pay", Order)

def start(who):
    for n in range(20):
        assert app.start(pay, Order(who), flow_id=f"{who}:{n}").is_new

def end(child):
    _, status = os.waitpid(child, 0)
    print(json.dumps({"status": status, "started": found()}))

def found():
    journal = engine_of(app).access().session.journal
    names = ("before", "parent", "child", "grandchild")
    return {who: sum(bool(journal.history(f"{who}:{n}")) for n in range(20)) for who in names}
"""


# In a process that never forked.
LOOK = """
import json, sys
from dataclasses import dataclass
from stagepost import App
from stagepost.app.app import engine_of

app = App("shop", database=sys.argv[1])
journal = engine_of(app).access().session.journal
told = json.loads(sys.argv[2])
print(json.dumps({"told": told, "found": {
    who: sum(bool(journal.history(f"{who}:{n}")) for n in range(20)) for who in told
}}))
"""


def run(script: str, folder: Path) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", f"LOOK = {LOOK!r}\n" + APP + script, f"sqlite:///{folder / 'shop.db'}"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.stderr == ""
    return json.loads(done.stdout.splitlines()[-1])


def test_a_child_and_its_parent_start_flows_side_by_side(tmp_path: Path) -> None:
    found = run(
        """
start("before")
child = os.fork()
if child == 0:
    start("child")
    os._exit(0)
start("parent")
end(child)
""",
        tmp_path,
    )
    assert found == {"status": 0, "started": {"before": 20, "parent": 20, "child": 20, "grandchild": 0}}


def test_a_childs_child_does_too_and_nobody_needs_to_have_started_one_before(tmp_path: Path) -> None:
    found = run(
        """
child = os.fork()
if child == 0:
    start("child")
    grandchild = os.fork()
    if grandchild == 0:
        start("grandchild")
        os._exit(0)
    os.waitpid(grandchild, 0)
    os._exit(0)
end(child)
start("parent")
end_child = os.fork()
if end_child == 0:
    os._exit(0)
end(end_child)
""",
        tmp_path,
    )
    assert found == {"status": 0, "started": {"before": 0, "parent": 20, "child": 20, "grandchild": 20}}


def test_what_a_child_was_told_had_started_is_there_though_its_parent_is_gone(tmp_path: Path) -> None:
    """It may also be told that nothing was sent; but what it was told is on the disk must be there."""
    found = run(
        """
start("before")
read, write = os.pipe()
ready, tell = os.pipe()
child = os.fork()
if child:
    os.read(ready, 1)
    os._exit(0)
os.close(write)
told = {"before": 20, "parent": 0, "child": 0, "grandchild": 0}
for n in range(20):
    if n == 10:
        os.write(tell, b"x")
        os.read(read, 1)
    try:
        told["child"] += app.start(pay, Order("child"), flow_id=f"child:{n}").is_new
    except Exception:
        pass
    if n == 10:
        # Another process looks at the file, as the command line does, and is the last to close it.
        os.spawnlp(os.P_WAIT, sys.executable, sys.executable, "-c", "import sqlite3, sys; "
                   "sqlite3.connect(sys.argv[1]).execute('SELECT * FROM stagepost_meta').fetchall()",
                   sys.argv[1].removeprefix("sqlite:///"))
os.spawnlp(os.P_WAIT, sys.executable, sys.executable, "-c", LOOK, sys.argv[1], json.dumps(told))
""",
        tmp_path,
    )
    assert found["told"] == found["found"]


def test_a_child_that_is_forked_while_another_thread_writes_starts_its_flow_or_is_told_that_it_did_not(
    tmp_path: Path,
) -> None:
    found = run(
        """
from stagepost import NothingSent
from stagepost.store.sqlite import connection, writer_lock

connection.BUSY_TIMEOUT_SECONDS = writer_lock.WAIT_SECONDS_MAX = 0
holder = engine_of(app).access().session
holder.begin()
answer, tell = os.pipe()
child = os.fork()
if child == 0:
    os.read(answer, 1)
    try:
        app.start(pay, Order("child"), flow_id="child:0")
        os._exit(1)
    except NothingSent:
        os._exit(0)
holder.rollback()
os.write(tell, b"x")
start("parent")
end(child)
""",
        tmp_path,
    )
    told = os.waitstatus_to_exitcode(found["status"])
    assert found["started"] == {"before": 0, "parent": 20, "child": told, "grandchild": 0}


def test_a_child_forked_by_a_handler_does_not_write_to_its_parents_transaction(tmp_path: Path) -> None:
    """As a ProcessPoolExecutor does. The child may start the flow by itself or be refused; lose it, it may not."""
    found = run(
        """
told = []

@app.endpoint("begin")
def begin(ctx: Context, order: Order) -> None:
    ctx.sql("SELECT 1")
    answer, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            app.start(pay, Order("child"), flow_id="child:0")
            os.write(tell, b"started")
        except Exception:
            os.write(tell, b"refused")
        os._exit(0)
    told.append(os.read(answer, 10).decode())
    os.waitpid(child, 0)

app.start(begin, Order("x"), flow_id="flow")
worker = Harness(app)
worker.drain()
print(json.dumps({"told": told[0], "found": bool(worker.history("child:0"))}))
""",
        tmp_path,
    )
    assert found["found"] is (found["told"] == "started")


def test_a_child_that_returns_from_its_handler_is_ended_and_settles_nothing(tmp_path: Path) -> None:
    found = run(
        """
import logging
from stagepost.transaction.unit_of_work import EXIT_FORKED

# The child says so in the log.
logging.disable()
exits = []

@app.endpoint("work")
def work(ctx: Context, order: Order) -> None:
    child = os.fork()
    if child:
        exits.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == EXIT_FORKED)

app.start(app.target("work"), Order("o1"), flow_id="flow")
Harness(app).drain()
if not exits:
    # It came back.
    os._exit(0)
waypoints = [each.waypoint for each in engine_of(app).access().session.journal.history("flow")]
print(json.dumps([exits, waypoints]))
""",
        tmp_path,
    )
    assert found == [[True], ["accepted", "received", "committed"]]
