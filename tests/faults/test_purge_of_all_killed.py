"""A purge of every kind of row is killed again and again, or has a second one beside it: no row goes that must stay."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from random import Random

import pytest

from stagepost.flow.clock import HOUR, SystemClock
from stagepost.flow.effects import EffectId
from stagepost.ports.audits import AuditFinding
from stagepost.ports.business_keys import KeyRow
from stagepost.ports.dead_letters import Selection
from stagepost.ports.inbox import InboxRow
from stagepost.ports.retention import FIRST, FIRST_HANDLED, FIRST_KEY
from stagepost.ports.runs import Quarantined
from stagepost.ports.session import Session
from stagepost.ports.store import Store
from stagepost.runtime.access import Access
from stagepost.runtime.databases import open_store
from stagepost.runtime.purge_service import purge_all
from stagepost.testing.contract.givens import NOW, a_letter, a_waypoint, an_acceptance, committed
from stagepost.transaction.purge_batches import OF_A_BATCH, PurgeStep
from stagepost.transaction.retention import KINDS, Rules, scope_of_kind
from tests.waiting import PATIENCE_SECONDS

ROWS = 5
EVERYTHING = 10**6
RULES = {scope_of_kind(kind): 24 for kind in KINDS}

# Purges in batches of two rows. Kills itself at a passing of a step, or prints how many rows it removed.
VICTIM = """
import os, signal, sys
from stagepost.flow.clock import SystemClock
from stagepost.ports.registry import driver_of
from stagepost.runtime.access import Access
from stagepost.runtime.purge_service import purge_all
from stagepost.store.sqlite import retention as sqlite_retention
from stagepost.transaction import purge_batches
from stagepost.transaction.retention import KINDS, Rules, scope_of_kind

url, wanted, number, *kinds = sys.argv[1:]
purge_batches.BATCH = 2
sqlite_retention.SPARE_PAGES, sqlite_retention.SPARE_PART = 1, 1_000
passed = 0

def listen(step):
    global passed
    passed += step.value == wanted
    if passed == int(number):
        os.kill(os.getpid(), signal.SIGKILL)

store = driver_of(url).open_existing(url, "here")
access = Access(store.session(), SystemClock())
rules = Rules({scope_of_kind(kind): 24 for kind in kinds or KINDS})
print(sum(each.rows for each in purge_all(access, store, rules=rules, listener=listen)))
"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    made: Callable[[], str] = request.getfixturevalue("new_postgres")
    return made()


def fill(session: Session, apart: Session, age: str) -> None:
    """Add a few rows of each kind, each of a flow of its own."""
    names = [f"{age}-{number}" for number in range(ROWS)]
    with committed(session):
        session.accepted.accept([an_acceptance(each) for each in names])
        session.journal.record([a_waypoint(f"m-{each}", f"flow-{each}") for each in names])
        session.runs.begin(age, "pay", "file", NOW)
        session.runs.quarantine(age, [Quarantined("file", n, "bad", None, "row" * 3_000) for n in range(ROWS)])
        session.audits.note([AuditFinding("lost", "pay", each, "flow", "") for each in names], NOW)
        for each in names:
            session.dead_letters.bury(a_letter(f"dead-{each}", flow_id=f"dead-{each}"))
            session.business_keys.admit(KeyRow("pay", each, f"m-{each}", "digest", NOW, None))
            session.inbox.admit(InboxRow("pay", each, "digest", NOW, NOW))
            session.inbox.mark("pay", each)
            session.replays.freeze([Selection("flow", "unknown")], who="ada", at=NOW, rate=None)
    with committed(apart):
        for each in names:
            apart.effects.add(EffectId(f"m-{each}", "pay", 0, "", "card", 0), f"flow-{each}", 0, "d", b"{}")


def rows(session: Session, apart: Session) -> dict[str, set[str]]:
    retention = session.retention
    lines = {f"{age}-{number}" for age in ("old", "new") for number in range(ROWS)}
    return {
        "ids": {each.key for each in retention.old_ids("pay", EVERYTHING, FIRST, 99)},
        "inbox": {each.message_id for each in retention.old_handled("pay", EVERYTHING, FIRST_HANDLED, 99)},
        "business keys": {each.key for each in retention.old_keys("pay", EVERYTHING, FIRST_KEY, 99)},
        "journal": {each for each in lines if session.journal.history(f"flow-{each}")},
        "letters": {each.letter.message_id for each in session.dead_letters.select(Selection("all"))},
        "runs": {age for age in ("old", "new") if session.runs.quarantined(age, 99, ("", 0))},
        "findings": {each.finding.message_id for each in session.audits.findings(99)},
        "replays": {str(each.id) for each in session.replays.listed()},
        "effects": {flow for _, flow in apart.effects.flows(0, 99)},
    }


