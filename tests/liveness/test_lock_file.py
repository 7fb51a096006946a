"""An incarnation's lock file: the proof that it lives, its heartbeat, and the record of what it runs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from stagepost import StoreUnavailable
from stagepost.flow.clock import SECOND
from stagepost.flow.ids import RandomIds
from stagepost.liveness.incarnation import Record, Running
from stagepost.liveness.lock_file import LockFile, LockFileSurvey, read_record
from stagepost.testing import ManualClock
from tests.liveness.lodger import claim, lodging


def record_of(path: Path) -> Record:
    """Not for a file that this process holds: closing it would drop its lock."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        record = read_record(descriptor)
    finally:
        os.close(descriptor)
    assert record is not None
    return record


def test_the_record_says_who_it_is_and_since_when(folder: Path, ids: RandomIds, clock: ManualClock) -> None:
    incarnation = LockFile(folder, "bank", "worker@here:1", ids, clock)
    header = record_of(incarnation.path).header
    assert header.owner == incarnation.owner
    assert header.node == "worker@here:1"
    assert header.process == os.getpid()
    assert header.started_at == clock.now()


def test_its_owner_and_its_file_are_named_after_the_app(incarnation: LockFile, folder: Path) -> None:
    app, _, identity = incarnation.owner.partition("/")
    assert app == "bank"
    assert incarnation.path == folder / f"bank@{identity}.lock"


def test_the_record_says_what_each_slot_runs_and_survives_the_process(folder: Path) -> None:
    with lodging(folder, slots=3) as lodger:
        lodger.told("note", 0, 7, 1)
        lodger.told("note", 1, 8, 2)
        lodger.told("note", 2, 9, 3)
        lodger.told("time_out", 1)
        lodger.told("abandon")
        lodger.kill()
        assert record_of(lodger.path).running == (
            Running("abandoned", 7, 1),
            Running("timed-out", 8, 2),
            Running("abandoned", 9, 3),
        )


def test_what_is_begun_after_all_was_abandoned_is_abandoned_as_well(folder: Path) -> None:
    with lodging(folder) as lodger:
        lodger.told("note", 0, 7, 1)
        lodger.told("abandon")
        lodger.told("note", 0, 8, 1)
        lodger.kill()
        assert record_of(lodger.path).running == (Running("abandoned", 8, 1),)


def test_a_slot_that_is_cleared_or_was_never_used_is_not_in_the_record(folder: Path) -> None:
    with lodging(folder, slots=3) as lodger:
        lodger.told("note", 1, 8, 2)
        lodger.told("note", 2, 9, 3)
        lodger.told("clear", 1)
        # There is nothing in it to say anything of.
        lodger.told("time_out", 1)
        lodger.told("time_out", 0)
        lodger.kill()
        assert record_of(lodger.path).running == (Running("running", 9, 3),)


def test_what_a_slot_says_is_replaced_by_what_runs_there_next(folder: Path) -> None:
    with lodging(folder) as lodger:
        lodger.told("note", 0, 123456789, 1000)
        lodger.told("time_out", 0)
        lodger.told("note", 0, 7, 1)
        lodger.kill()
        assert record_of(lodger.path).running == (Running("running", 7, 1),)


def test_the_longest_names_and_numbers_fit_the_record(folder: Path, ids: RandomIds, clock: ManualClock) -> None:
    incarnation = LockFile(folder, "a" * 150, f"supervisor@{'h' * 64}:{2**22}", ids, clock)
    incarnation.note(0, claim(2**63 - 1, 2**31))
    incarnation.abandon()
    record = record_of(incarnation.path)
    assert record.header.owner == incarnation.owner
    assert record.running == (Running("abandoned", 2**63 - 1, 2**31),)


def test_the_heartbeat_is_the_files_time_and_follows_the_apps_clock(incarnation: LockFile, clock: ManualClock) -> None:
    clock.advance(3600)
    assert incarnation.beat() is None
    assert incarnation.path.stat().st_mtime_ns == clock.now() * 1_000


def test_the_heartbeat_says_when_nobody_can_see_it_any_more(incarnation: LockFile) -> None:
    assert incarnation.beat() is None
    incarnation.path.unlink()
    assert str(incarnation.path) in str(incarnation.beat())


def test_closing_removes_the_file(incarnation: LockFile) -> None:
    incarnation.close()
    assert not incarnation.path.exists()


def test_closing_one_whose_file_was_removed_is_no_error(incarnation: LockFile) -> None:
    incarnation.path.unlink()
    incarnation.close()


def test_a_folder_that_cannot_be_made_is_an_unavailable_store(
    tmp_path: Path, ids: RandomIds, clock: ManualClock
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match="lock files cannot be made there"):
        LockFile(tmp_path / "file" / "workers", "bank", "here", ids, clock)


def test_a_file_without_a_record_gives_none(tmp_path: Path) -> None:
    for number, content in enumerate((b"", b"\0" * 600, b"nonsense", b"{}", b'{"owner": 1}' + b" " * 600)):
        path = tmp_path / f"{number}.lock"
        path.write_bytes(content)
        descriptor = os.open(path, os.O_RDONLY)
        assert read_record(descriptor) is None
        os.close(descriptor)


def test_a_process_may_hold_several_and_never_opens_one_of_its_own(
    incarnation: LockFile, folder: Path, ids: RandomIds, clock: ManualClock
) -> None:
    """Opening and closing a file of its own would drop its lock, and it would look dead to all others."""
    second = LockFile(folder, "bank", "supervisor@here:1", ids, clock)
    survey = LockFileSurvey(folder, "bank", clock)
    assert survey.look() == []
    with lodging(folder) as lodger:
        for _ in range(3):
            assert [found.key for found in survey.look()] == [lodger.path]
        seen = lodger.told("look")
    assert f'"{incarnation.path.name}": "alive"' in seen
    assert f'"{second.path.name}": "alive"' in seen


def test_no_process_sees_a_lock_file_that_is_not_locked_yet(
    folder: Path, ids: RandomIds, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process looks as soon as the file has its name. Unlocked, its owner would look dead."""
    rename = Path.rename
    seen: list[str] = []

    def rename_and_look(path: Path, target: Path) -> Path:
        renamed = rename(path, target)
        seen.append(looker.told("look"))
        return renamed

    with lodging(folder) as looker:
        monkeypatch.setattr(Path, "rename", rename_and_look)
        starting = LockFile(folder, "bank", "worker@here:1", ids, clock)
        assert [json.loads(each).get(starting.path.name) for each in seen] == ["alive"]
        starting.close()


def test_a_process_that_opens_its_own_file_all_the_same_is_taken_for_dead(folder: Path) -> None:
    """Why it must not; the control of the test above."""
    with lodging(folder) as careless, lodging(folder) as other:
        assert f'"{careless.path.name}": "alive"' in other.told("look")
        careless.told("touch")
        assert f'"{careless.path.name}": "dead"' in other.told("look")


def test_a_time_in_the_heartbeat_is_whole_microseconds(incarnation: LockFile, clock: ManualClock) -> None:
    clock.advance(1 / 3)
    incarnation.beat()
    assert incarnation.path.stat().st_mtime_ns // 1_000 == clock.now()
    assert clock.now() % SECOND != 0
