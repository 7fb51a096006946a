"""The demo's own PostgreSQL server, which is stopped with the demo and can be run again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from examples.payments.server import FOLDER, own_databases
from tests.processes import ROOT
from tests.servers.postgres import OwnServer
from tests.waiting import PATIENCE_SECONDS

# The tests ask for the server of the tests, too: where it can be had, so can another one.
COMMAND = [sys.executable, "-m", "examples.payments.server"]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not one of pytest's own, which only its owner may enter."""
    with tempfile.TemporaryDirectory(prefix="stagepost-demo-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_what_a_demo_left_in_its_server_can_be_looked_at_afterwards(
    end: signal.Signals, folder: Path, mortal_postgres: OwnServer
) -> None:
    with own_databases(folder / FOLDER, "orders") as (url,), psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE left_behind AS SELECT 42 AS answer")
    with subprocess.Popen(COMMAND, cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as served:
        assert served.stdout is not None
        name, _, url = served.stdout.readline().strip().partition("=")
        assert name == "export STAGEPOST_DATABASE"
        assert served.stdout.readline() == "It runs until Ctrl-C.\n"
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT answer FROM left_behind").fetchall() == [(42,)]
        served.send_signal(end)
        assert served.wait(PATIENCE_SECONDS) == 0
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)


def test_where_there_was_no_demo_it_says_how_to_have_one(folder: Path, mortal_postgres: OwnServer) -> None:
    told = subprocess.run(COMMAND, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert (told.returncode, told.stdout) == (2, "")
    assert "`make demo STORE=postgres` makes one" in told.stderr
