"""A purge is killed at any of its steps. The next one removes what is left, and nothing else."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from stagepost.flow.clock import HOUR, SystemClock
from stagepost.ports.retention import FIRST
from stagepost.ports.session import Session
from stagepost.runtime.access import Access
from stagepost.runtime.databases import open_store
from stagepost.runtime.purge_service import purge_all
from stagepost.testing.contract.givens import NOW, a_letter, a_waypoint, an_acceptance, committed
from stagepost.transaction.purge_batches import OF_A_BATCH, PurgeStep
from stagepost.transaction.retention import Rules
from tests.waiting import PATIENCE_SECONDS

IDS = 12
RULES = Rules({"@initiations": 24})

# Purges in batches of two rows, and kills itself at a passing of a step.
VICTIM = """
import os, signal, sys
from stagepost.flow.clock import SystemClock
from stagepost.ports.registry import driver_of
from stagepost.runtime.access import Access
from stagepost.runtime.purge_service import purge_all
from stagepost.transaction import purge_batches
from stagepost.transaction.retention import Rules

url, wanted, number = sys.argv[1:]
purge_batches.BATCH = 2
passed = 0

def listen(step):
    global passed
    passed += step.value == wanted
    if passed == int(number):
        os.kill(os.getpid(), signal.SIGKILL)

access = Access(driver_of(url).open_existing(url, "here").session(), SystemClock())
list(purge_all(access, rules=Rules({"@initiations": 24, "@journal": 24}), listener=listen))
"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    made: Callable[[], str] = request.getfixturevalue("new_postgres")
    return made()


def ids(session: Session) -> list[str]:
    return [each.key for each in session.retention.old_ids("pay", 1000, FIRST, 1000)]


@pytest.mark.parametrize("step", OF_A_BATCH)
def test_a_purge_that_is_killed_anywhere_is_ended_by_the_next_one(url: str, step: PurgeStep) -> None:
    with closing(Access(open_store(url).session(), SystemClock())) as access:
        session = access.session
        with committed(session):
            session.accepted.accept([an_acceptance(f"old-{number:02}") for number in range(IDS)])
        for hour in range(30):
            with committed(session):
                session.retention.count_hour(NOW + hour * HOUR)
        with committed(session):
            session.accepted.accept([an_acceptance("new")])
        found = subprocess.run([sys.executable, "-c", VICTIM, url, step.value, "3"], timeout=PATIENCE_SECONDS)
        assert found.returncode == -signal.SIGKILL
        assert 2 <= len(ids(session)) < IDS + 1
        assert "new" in ids(session)
        with committed(session):
            session.dead_letters.bury(a_letter("dead", flow_id="flow"))
        assert sum(each.rows for each in purge_all(access, rules=RULES)) == 0
        (letter,) = session.dead_letters.ids_of(["flow"])
        with committed(session):
            session.dead_letters.remove(letter)
        list(purge_all(access, rules=RULES))
        assert ids(session) == ["new"]


@pytest.mark.parametrize("step", OF_A_BATCH)
def test_a_purge_of_the_journal_that_is_killed_anywhere_removes_whole_flows(url: str, step: PurgeStep) -> None:
    flows = [f"flow-{number}" for number in range(6)]
    with closing(Access(open_store(url).session(), SystemClock())) as access:
        session = access.session
        with committed(session):
            session.journal.record([a_waypoint(f"{flow}-m", flow) for flow in flows for _ in range(2)])
            session.dead_letters.bury(a_letter("flow-3-m", flow_id="flow-3"))
        for hour in range(60):
            with committed(session):
                session.retention.count_hour(NOW + hour * HOUR)
        with committed(session):
            session.retention.cut(1)
        with committed(session):
            session.journal.record([a_waypoint("new-m", "new")])
        found = subprocess.run([sys.executable, "-c", VICTIM, url, step.value, "1"], timeout=PATIENCE_SECONDS)
        assert found.returncode == -signal.SIGKILL
        so_far = {flow: len(session.journal.history(flow)) for flow in (*flows, "new")}
        assert set(so_far.values()) <= {0, 1, 2}
        assert (so_far["flow-3"], so_far["new"]) == (2, 1)
        has_removed = 0 in so_far.values()
        assert has_removed is (step is PurgeStep.REMOVED)
        # Readers that begin before the mark are refused as soon as a line is gone.
        assert (session.retention.purged_until() is not None) is has_removed
        list(purge_all(access, rules=Rules({"@journal": 24})))
        assert {flow for flow in (*flows, "new") if session.journal.history(flow)} == {"flow-3", "new"}
