"""Who asked is killed, or who is to reply: the reply comes once, or expires, and nothing of it stays."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from stagepost.app.app import engine_of
from stagepost.runtime.housekeeper import Orphans
from stagepost.testing.harness import running
from stagepost.transaction.stage import Mode
from stagepost.transaction.steps import STEPS, Step
from tests.faults.bank import open_bank
from tests.faults.books import Books, Flow
from tests.faults.pausing import pause
from tests.faults.scenarios import settle
from tests.faults.stores import in_every_mode, in_every_mode_and_longer, on_both_and_longer
from tests.faults.two_books import TwoBooks
from tests.faults.worker_fleet import Member, WorkerFleet
from tests.servers.proxy import Loss, Proxy
from tests.waiting import wait_until

ASKER = "tests.faults.asker"
# The asker's time-out, in seconds, where its end is not awaited.
LONG = "3600"
WAITING = "database unavailable"
LOSSES: list[Loss] = ["of the question", "of the answer"]

MODES: dict[str, Mode] = {
    "sqlite": "single",
    "postgres": "single",
    "sqlite-outbox": "outbox",
    "postgres-outbox": "outbox",
    "postgres-two_phase": "two_phase",
}
# When its work is committed and its reply is not; the others with ``make soak``.
SAMPLED = {("postgres-outbox", Step.COMMITTED), ("postgres-two_phase", Step.DECIDED)}

at_any_step = pytest.mark.parametrize(
    ("store", "step"),
    [
        pytest.param(store, step, marks=[] if (store, step) in SAMPLED else pytest.mark.soak)
        for store, mode in MODES.items()
        for step in STEPS[mode]
    ],
)


class Question(Flow):
    """What the asker asks under that flow id."""

    @property
    def entries(self) -> list[tuple[str, str, int]]:
        return [("bank.fraud", f"a{self.flow_id.removeprefix('r')}", 0)]


def said(asker: Member) -> list[str]:
    return asker.log.read_text().splitlines()


def told(asker: Member) -> list[str]:
    """Return its own lines, without those that the library logged beside them."""
    return [each for each in said(asker) if each.startswith(("asked", "reply ", "timeout ", "died "))]


def heard(asker: Member) -> list[str]:
    return sorted(each for each in told(asker) if each != "asked")


def expired(books: Books) -> list[tuple[str, str]]:
    """Who let the reply expire, in what role, and why."""
    found = books.rows("SELECT node, detail FROM stagepost_journal WHERE waypoint = 'expired' ORDER BY id")
    return [(node.partition("@")[0], detail.rpartition(", ")[2]) for node, detail in found]


@in_every_mode
def test_the_reply_to_one_who_was_killed_expires_at_a_worker(books: Books, fleet: WorkerFleet) -> None:
    asker = fleet.module(ASKER, "3", LONG)
    wait_until(lambda: told(asker) == ["asked"], "it has asked")
    asker.kill()
    assert books.registered() == 1
    fleet.process()
    wait_until(lambda: len(expired(books)) == 3, "the replies expired")
    assert set(expired(books)) == {("worker", "is gone")}
    wait_until(books.is_drained, "nothing of them is left")
    wait_until(lambda: books.registered() == 1, "the worker's is the only proof of life")
    assert books.entries() == 3


@in_every_mode_and_longer
def test_one_who_is_killed_while_he_takes_the_reply_leaves_it_to_expire(
    books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    fleet.process()
    asker = fleet.module(ASKER, "1", LONG, kill=f"committing,*,1,{tmp_path / 'killed'}")
    assert asker.wait() == -9
    wait_until(lambda: expired(books) == [("worker", "is gone")], "the reply expired")
    wait_until(books.is_drained, "nothing of it is left")
    # Received by the one who was killed, and by the one who let it expire; and before, by the fraud department.
    assert books.waypoints("received") == 3
    assert books.letters() == []
    assert books.blamed("died") == []


@in_every_mode_and_longer
def test_a_reply_that_is_late_expires_at_the_one_who_asked(books: Books, fleet: WorkerFleet) -> None:
    asker = fleet.module(ASKER, "2", "0.1")
    wait_until(lambda: sorted(told(asker)) == ["asked", "timeout r0", "timeout r1"], "the time is over")
    fleet.process()
    wait_until(lambda: len(expired(books)) == 2, "the replies expired")
    assert set(expired(books)) == {("edge", "no request waits for it any more")}
    assert books.is_drained()


@in_every_mode_and_longer
def test_each_of_many_threads_hears_its_own_reply(books: Books, fleet: WorkerFleet) -> None:
    fleet.process()
    asker = fleet.module(ASKER, "40", LONG)
    wait_until(lambda: len(heard(asker)) == 40, "all have heard")
    assert heard(asker) == sorted(f"reply r{n} a{n}" for n in range(40))
    assert books.entries() == 40
    assert expired(books) == []


@at_any_step
def test_one_who_asked_hears_each_reply_once_although_the_worker_is_killed_while_it_replies(
    step: Step, books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    fleet.command("--threads", "1", kill=f"{step},bank.fraud,1,{tmp_path}/killed", tune="death=0.1")
    asker = fleet.module(ASKER, "2", LONG)
    wait_until(lambda: len(heard(asker)) == 2, "both replies came")
    assert heard(asker) == ["reply r0 a0", "reply r1 a1"]
    assert (tmp_path / "killed").exists()
    settle(books)
    assert books.problems([Question("r0"), Question("r1")]) == []
    assert books.blamed("failed") == []
    assert expired(books) == []


@in_every_mode
def test_one_who_asked_hears_of_the_dead_letter_long_before_his_time_is_over(books: Books, fleet: WorkerFleet) -> None:
    fleet.process()
    asker = fleet.module(ASKER, "3", LONG, "bank.fraud:refuse")
    wait_until(lambda: len(heard(asker)) == 3, "all have heard")
    letters = {flow_id: number for number, flow_id in books.rows("SELECT id, flow_id FROM stagepost_dead_letter")}
    deaths = [f"died r{n} of letter {letters[f'r{n}']}: stagepost.Refuse: told to refuse" for n in range(3)]
    assert heard(asker) == deaths
    assert books.entries() == 0


# Killed there, it has not replied, and nobody replies in its place before another one comes.
UNANSWERED = [
    ("sqlite", Step.HANDLED),
    ("postgres", Step.COMMITTING),
    ("sqlite-outbox", Step.COMMITTED),
    ("postgres-outbox", Step.COMMITTED),
    ("postgres-two_phase", Step.PREPARED),
    ("postgres-two_phase", Step.DECIDED),
]


@pytest.mark.soak
@pytest.mark.parametrize(("store", "step"), UNANSWERED)
def test_one_whose_worker_is_killed_and_not_replaced_in_time_is_told_so_and_the_late_reply_expires(
    step: Step, books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    worker = fleet.process(threads=1, kill=f"{step},bank.fraud,1,{tmp_path}/killed")
    asker = fleet.module(ASKER, "1", "0.1")
    wait_until(lambda: told(asker) == ["asked", "timeout r0"], "the time is over")
    assert worker.wait() == -9
    fleet.command("--threads", "1", tune="death=0.1")
    wait_until(lambda: expired(books) == [("edge", "no request waits for it any more")], "the reply expired")
    settle(books)
    assert told(asker) == ["asked", "timeout r0"]
    assert books.entries() == 1
    assert books.letters() == []
    assert books.blamed("failed") == []


@pytest.mark.soak
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("store", ["postgres-outbox", "postgres-two_phase"])
def test_one_who_is_cut_off_from_the_queue_while_he_waits_and_takes_a_reply_hears_each_once(
    loss: Loss, books: TwoBooks, fleet: WorkerFleet
) -> None:
    with closing(Proxy(books.queue.url)) as proxy:
        fleet.settings["queue"] = proxy.url
        asker = fleet.module(ASKER, "3", LONG)
        wait_until(lambda: told(asker) == ["asked"], "it has asked")
        assert proxy.cut() > 0
        traps = [proxy.trap("DELETE FROM stagepost_ready", loss, is_last=is_last) for is_last in (False, True)]
        fleet.settings["queue"] = books.queue.url
        fleet.command("--threads", "1")
        wait_until(lambda: all(trap.sprung.is_set() for trap in traps), "it was not answered twice")
        before = len(said(asker))
        wait_until(lambda: any(WAITING in each for each in said(asker)[before:]), "the queue is not there")
        proxy.let_in()
        wait_until(lambda: len(heard(asker)) == 3, "all replies came")
        assert heard(asker) == [f"reply r{n} a{n}" for n in range(3)]
        settle(books)
        assert books.problems([Question(f"r{n}") for n in range(3)]) == []
        assert expired(books) == []
        fleet.kill_all()


@on_both_and_longer
def test_the_replies_to_one_who_is_only_paused_are_left_to_him_and_those_to_the_dead_are_not(
    books: Books, fleet: WorkerFleet
) -> None:
    asker = fleet.module(ASKER, "2", LONG)
    wait_until(lambda: told(asker) == ["asked"], "it has asked")
    pause(asker.pid, books.url)
    app = open_bank(books.url).app
    with running(app) as worker:
        worker.drain()
        orphans = Orphans(engine_of(app), worker.access, "bank/judge", "judge@here:1")
        assert [orphans.sweep() for _ in range(3)] == [0, 0, 0]
        asker.kill()
        wait_until(lambda: orphans.sweep() == 2, "the replies expired")
        assert orphans.sweep() == 0
        orphans.close()
    assert books.is_drained()