def count_hours(session: Session, first: int) -> None:
    for hour in range(first, first + 60):
        with committed(session):
            session.retention.count_hour(NOW + hour * HOUR)


def prepare(store: Store, end_range: Callable[[Session], None]) -> tuple[dict[str, set[str]], int]:
    """Fill a store with old rows and new ones. Returns the new ones, and the number of the old ones.

    ``end_range`` is called between the two, if the journal has ranges.
    """
    with closing(store.session()) as session, closing(store.apart.session()) as apart:
        fill(session, apart, "old")
        old = rows(session, apart)
        count_hours(session, 0)
        if session.retention.ends_at() is not None:
            end_range(session)
            # A range is old when an hour is that was counted after a later line.
            with committed(session):
                session.journal.record([a_waypoint("between", "between")])
            count_hours(session, 60)
        fill(session, apart, "new")
        both = rows(session, apart)
    new = {kind: both[kind] - old[kind] for kind in old}
    assert all(new.values())
    return new, sum(len(each) for each in old.values()) + ROWS


def purge(url: str, step: PurgeStep | None = None, number: int = 10_000, *kinds: str) -> subprocess.Popen[str]:
    wanted = "" if step is None else step.value
    command = [sys.executable, "-c", VICTIM, url, wanted, str(number), *kinds]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.more
def test_a_purge_that_is_killed_again_and_again_ends_with_the_rows_that_must_stay(url: str) -> None:
    store, random, killed = open_store(url), Random(19), 0

    def end_range(session: Session) -> None:
        for step in (PurgeStep.CUTTING, PurgeStep.CUT):
            assert session.retention.closed_ranges() == []
            victim = purge(url, step, 1, "journal")
            victim.communicate(timeout=PATIENCE_SECONDS)
            assert victim.returncode == -signal.SIGKILL
        assert len(session.retention.closed_ranges()) == 1

    new, _ = prepare(store, end_range)
    with closing(store.session()) as session, closing(store.apart.session()) as apart:
        for step in (*OF_A_BATCH, *random.choices(OF_A_BATCH, k=4)):
            victim = purge(url, step, random.randint(1, 6))
            victim.communicate(timeout=PATIENCE_SECONDS)
            killed += victim.returncode == -signal.SIGKILL
            left = rows(session, apart)
            assert all(new[kind] <= left[kind] for kind in new)
        victim = purge(url)
        victim.communicate(timeout=PATIENCE_SECONDS)
        assert victim.returncode == 0
        assert rows(session, apart) == new
    assert killed >= len(OF_A_BATCH)


def purge_twice_at_once(store: Store, rules: Rules) -> Counter[str]:
    """Run two purges. Both find the same rows before one of them removes any, until one has ended."""
    together = threading.Barrier(2)

    def listen(step: PurgeStep) -> None:
        if step is PurgeStep.FOUND:
            with suppress(threading.BrokenBarrierError):
                together.wait(PATIENCE_SECONDS)

    def purge_beside_the_other() -> Counter[str]:
        removed = Counter[str]()
        with closing(Access(store.session(), SystemClock())) as access:
            try:
                for each in purge_all(access, store, rules=rules, listener=listen):
                    removed[each.what] += each.rows
            finally:
                together.abort()
        return removed

    with ThreadPoolExecutor(2) as threads:
        purges = [threads.submit(purge_beside_the_other) for _ in range(2)]
        return purges[0].result(PATIENCE_SECONDS) + purges[1].result(PATIENCE_SECONDS)


@pytest.mark.more
def test_two_purges_at_once_remove_each_row_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stagepost.transaction.purge_batches.BATCH", 2)
    store = open_store(url)

    def end_range(session: Session) -> None:
        with committed(session):
            session.retention.cut(EVERYTHING)

    new, old = prepare(store, end_range)
    removed = Counter[str]()
    # The two meet at the journal, and then at all else.
    for rules in ({"@journal": 24}, RULES):
        removed += purge_twice_at_once(store, Rules(rules))
    with closing(Access(store.session(), SystemClock())) as access, closing(store.apart.session()) as apart:
        # The range that one purge dropped keeps the other one from the effects behind it.
        removed["effects"] += sum(each.rows for each in purge_all(access, store, rules=Rules(RULES)))
        assert rows(access.session, apart) == new
    # The lines of a range are estimated.
    removed["lines of the journal"] = ROWS
    assert removed.total() == old
