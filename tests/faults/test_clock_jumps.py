"""The machine's clock is set while workers work. Who lives is judged by another clock, which does not jump."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.books import Flow, chores, transfers
from tests.faults.scenarios import settle
from tests.faults.sqlite_books import SqliteBooks
from tests.faults.worker_fleet import WorkerFleet
from tests.waiting import wait_until

HOUR = 3600.0


def set_clock(file: Path, seconds: float) -> None:
    """Whole at any moment: handlers read it all the time."""
    new = file.with_suffix(".new")
    new.write_text(str(seconds))
    new.rename(file)


@pytest.mark.more
@pytest.mark.parametrize("jump", [HOUR, -HOUR], ids=["forward", "back"])
def test_nobody_is_taken_for_dead_or_paused_when_the_clock_is_set(
    jump: float, books: SqliteBooks, fleet: WorkerFleet, tmp_path: Path
) -> None:
    clock, gate = tmp_path / "clock", tmp_path / "gate"
    set_clock(clock, 0)
    flows = [Flow("slow", "chore", f"gate={gate}"), *transfers(20)]
    books.start(flows)
    workers = [fleet.process(threads=1, paused_after_seconds=10, clock=str(clock)) for _ in range(2)]
    wait_until(Path(f"{gate}.entered").exists, "one is in its handler")
    beats = {each: each.stat().st_mtime_ns for each in books.locks.glob("*.lock")}
    for number in range(1, 4):
        set_clock(clock, jump * number)
        wait_until(lambda: moved(beats), "every heart has beaten since")
        wait_until(lambda: moved(beats), "and once more")
    Path(f"{gate}.open").touch()
    settle(books)
    assert books.problems(flows) == []
    assert books.blamed("died") == []
    assert books.blamed("failed") == []
    assert all(worker.is_running() and not worker.logged("taken-over") for worker in workers)


def moved(beats: dict[Path, int]) -> bool:
    """Whether every heart has beaten since the last time this was so."""
    now = {each: each.stat().st_mtime_ns for each in beats}
    if any(now[each] == before for each, before in beats.items()):
        return False
    beats.update(now)
    return True


def test_delayed_messages_come_after_the_clock_was_set_forward_and_back(
    books: SqliteBooks, fleet: WorkerFleet, tmp_path: Path
) -> None:
    clock = tmp_path / "clock"
    set_clock(clock, 0)
    soon, late = chores(5, name="soon"), chores(5, name="late")
    books.start(soon, delay=0.5)
    books.start(late, delay=HOUR / 2)
    fleet.process(clock=str(clock))
    wait_until(lambda: books.entries() == 5, "the first are due")
    # What fails while the clock is an hour behind is due, by it, an hour before it is by the right one.
    set_clock(clock, -HOUR)
    failing = chores(3, f"fail-once={tmp_path}/failed", name="failing")
    books.start(failing)
    wait_until(lambda: books.waypoints("failed") == 1, "one has failed")
    wait_until(lambda: books.entries() == 8, "it came again")
    set_clock(clock, HOUR)
    settle(books)
    assert books.problems([*soon, *late, *failing]) == []
