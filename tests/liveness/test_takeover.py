"""What becomes of the claims of those who are dead, paused or gone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from stagepost import App, Context, Redelivery, StoreContention
from stagepost.app.app import engine_of
from stagepost.flow.claim import Claim
from stagepost.flow.clock import SECOND
from stagepost.liveness.detector import FailureDetector, PeerStatus, State
from stagepost.liveness.takeover import Takeover
from stagepost.ports.dead_letters import Selection
from stagepost.ports.liveness import IncarnationRecord, Running, RunState
from stagepost.runtime.access import Access
from stagepost.runtime.assembly import queue_commit_of
from stagepost.testing import ManualClock

OWNER = "bank/1"


@dataclass
class Job:
    number: int


def work(ctx: Context, job: Job) -> None:
    pass


class Census(FailureDetector):
    """Says what it was told to say."""

    def __init__(self) -> None:
        self.found: list[PeerStatus] = []
        self.forgotten: list[PeerStatus] = []

    def close(self) -> None:
        """It holds nothing open."""

    def look(self) -> list[PeerStatus]:
        return [each for each in self.found if each not in self.forgotten]

    def forget(self, found: PeerStatus) -> None:
        self.forgotten.append(found)


def takeover_of(app: App, access: Access, node: str, census: Census) -> Takeover:
    return Takeover(
        app.name,
        engine_of(app).stages(),
        access.claimer,
        queue_commit_of(engine_of(app), access, node),
        census,
        engine_of(app).random,
    )


@dataclass
class Bench:
    app: App
    access: Access
    census: Census
    takeover: Takeover
    clock: ManualClock

    def claimed(self, count: int, owner: str = OWNER) -> list[Claim]:
        for number in range(count):
            target = self.app.target("bank.work")
            self.app.start(target, Job(number), flow_id=f"{owner}:{number}")
        return self.access.claimer.claim(["bank.work"], count, owner, "node")

    def found(self, state: State, running: Sequence[Running] = (), owner: str = OWNER) -> None:
        is_dead = state == "dead"
        record = IncarnationRecord(owner, owner, f"worker@{owner}", 1, 0, 0, not is_dead, is_dead, tuple(running))
        self.census.found.append(PeerStatus(state, record))

    def waypoints(self, claim: Claim) -> Sequence[str]:
        """What was written of it since it was received."""
        return [each.waypoint for each in self.access.session.journal.history(claim.flow_id)][2:]

    def suspects(self) -> list[Claim]:
        self.clock.advance(60)
        claims = []
        while (claim := self.access.claimer.claim_suspect(["bank.work"], "bank/alone", "node")) is not None:
            claims.append(claim)
        return claims

    def ready(self) -> list[Claim]:
        self.clock.advance(60)
        return self.access.claimer.claim(["bank.work"], 100, "bank/next", "node")


@pytest.fixture(params=["memory", "sqlite"])
def bench(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Bench]:
    url = "toy:" if request.param == "memory" else f"sqlite:///{tmp_path}/bank.db"
    app = App("bank", database=url, clock=clock, random=Random(0))
    app.endpoint("bank.work", redelivery=Redelivery(redeliveries=1, first_seconds=1), time_limit=5)(work)
    access = engine_of(app).access()
    census = Census()
    yield Bench(app, access, census, takeover_of(app, access, "me", census), clock)
    access.session.close()


def running(claim: Claim, state: RunState = "running") -> Running:
    return Running(state, claim.row, claim.deliveries)


def test_what_the_dead_ran_died_and_is_a_suspect_and_all_else_they_held_is_given_back_uncounted(bench: Bench) -> None:
    ran, *held = bench.claimed(4)
    bench.found("dead", [running(ran)])
    assert bench.takeover.sweep() == 4
    assert bench.waypoints(ran) == ["died", "delayed"]
    assert all(bench.waypoints(each) == ["returned"] for each in held)
    (suspect,) = bench.suspects()
    assert (suspect.message_id, suspect.failures, suspect.deaths) == (ran.message_id, 0, 1)
    assert {(each.message_id, each.failures, each.deaths) for each in bench.ready()} == {
        (each.message_id, 0, 0) for each in held
    }
    assert len(bench.census.forgotten) == 1


def test_a_suspect_waits_a_second_before_it_runs_alone(bench: Bench) -> None:
    (ran,) = bench.claimed(1)
    bench.found("dead", [running(ran)])
    died_at = bench.clock.now()
    bench.takeover.sweep()
    assert bench.access.claimer.pending(["bank.work"]).next_suspect_at == died_at + SECOND


def test_each_thing_that_the_dead_ran_at_the_same_time_died(bench: Bench) -> None:
    claims = bench.claimed(3)
    bench.found("dead", [running(each) for each in claims])
    bench.takeover.sweep()
    assert {each.message_id for each in bench.suspects()} == {each.message_id for each in claims}


def test_what_had_exceeded_its_time_limit_failed_and_did_not_die(bench: Bench) -> None:
    (ran,) = bench.claimed(1)
    bench.found("dead", [running(ran, "timed-out")])
    bench.takeover.sweep()
    assert bench.waypoints(ran) == ["failed", "delayed"]
    (again,) = bench.ready()
    assert (again.failures, again.deaths) == (1, 0)


def test_what_exceeds_its_time_limit_too_often_is_a_dead_letter_by_its_policy(bench: Bench) -> None:
    bench.claimed(1)
    for _ in range(2):
        bench.census.found.clear()
        claims = bench.ready() or bench.access.session.queue.owned(OWNER)
        owner = claims[0].owner
        bench.found("dead", [running(claims[0], "timed-out")], owner)
        bench.takeover.sweep()
    (kept,) = bench.access.session.dead_letters.select(Selection("all"))
    assert (kept.letter.reason, kept.letter.failures, kept.letter.deaths) == ("exhausted", 2, 0)
    assert "5 s" in kept.letter.summary


def test_what_was_abandoned_by_a_worker_that_was_told_to_stop_is_given_back_uncounted(bench: Bench) -> None:
    (ran,) = bench.claimed(1)
    bench.found("dead", [running(ran, "abandoned")])
    bench.takeover.sweep()
    assert bench.waypoints(ran) == ["returned"]
    (again,) = bench.ready()
    assert (again.failures, again.deaths) == (0, 0)


def test_a_record_of_an_earlier_delivery_of_the_same_message_blames_nobody(bench: Bench) -> None:
    """It was on record when it was given back and claimed again, and had not begun when the process died."""
    (ran,) = bench.claimed(1)
    bench.found("dead", [Running("running", ran.row, ran.deliveries - 1), Running("running", ran.row + 1, 1)])
    bench.takeover.sweep()
    assert bench.waypoints(ran) == ["returned"]


def test_a_suspect_whose_parent_died_with_it_is_given_back_and_its_deaths_do_not_grow(bench: Bench) -> None:
    (ran,) = bench.claimed(1)
    bench.found("dead", [running(ran)])
    bench.takeover.sweep()
    (suspect,) = bench.suspects()
    bench.found("dead", [running(suspect)], "bank/alone")
    bench.takeover.sweep()
    (again,) = bench.suspects()
    assert again.deaths == 1
    assert bench.waypoints(ran).count("died") == 1


def test_what_the_paused_hold_is_given_back_uncounted_and_their_file_is_left_to_them(bench: Bench) -> None:
    claims = bench.claimed(3)
    bench.found("paused", [running(claims[0])])
    assert bench.takeover.sweep() == 3
    assert all(bench.waypoints(each) == ["returned"] for each in claims)
    assert bench.census.forgotten == []
    assert len(bench.ready()) == 3


def test_what_the_living_hold_is_left_alone(bench: Bench) -> None:
    claims = bench.claimed(2)
    bench.found("alive", [running(claims[0])])
    assert bench.takeover.sweep() == 0
    assert bench.access.session.queue.owned(OWNER) == claims


def test_what_is_held_by_one_without_any_file_is_given_back_uncounted(bench: Bench) -> None:
    claims = bench.claimed(2)
    assert bench.takeover.sweep() == 2
    assert all(bench.waypoints(each) == ["returned"] for each in claims)


def test_what_is_ones_own_is_left_alone_though_one_never_finds_oneself(bench: Bench) -> None:
    claims = bench.claimed(2)
    assert bench.takeover.sweep([OWNER]) == 0
    assert bench.access.session.queue.owned(OWNER) == claims


@pytest.mark.parametrize("owner", ["bank2/1", "ban/1", "bank.pay/1", "harness"])
def test_what_another_app_holds_in_the_same_store_is_left_alone(owner: str, bench: Bench) -> None:
    claims = bench.claimed(1, owner)
    assert bench.takeover.sweep() == 0
    assert bench.access.session.queue.owned(owner) == claims


def test_one_that_held_nothing_is_only_forgotten(bench: Bench) -> None:
    bench.found("dead", [Running("running", 5, 1)])
    assert bench.takeover.sweep() == 0
    assert len(bench.census.forgotten) == 1
    assert bench.takeover.sweep() == 0


def test_two_that_sweep_at_the_same_time_count_one_death(bench: Bench) -> None:
    """The second one has looked before the first one settled."""
    (ran,) = bench.claimed(1)
    bench.found("dead", [running(ran)])
    other = takeover_of(bench.app, bench.access, "other", Census())
    other._detector = _Stale(bench.census.found)
    bench.takeover.sweep()
    other.sweep()
    assert bench.waypoints(ran) == ["died", "delayed"]
    assert [each.deaths for each in bench.suspects()] == [1]


class _Stale(FailureDetector):
    def __init__(self, found: Sequence[PeerStatus]) -> None:
        self._found = list(found)

    def look(self) -> list[PeerStatus]:
        return self._found

    def close(self) -> None:
        pass

    def forget(self, found: PeerStatus) -> None:
        pass


def test_one_whose_claims_could_not_be_settled_is_not_forgotten_and_settled_the_next_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran, held = bench.claimed(2)
    bench.found("dead", [running(ran)])

    def refuse(*, is_durable: bool = True) -> None:
        raise StoreContention("busy")

    with monkeypatch.context() as patched:
        patched.setattr(bench.access.session, "begin", refuse)
        with pytest.raises(StoreContention):
            bench.takeover.sweep()
    assert bench.census.forgotten == []
    bench.access.session.rollback()
    assert bench.takeover.sweep() == 2
    assert bench.waypoints(ran) == ["died", "delayed"]
    assert bench.waypoints(held) == ["returned"]


def test_what_is_claimed_while_a_sweep_looks_who_lives_is_left_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that starts after the look is in no survey. The sweep has read the owners before, so it is safe."""
    look = bench.census.look

    def look_and_let_one_start() -> list[PeerStatus]:
        found = look()
        bench.claimed(1, owner="bank/2")
        return found

    monkeypatch.setattr(bench.census, "look", look_and_let_one_start)
    assert bench.takeover.sweep() == 0
    assert len(bench.access.session.queue.owned("bank/2")) == 1


def test_a_message_of_a_stage_that_the_app_no_longer_has_is_given_back(bench: Bench, tmp_path: Path) -> None:
    (ran,) = bench.claimed(1)
    without = App("bank", clock=bench.clock)
    bench.found("dead", [running(ran)])
    takeover_of(without, bench.access, "me", bench.census).sweep()
    assert bench.waypoints(ran) == ["returned"]
