"""The archive takes old lines and letters over in one commit. Whatever happens before or after it loses nothing."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from stagepost.flow.clock import SystemClock
from stagepost.flow.errors import DeclarationError
from stagepost.pipeline.archive_folder import (
    LEFT_BEHIND_SECONDS,
    ArchiveConflict,
    ArchiveFolder,
    ArchiveUnusable,
    Content,
)
from stagepost.pipeline.archiver import ArchiveFailed, ArchiveStep
from stagepost.ports.dead_letters import Selection
from stagepost.runtime.purge_service import purge_all
from stagepost.testing.contract.givens import a_row, committed, enqueued
from stagepost.transaction.queue_commit import QueueCommit
from stagepost.transaction.replaying import freeze, run_replay
from tests.pipeline.archives import RULES, Shelf, opened
from tests.waiting import PATIENCE_SECONDS

FLOWS = [f"flow-{number}" for number in range(4)]

# Archives what is old, and kills itself at a step.
VICTIM = """
import os, signal, sys
from pathlib import Path
from tests.pipeline.archives import opened

url, folder, wanted = sys.argv[1:]

def listen(step):
    if step.value == wanted:
        os.kill(os.getpid(), signal.SIGKILL)

with opened(url, Path(folder)) as shelf:
    list(shelf.archiver(listener=listen).run())
