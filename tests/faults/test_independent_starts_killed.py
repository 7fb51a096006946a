"""Worker processes on SQLite are killed around each commit of an independent start, and of its move."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.shop import command, parsed
from tests.places import bare_environment
from tests.processes import ROOT, ProcessGroup

SCRIPT = Path(sys.executable).with_name("stagepost")
ORDERS = 8
# The stage holds a flow, the relay leases it, the first file accepts it, and the relay removes it.
COMMITS = 4
START = """
import sys
from tests.faults.independent_shop import Order, app, pay
for number in range(int(sys.argv[1])):
    app.start(pay, Order(str(number)), flow_id=f"order:{number}")
"""


@pytest.mark.more
def test_workers_killed_around_each_commit_of_a_move_start_every_flow_once(tmp_path: Path) -> None:
    file, killed = tmp_path / "shop.db", tmp_path / "killed"
    killed.mkdir()
    kills = [f"{side} {number}" for number in range(1, COMMITS + 1) for side in ("before", "after")]
    group = ProcessGroup()
    environment = bare_environment() | group.environment | {"STAGEPOST_DATABASE": f"sqlite:///{file}"}
    killing = {"INDEPENDENT_KILLS": ", ".join(kills), "INDEPENDENT_KILLED": str(killed)}
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE paid (id TEXT)")
        connection.execute("CREATE TABLE noted (id TEXT)")
    worker = [str(SCRIPT), "worker", "tests.faults.independent_shop:app", "--drain", "--threads", "1"]
    try:
        subprocess.run([sys.executable, "-c", START, str(ORDERS)], cwd=ROOT, env=environment, check=True)
        # A message that a worker killed around its commits three times would be a dead letter, so no more are killed.
        subprocess.run(worker, cwd=ROOT, env=environment | killing, check=True, timeout=300)
    finally:
        group.kill_all()
    assert len(list(killed.iterdir())) == len(kills)
    with closing(sqlite3.connect(file)) as connection:
        for table in ("paid", "noted"):
            found = connection.execute(f"SELECT id FROM {table}").fetchall()
            assert sorted(each for (each,) in found) == [str(number) for number in range(ORDERS)], table
    status = parsed(command("status", "--json", "--database", f"sqlite:///{file}"))
    assert (status["drained"], status["held"]["size"]) == (True, 0)
