"""An incarnation's lock file: the proof that it lives, its heartbeat, and the record of what it runs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from stagepost import StoreUnavailable
from stagepost.flow.clock import SECOND
from stagepost.flow.ids import RandomIds
from stagepost.liveness.detector import FailureDetector
from stagepost.liveness.incarnation import registration
from stagepost.ports.liveness import IncarnationRecord, Running
from stagepost.store.sqlite.lock_file import LockFile, LockFolder, read_record
from stagepost.testing import ManualClock
from tests.liveness.scripted_worker import claim, scripted_worker


def record_of(path: Path) -> IncarnationRecord:
    """Not for a file that this process holds: closing it would drop its lock."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        record = read_record(descriptor, str(path))
    finally:
        os.close(descriptor)
    assert record is not None
    return record


def test_the_record_says_who_it_is_and_since_when(folder: Path, ids: RandomIds, clock: ManualClock) -> None:
    incarnation = LockFile(folder, registration("bank", "worker@here:1", ids, clock), clock)
    header = record_of(incarnation.path)
    assert header.owner == incarnation.owner
    assert header.node == "worker@here:1"
    assert header.process == os.getpid()
    assert header.started_at == clock.now()


def test_its_owner_and_its_file_are_named_after_the_app(incarnation: LockFile, folder: Path) -> None:
    app, _, identity = incarnation.owner.partition("/")
    assert app == "bank"
    assert incarnation.path == folder / f"bank@{identity}.lock"


def test_the_record_says_what_each_slot_runs_and_survives_the_process(folder: Path) -> None:
    with scripted_worker(folder, slots=3) as worker:
        worker.told("note", 0, 7, 1)
        worker.told("note", 1, 8, 2)
        worker.told("note", 2, 9, 3)
        worker.told("time_out", 1)
        worker.told("abandon")
        worker.kill()
        assert record_of(worker.path).running == (
            Running("abandoned", 7, 1),
            Running("timed-out", 8, 2),
            Running("abandoned", 9, 3),
        )


def test_what_is_begun_after_all_was_abandoned_is_abandoned_as_well(folder: Path) -> None:
    with scripted_worker(folder) as worker:
        worker.told("note", 0, 7, 1)
        worker.told("abandon")
        worker.told("note", 0, 8, 1)
        worker.kill()
        assert record_of(worker.path).running == (Running("abandoned", 8, 1),)


def test_a_slot_that_is_cleared_or_was_never_used_is_not_in_the_record(folder: Path) -> None:
    with scripted_worker(folder, slots=3) as worker:
        worker.told("note", 1, 8, 2)
        worker.told("note", 2, 9, 3)
        worker.told("clear", 1)
        # There is nothing in it to say anything of.
        worker.told("time_out", 1)
        worker.told("time_out", 0)
        worker.kill()
        assert record_of(worker.path).running == (Running("running", 9, 3),)


def test_what_a_slot_says_is_replaced_by_what_runs_there_next(folder: Path) -> None:
    with scripted_worker(folder) as worker:
        worker.told("note", 0, 123456789, 1000)
        worker.told("time_out", 0)
        worker.told("note", 0, 7, 1)
        worker.kill()
        assert record_of(worker.path).running == (Running("running", 7, 1),)


def test_the_longest_names_and_numbers_fit_the_record(folder: Path, ids: RandomIds, clock: ManualClock) -> None:
    incarnation = LockFile(folder, registration("a" * 150, f"supervisor@{'h' * 64}:{2**22}", ids, clock), clock)
    incarnation.note(0, claim(2**63 - 1, 2**31))
    incarnation.abandon()
    record = record_of(incarnation.path)
    assert record.owner == incarnation.owner
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
        LockFile(tmp_path / "file" / "workers", registration("bank", "here", ids, clock), clock)


def test_a_file_without_a_record_gives_none(tmp_path: Path) -> None:
    for number, content in enumerate((b"", b"\0" * 600, b"nonsense", b"{}", b'{"owner": 1}' + b" " * 600)):
        path = tmp_path / f"{number}.lock"
        path.write_bytes(content)
        descriptor = os.open(path, os.O_RDONLY)
        assert read_record(descriptor, str(path)) is None
        os.close(descriptor)


def test_a_process_may_hold_several_and_never_opens_one_of_its_own(
    incarnation: LockFile, folder: Path, ids: RandomIds, clock: ManualClock
) -> None:
    """Opening and closing a file of its own would drop its lock, and it would look dead to all others."""
    second = LockFile(folder, registration("bank", "supervisor@here:1", ids, clock), clock)
    survey = FailureDetector(LockFolder(folder, clock), "bank", clock)
    assert survey.look() == []
    with scripted_worker(folder) as worker:
        for _ in range(3):
            assert [Path(found.record.key) for found in survey.look()] == [worker.path]
        seen = worker.told("look")
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

    with scripted_worker(folder) as looker:
        monkeypatch.setattr(Path, "rename", rename_and_look)
        starting = LockFile(folder, registration("bank", "worker@here:1", ids, clock), clock)
        assert [json.loads(each).get(starting.path.name) for each in seen] == ["alive"]
        starting.close()


def test_a_process_that_opens_its_own_file_all_the_same_is_taken_for_dead(folder: Path) -> None:
    """Why it must not; the control of the test above."""
    with scripted_worker(folder) as careless, scripted_worker(folder) as other:
        assert f'"{careless.path.name}": "alive"' in other.told("look")
        careless.told("touch")
        assert f'"{careless.path.name}": "dead"' in other.told("look")


def test_a_time_in_the_heartbeat_is_whole_microseconds(incarnation: LockFile, clock: ManualClock) -> None:
    clock.advance(1 / 3)
    incarnation.beat()
    assert incarnation.path.stat().st_mtime_ns // 1_000 == clock.now()
    assert clock.now() % SECOND != 0