"""

more = pytest.mark.more


def test_old_lines_and_letters_move_to_the_archive_and_open_flows_stay_too(shelf: Shelf) -> None:
    shelf.write(*FLOWS, "waits")
    enqueued(shelf.session, a_row("waits-m", flow_id="waits"))
    shelf.bury("flow-0")
    shelf.age()
    shelf.write("new")
    shelf.bury("new")
    kinds = [each.kind for each in shelf.run()]
    assert kinds == ["journal", "dead_letters"]
    assert shelf.archived_flows() == Counter(dict.fromkeys([*FLOWS, "waits"], 3))
    # The letter was archived after the lines were deleted, so the next run deletes those of its flow.
    assert shelf.stored() == {"waits": 3, "new": 3, "flow-0": 3}
    assert (shelf.archived_letters(), shelf.letters()) == (["flow-0-m"], ["new-m"])
    assert shelf.run() == []
    assert shelf.stored() == {"waits": 3, "new": 3}


def test_each_line_is_archived_once_by_run_after_run(shelf: Shelf) -> None:
    for number in range(3):
        shelf.write(f"flow-{number}")
        enqueued(shelf.session, a_row(f"waits-{number}-m", flow_id=f"waits-{number}"))
        shelf.write(f"waits-{number}")
        shelf.age()
        shelf.run()
    names = [f"{name}-{number}" for name in ("flow", "waits") for number in range(3)]
    assert shelf.archived_flows() == Counter(dict.fromkeys(names, 3))
    assert shelf.stored() == {f"waits-{number}": 3 for number in range(3)}
    ends = [(each.first, each.next) for each in shelf.session.archives.manifests()]
    assert [first for first, _ in ends] == [0, *(behind for _, behind in ends[:-1])]


STEPS = [
    pytest.param(kind, step, marks=() if (kind, step) == ("sqlite", "taken") else more)
    for kind in ("sqlite", "postgres")
    for step in ArchiveStep
]


@pytest.mark.parametrize(("kind", "step"), STEPS)
def test_an_archiver_that_is_killed_anywhere_is_ended_by_the_next_one(
    new_shelf: Callable[[str], Shelf], kind: str, step: str
) -> None:
    shelf = new_shelf(kind)
    shelf.write(*FLOWS)
    shelf.bury("flow-1", "flow-2")
    shelf.age()
    shelf.write("new")
    words = [sys.executable, "-c", VICTIM, shelf.url, str(shelf.folder), step]
    assert subprocess.run(words, timeout=PATIENCE_SECONDS).returncode == -signal.SIGKILL
    so_far = shelf.archived_flows() + shelf.stored()
    assert set(so_far) == {*FLOWS, "new"}
    assert shelf.archived_letters() + shelf.letters() == ["flow-1-m", "flow-2-m"]
    shelf.run()
    shelf.run()
    assert shelf.archived_flows() == Counter(dict.fromkeys(FLOWS, 3))
    assert shelf.stored() == {"new": 3}
    assert (shelf.archived_letters(), shelf.letters()) == (["flow-1-m", "flow-2-m"], [])


@pytest.mark.parametrize(("kind", "step"), [each for each in STEPS if "deleted" not in each.values])
def test_an_archiver_that_is_killed_among_letters_loses_and_doubles_none(
    new_shelf: Callable[[str], Shelf], kind: str, step: str
) -> None:
    shelf = new_shelf(kind)
    shelf.bury("flow-1", "flow-2")
    shelf.age()
    words = [sys.executable, "-c", VICTIM, shelf.url, str(shelf.folder), step]
    assert subprocess.run(words, timeout=PATIENCE_SECONDS).returncode == -signal.SIGKILL
    both = ["flow-1-m", "flow-2-m"]
    assert (shelf.archived_letters(), shelf.letters()) == (([], both) if step != "taken" else (both, []))
    shelf.run()
    assert (shelf.archived_letters(), shelf.letters()) == (both, [])


def test_a_flow_that_ends_or_is_replayed_while_its_range_is_written_is_whole_in_the_archive(shelf: Shelf) -> None:
    shelf.write(*FLOWS)
    shelf.bury("flow-0", "flow-1")
    shelf.age()
    queue_commit = QueueCommit(shelf.session, SystemClock(), "cli")

    class Ready:
        def wait(self, seconds: float) -> bool:
            return True

    def during() -> None:
        # The first flow ends, and the second one gets new attempts.
        with committed(shelf.session):
            shelf.session.dead_letters.remove(shelf.session.dead_letters.ids_of(["flow-0"])[0])
        replay = freeze(shelf.session, [Selection("flow", "flow-1")], clock=SystemClock(), who="ada")
        assert replay is not None
        list(run_replay(queue_commit, replay, stop=Ready(), who="ada"))

    list(shelf.archiver(during=during).run())
    assert shelf.archived_flows() == Counter(dict.fromkeys(FLOWS, 3))
    # The line "replayed" is behind the range.
    assert shelf.stored() == {"flow-1": 4}
    assert (shelf.archived_letters(), shelf.letters()) == ([], [])


def test_a_letter_that_is_edited_or_replayed_meanwhile_is_struck(shelf: Shelf) -> None:
    shelf.bury("flow-0", "flow-1", "flow-2")
    shelf.age()

    def listen(step: ArchiveStep) -> None:
        if step is ArchiveStep.SEALED:
            with committed(shelf.session):
                shelf.session.dead_letters.remove(shelf.session.dead_letters.ids_of(["flow-0"])[0])
            # It is not replayed yet, and stays for that.
            assert freeze(shelf.session, [Selection("flow", "flow-1")], clock=SystemClock(), who="ada") is not None

    (manifest,) = shelf.archiver(listener=listen).run()
    assert (manifest.rows, len(manifest.struck)) == (3, 2)
    assert (shelf.archived_letters(), shelf.letters()) == (["flow-2-m"], ["flow-1-m"])


def test_of_two_archivers_at_once_one_archives(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.write(*FLOWS)
    shelf.age()

    def second() -> None:
        with pytest.raises(ArchiveConflict, match="another archiver is at work"):
            shelf.run()
        # On a network's disk the lock may not hold.
        monkeypatch.setattr(ArchiveFolder, "locked", lambda self: nullcontext())
        with opened(shelf.url, shelf.folder) as other:
            assert len(other.run()) == 1

    with pytest.raises(ArchiveConflict, match="has archived the lines from 0 on"):
        list(shelf.archiver(during=second).run())
    assert shelf.archived_flows() == Counter(dict.fromkeys(FLOWS, 3))
    assert len([each for each in shelf.folder.iterdir() if each.is_dir()]) == 1
    assert shelf.stored() == {}


def test_no_line_is_archived_that_a_reader_has_not_read(shelf: Shelf) -> None:
    shelf.write("flow-0")
    with committed(shelf.session):
        shelf.session.cursors.add("warehouse", shelf.session.journal.position(), 0)
        shelf.session.retention.cut(2**62)
    shelf.write("flow-1")
    shelf.age()
    shelf.run()
    assert shelf.archived_flows() == {"flow-0": 3}
    assert shelf.stored() == {"flow-1": 3}
    with committed(shelf.session):
        shelf.session.cursors.advance("warehouse", shelf.session.journal.position(), 1)
    shelf.run()
    assert shelf.stored() == {}


def test_the_purge_leaves_the_store_to_its_archive_until_that_is_ended(shelf: Shelf) -> None:
    shelf.run()
    shelf.write(*FLOWS)
    shelf.bury("flow-1")
    shelf.age()
    list(purge_all(shelf.access, rules=RULES))
    assert (shelf.stored(), shelf.letters()) == (Counter(dict.fromkeys(FLOWS, 3)), ["flow-1-m"])
    with committed(shelf.session):
        shelf.session.archives.set_archive(None)
    list(purge_all(shelf.access, rules=RULES))
    list(purge_all(shelf.access, rules=RULES))
    assert (shelf.stored(), shelf.letters()) == ({}, [])


def test_a_purge_between_two_archives_is_a_gap_that_is_said(shelf: Shelf) -> None:
    for is_purged in (False, True, False):
        if is_purged:
            shelf.write("purged")
            shelf.age()
            with committed(shelf.session):
                shelf.session.archives.set_archive(None)
            list(purge_all(shelf.access, rules=RULES))
        shelf.write("flow")
        shelf.age()
        shelf.run()
    assert [each.has_gap for each in shelf.session.archives.manifests()] == [False, True, False]
    assert shelf.archived_flows() == {"flow": 9}


@pytest.fixture
def sqlite(new_shelf: Callable[[str], Shelf]) -> Shelf:
    return new_shelf("sqlite")


def test_a_folder_that_a_crash_left_counts_for_nothing_and_goes_when_it_is_old(sqlite: Shelf) -> None:
    sqlite.write(*FLOWS)
    sqlite.age()
    assert sqlite.archive
    left = [sqlite.folder / f"journal-{name}" for name in ("old", "young", "sealed")]
    for each in left:
        each.mkdir()
        (each / "part.parquet").write_bytes(b"half")
    (left[2] / "manifest.json").write_bytes(b"{}")
    for each in (left[0], left[2]):
        os.utime(each, (0, sqlite.clock.now() / 1e6 - LEFT_BEHIND_SECONDS - 1))
    os.utime(left[1], (0, sqlite.clock.now() / 1e6))
    sqlite.run()
    assert [each.exists() for each in left] == [False, True, True]
    assert sqlite.archived_flows() == Counter(dict.fromkeys(FLOWS, 3))


def test_nothing_is_deleted_if_the_files_do_not_have_what_was_read(
    sqlite: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite.write(*FLOWS)
    sqlite.age()
    archiver = sqlite.archiver()
    monkeypatch.setattr(archiver._writer, "read_back", lambda folder: Content(11, "other"))
    with pytest.raises(ArchiveFailed, match="11 of 12 rows"):
        list(archiver.run())
    assert sqlite.stored() == Counter(dict.fromkeys(FLOWS, 3))
    assert sqlite.session.archives.manifests() == []
    assert [each for each in sqlite.folder.iterdir() if each.is_dir()] == []


def test_a_part_that_was_changed_is_refused(sqlite: Shelf) -> None:
    sqlite.write(*FLOWS)
    sqlite.age()
    (manifest,) = sqlite.run()
    (file,) = sqlite.archive.files(manifest)
    content = file.read_bytes()
    file.write_bytes(content[:-9] + b"x" + content[-8:])
    assert sqlite.archive.files(manifest) == [file]
    with pytest.raises(ArchiveUnusable, match=r"lines\.parquet was changed"):
        sqlite.archive.files(manifest, is_thorough=True)
    file.write_bytes(content + b"x")
    with pytest.raises(ArchiveUnusable, match=r"lines\.parquet was changed"):
        sqlite.archive.files(manifest)
    file.unlink()
    with pytest.raises(ArchiveUnusable, match="cannot be read"):
        sqlite.archive.files(manifest)
    with pytest.raises(ArchiveUnusable, match="does not fit the store's manifest"):
        sqlite.archive.files(manifest._replace(next=99))
    (file.parent / "manifest.json").write_bytes(b"{}")
    with pytest.raises(ArchiveUnusable, match="is not the one that was written"):
        sqlite.archive.files(manifest)


def test_the_archive_of_another_store_and_a_folder_with_files_are_refused(sqlite: Shelf, tmp_path: Path) -> None:
    sqlite.run()
    with pytest.raises(DeclarationError, match="is of another store"):
        ArchiveFolder.find(sqlite.folder, "another")
    with pytest.raises(DeclarationError, match="is no archive of Stagepost"):
        ArchiveFolder.make(tmp_path, "another", lambda: "id")
    other = Shelf(sqlite.url, sqlite.store, sqlite.access, tmp_path / "other")
    with pytest.raises(DeclarationError, match="the store is archived to"):
        other.run()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DeclarationError, match="cannot be made"):
        ArchiveFolder.make(tmp_path / "file" / "below", "store", lambda: "id")


def test_two_that_make_an_archive_at_once_name_the_same_one(tmp_path: Path) -> None:
    """The second one begins while the first one makes its id."""
    folder = tmp_path / "archive"

    def mint() -> str:
        with pytest.raises(ArchiveConflict, match="another archiver is at work"):
            ArchiveFolder.make(folder, "store", lambda: "second")
        return "first"

    assert ArchiveFolder.make(folder, "store", mint).identity.archive == "first"
    assert ArchiveFolder.make(folder, "store", lambda: "second").identity.archive == "first"


def test_a_disk_without_locks_is_no_other_archiver(sqlite: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    sqlite.write(*FLOWS)
    sqlite.age()

    def no_lock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_lock)
    assert len(sqlite.run()) == 1


@pytest.mark.parametrize("kind", ["journal", "dead_letters"])
def test_an_archive_that_is_ended_meanwhile_takes_nothing_over(sqlite: Shelf, kind: str) -> None:
    if kind == "journal":
        sqlite.write(*FLOWS)
    else:
        sqlite.bury("flow-0")
    sqlite.age()

    def listen(step: ArchiveStep) -> None:
        if step is ArchiveStep.SEALED:
            with committed(sqlite.session):
                sqlite.session.archives.set_archive(None)

    with pytest.raises(ArchiveConflict, match="was ended meanwhile"):
        list(sqlite.archiver(listener=listen).run())
    assert (sqlite.session.archives.manifests(), sqlite.archived_letters()) == ([], [])
    assert [each for each in sqlite.folder.iterdir() if each.is_dir()] == []


@pytest.mark.parametrize("kind", ["journal", "dead_letters"])
def test_a_full_disk_leaves_no_folder_and_says_so(sqlite: Shelf, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    if kind == "journal":
        sqlite.write(*FLOWS)
    else:
        sqlite.bury("flow-0")
    sqlite.age()

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    assert sqlite.archive
    monkeypatch.setattr("stagepost.pipeline.archive_folder.sync", full)
    with pytest.raises(ArchiveFailed, match="No space left on device"):
        sqlite.run()
    assert (sqlite.stored().total(), len(sqlite.letters())) == ((12, 0) if kind == "journal" else (0, 1))
    assert [each for each in sqlite.folder.iterdir() if each.is_dir()] == []
