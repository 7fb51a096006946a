"""Looking who is alive, from outside."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from stagepost.liveness.detector import LOOKS_MIN, FailureDetector
from stagepost.store.sqlite.lock_file import LockFolder
from stagepost.testing import ManualClock
from tests.liveness.scripted_worker import scripted_worker


def states(survey: FailureDetector) -> dict[Path, str]:
    return {Path(found.record.key): found.state for found in survey.look()}


@pytest.fixture
def survey(folder: Path, clock: ManualClock) -> FailureDetector:
    return FailureDetector(LockFolder(folder, clock), "bank", clock, paused_after_seconds=10)


def test_a_folder_that_is_not_there_yet_holds_nobody(survey: FailureDetector) -> None:
    assert survey.look() == []


def test_a_living_one_is_alive_for_as_long_as_its_heart_beats(
    folder: Path, survey: FailureDetector, clock: ManualClock
) -> None:
    with scripted_worker(folder) as worker:
        for _ in range(10):
            assert states(survey) == {worker.path: "alive"}
            clock.advance(9)
            worker.told("beat")


def test_one_whose_heart_stands_still_for_too_long_is_paused(
    folder: Path, survey: FailureDetector, clock: ManualClock
) -> None:
    with scripted_worker(folder) as worker:
        for _ in range(4):
            assert states(survey) == {worker.path: "alive"}
            clock.advance(3)
        assert states(survey) == {worker.path: "paused"}


def test_a_paused_one_whose_heart_beats_again_is_alive_again(
    folder: Path, survey: FailureDetector, clock: ManualClock
) -> None:
    with scripted_worker(folder) as worker:
        for _ in range(LOOKS_MIN + 1):
            survey.look()
            clock.advance(10)
        assert states(survey) == {worker.path: "paused"}
        worker.told("beat")
        assert states(survey) == {worker.path: "alive"}


def test_a_looker_that_was_asleep_itself_looks_more_than_once_before_it_calls_anybody_paused(
    folder: Path, survey: FailureDetector, clock: ManualClock
) -> None:
    with scripted_worker(folder) as worker:
        assert states(survey) == {worker.path: "alive"}
        clock.advance(100_000)
        for _ in range(LOOKS_MIN - 1):
            assert states(survey) == {worker.path: "alive"}
        assert states(survey) == {worker.path: "paused"}


def test_a_heartbeat_that_goes_back_in_time_has_moved(
    folder: Path, survey: FailureDetector, clock: ManualClock
) -> None:
    """The machine's clock was set. Only whether it moves is looked at, and not where to."""
    with scripted_worker(folder) as worker:
        for number in range(5):
            os.utime(worker.path, (1_000_000 - number, 1_000_000 - number))
            assert states(survey) == {worker.path: "alive"}
            clock.advance(100)


def test_one_that_was_killed_is_dead_however_fresh_its_heartbeat_is(folder: Path, survey: FailureDetector) -> None:
    with scripted_worker(folder) as worker:
        worker.told("note", 0, 7, 1)
        assert states(survey) == {worker.path: "alive"}
        worker.told("beat")
        worker.kill()
        (found,) = survey.look()
        assert found.state == "dead"
        assert found.record.process == worker.pid
        assert [each.row for each in found.record.running] == [7]


def test_one_that_uses_its_second_thread_before_its_first_is_seen_like_any_other(
    folder: Path, survey: FailureDetector, clock: ManualClock
) -> None:
    """Whichever thread takes a message. One that is not seen has its claims taken over while it lives, and when it is
    killed by what it runs, nobody ever learns of it."""
    with scripted_worker(folder, slots=4) as worker:
        worker.told("note", 1, 7, 1)
        assert states(survey) == {worker.path: "alive"}
        worker.kill()
        (found,) = survey.look()
        assert found.state == "dead"
        assert [each.row for each in found.record.running] == [7]


def test_one_that_stopped_in_good_order_is_not_found(folder: Path, survey: FailureDetector) -> None:
    with scripted_worker(folder) as worker:
        worker.told("close")
        assert survey.look() == []


def test_a_forked_child_that_lives_on_does_not_make_its_parent_look_alive(
    folder: Path, survey: FailureDetector
) -> None:
    with scripted_worker(folder) as worker:
        child = int(worker.told("fork"))
        try:
            worker.kill()
            assert states(survey) == {worker.path: "dead"}
        finally:
            os.kill(child, signal.SIGKILL)


def test_looking_does_not_take_the_lock_of_the_living_nor_keep_that_of_the_dead(
    folder: Path, survey: FailureDetector
) -> None:
    with scripted_worker(folder) as worker, scripted_worker(folder) as other:
        other.kill()
        for _ in range(3):
            assert states(survey) == {worker.path: "alive", other.path: "dead"}
        assert json.loads(worker.told("look")) == {other.path.name: "dead"}


def test_two_lookers_at_the_same_time_never_call_a_living_one_dead(folder: Path, survey: FailureDetector) -> None:
    """Each tries the locks, and for a moment holds that of the dead: to the other it may look alive then, no more."""
    with scripted_worker(folder) as living, scripted_worker(folder) as looker, scripted_worker(folder) as dead:
        dead.kill()
        seen = set()
        for _ in range(200):
            mine = states(survey)
            assert mine.pop(living.path) == "alive"
            assert mine.pop(looker.path) == "alive"
            theirs = json.loads(looker.told("look"))
            assert theirs.pop(living.path.name) == "alive"
            seen |= set(mine.values()) | set(theirs.values())
        assert "dead" in seen


def test_other_apps_are_not_looked_at_also_where_their_names_begin_alike(folder: Path, clock: ManualClock) -> None:
    with (
        scripted_worker(folder, app="bank") as ours,
        scripted_worker(folder, app="bank2"),
        scripted_worker(folder, app="bank.pay"),
    ):
        assert states(FailureDetector(LockFolder(folder, clock), "bank", clock)) == {ours.path: "alive"}
        assert len(FailureDetector(LockFolder(folder, clock), "*", clock).look()) == 3


def test_a_file_that_is_no_record_is_passed_over(folder: Path, survey: FailureDetector) -> None:
    with scripted_worker(folder) as worker:
        (folder / "bank@1.lock").write_bytes(b"")
        (folder / "bank@2.lock").write_bytes(b"nonsense")
        (folder / "bank@3.new").write_bytes(b"")
        assert states(survey) == {worker.path: "alive"}


def test_forgetting_removes_the_file_and_may_be_done_by_two(folder: Path, survey: FailureDetector) -> None:
    with scripted_worker(folder) as worker:
        worker.kill()
        (found,) = survey.look()
        survey.forget(found)
        survey.forget(found)
        assert survey.look() == []
