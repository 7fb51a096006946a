"""A replay is killed at any line of a chunk, and resumed: every letter is replayed once, as the journal says."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from stagepost.flow.clock import SystemClock
from stagepost.ports.dead_letters import Selection
from stagepost.runtime.access import Access
from stagepost.runtime.databases import open_store
from stagepost.testing.contract.givens import a_letter, committed
from stagepost.transaction.replaying import freeze
from tests.waiting import PATIENCE_SECONDS

LETTERS = 12

# Works off a replay in chunks of two, and kills itself on the way into, or out of, its third call of that verb.
VICTIM = """
import os, signal, sys
from stagepost.ports.registry import driver_of
from stagepost.flow.clock import SystemClock
from stagepost.recovery import rate_limiter
from stagepost.transaction.queue_commit import QueueCommit
from stagepost.transaction.replaying import run_replay

url, number, verb, when = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
rate_limiter.CHUNK_MAX = 2
session = driver_of(url).open_existing(url, "here").session()
queue_commit = QueueCommit(session, SystemClock(), "cli")
places = {"take": session.replays, "revive": queue_commit, "record": session.journal, "advance": session.replays}
place = places.get(verb, session)
real, calls = getattr(place, verb), 0

def fatal(*arguments, **options):
    global calls
    calls += 1
    if calls == 3 and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    found = real(*arguments, **options)
    if calls == 3 and when == "after":
        os.kill(os.getpid(), signal.SIGKILL)
    return found

setattr(place, verb, fatal)

class Ready:
    def wait(self, seconds):
        return True

for _ in run_replay(queue_commit, session.replays.find(number), stop=Ready(), who="ada"):
    pass
"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    made: Callable[[], str] = request.getfixturevalue("new_postgres")
    return made()


def run_victim(url: str, replay: int, verb: str, when: str) -> int:
    return subprocess.run(
        [sys.executable, "-c", VICTIM, url, str(replay), verb, when], timeout=PATIENCE_SECONDS
    ).returncode


def replayed(way: Access) -> Counter[str]:
    return Counter(each.message_id for each in way.session.journal.history("flow") if each.waypoint == "replayed")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "verb",
    ["take", *(pytest.param(each, marks=pytest.mark.more) for each in ("revive", "record", "advance")), "commit"],
)
def test_a_replay_that_is_killed_anywhere_is_resumed_with_what_is_left(url: str, verb: str, when: str) -> None:
    way = Access(open_store(url).session(), SystemClock())
    with closing(way.session):
        names = [f"m{n:02}" for n in range(LETTERS)]
        with committed(way.session):
            for name in names:
                way.session.dead_letters.bury(a_letter(name, envelope=b"{}"))
        replay = freeze(way.session, [Selection("all")], clock=SystemClock(), who="ada")
        assert replay is not None
        assert run_victim(url, replay.id, verb, when) == -signal.SIGKILL
        so_far = way.session.replays.find(replay.id)
        assert so_far is not None
        # What is counted is what is in the journal, and in the queue, and gone from the letters.
        assert (
            so_far.replayed
            == replayed(way).total()
            == LETTERS - len(list(way.session.dead_letters.select(Selection("all"))))
        )
        assert 0 < so_far.replayed < LETTERS
        assert run_victim(url, replay.id, "take", "never") == 0
        assert replayed(way) == Counter(names)
        ended = way.session.replays.find(replay.id)
        assert ended is not None
        assert (ended.replayed, ended.gone, ended.left) == (LETTERS, 0, 0)
        assert list(way.session.dead_letters.select(Selection("all"))) == []
        # What died, runs alone: a letter of the contract has two deaths.
        assert sum(each.suspect for each in way.session.queue.depths()) == LETTERS
