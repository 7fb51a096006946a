"""Who asked is killed, or the reply comes too late: it expires, and nothing of it stays."""

from __future__ import annotations

import signal
from pathlib import Path

from stagepost.liveness.orphans import Orphans
from stagepost.testing.harness import running
from tests.faults.bank import open_bank
from tests.faults.books import Books
from tests.faults.crew import Crew, Member
from tests.faults.stores import on_both, on_both_and_longer
from tests.faults.waiting import wait_until

ASKER = "tests.faults.asker"


def said(asker: Member) -> list[str]:
    return asker.log.read_text().splitlines()


def expired(books: Books) -> list[tuple[str, str]]:
    """Who let the reply expire, in what role, and why."""
    found = books.rows("SELECT node, detail FROM stagepost_journal WHERE waypoint = 'expired' ORDER BY id")
    return [(node.partition("@")[0], detail.rpartition(", ")[2]) for node, detail in found]


@on_both
def test_the_reply_to_one_who_was_killed_expires_at_a_worker(books: Books, crew: Crew) -> None:
    asker = crew.module(ASKER, "3", "60")
    wait_until(lambda: said(asker) == ["asked"], "it has asked")
    asker.kill()
    assert books.registered() == 1
    crew.process()
    wait_until(lambda: len(expired(books)) == 3, "the replies expired")
    assert set(expired(books)) == {("worker", "is gone")}
    wait_until(books.is_drained, "nothing of them is left")
    wait_until(lambda: books.registered() == 1, "the worker's is the only proof of life")
    assert books.entries() == 3


@on_both_and_longer
def test_one_who_is_killed_while_he_takes_the_reply_leaves_it_to_expire(
    books: Books, crew: Crew, tmp_path: Path
) -> None:
    crew.process()
    asker = crew.module(ASKER, "1", "60", kill=f"committing,*,1,{tmp_path / 'killed'}")
    assert asker.wait() == -9
    wait_until(lambda: expired(books) == [("worker", "is gone")], "the reply expired")
    wait_until(books.is_drained, "nothing of it is left")
    # Received by the one who was killed, and by the one who let it expire; and before, by the fraud department.
    assert books.waypoints("received") == 3
    assert books.letters() == []
    assert books.blamed("died") == []


@on_both_and_longer
def test_a_reply_that_is_late_expires_at_the_one_who_asked(books: Books, crew: Crew) -> None:
    asker = crew.module(ASKER, "2", "0.1")
    wait_until(lambda: sorted(said(asker)) == ["asked", "timeout r0", "timeout r1"], "the time is over")
    crew.process()
    wait_until(lambda: len(expired(books)) == 2, "the replies expired")
    assert set(expired(books)) == {("edge", "nobody waits for it any more")}
    assert books.is_drained()


@on_both_and_longer
def test_each_of_many_threads_hears_its_own_reply(books: Books, crew: Crew) -> None:
    crew.process()
    asker = crew.module(ASKER, "40", "80")
    wait_until(lambda: len(said(asker)) == 41, "all have heard")
    assert sorted(said(asker)) == sorted(["asked", *(f"reply r{n} a{n}" for n in range(40))])
    assert books.entries() == 40
    assert expired(books) == []


@on_both_and_longer
def test_the_replies_to_one_who_is_only_paused_are_left_to_him_and_those_to_the_dead_are_not(
    books: Books, crew: Crew
) -> None:
    asker = crew.module(ASKER, "2", "60")
    wait_until(lambda: said(asker) == ["asked"], "it has asked")
    asker.signal(signal.SIGSTOP)
    app = open_bank(books.url).app
    with running(app) as worker:
        worker.drain()
        orphans = Orphans(app, worker.access, "bank/judge", "judge@here:1")
        assert [orphans.sweep() for _ in range(3)] == [0, 0, 0]
        asker.kill()
        wait_until(lambda: orphans.sweep() == 2, "the replies expired")
        assert orphans.sweep() == 0
        orphans.close()
    assert books.is_drained()
