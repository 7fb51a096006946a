"""A stage that fails, in real processes: one is killed while it probes, and one was only told to drain."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.faults import stores
from tests.faults.books import Books, chores, transfers
from tests.faults.scenarios import settle
from tests.faults.worker_fleet import WorkerFleet
from tests.waiting import wait_until


@pytest.mark.more
@stores.on_both
def test_a_process_that_is_killed_while_it_probes_is_not_the_last_one_to_probe(
    books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    outage, hold = tmp_path / "outage", tmp_path / "hold"
    outage.touch()
    flows = chores(15, f"wait-while={hold} fail-while={outage}")
    books.start(flows)
    first = fleet.process(threads=1)
    wait_until(lambda: first.logged("stage-paused"), "the stage is paused")
    wait_until(lambda: probes_in_vain(books), "what was claimed has come back, and a probe too")
    hold.touch()
    wait_until(Path(f"{hold}.entered").exists, "a probe is in its handler")
    first.signal(signal.SIGKILL)
    for each in (hold, outage):
        each.unlink()
    second = fleet.command("--threads", "1")
    settle(books)
    assert second.logged("stage-resumed")
    assert books.problems(flows) == []
    assert len(books.blamed("died")) == 1
    assert books.rows("SELECT 1 FROM stagepost_circuit WHERE paused_at IS NOT NULL") == []


def probes_in_vain(books: Books) -> bool:
    return bool(books.rows("SELECT 1 FROM stagepost_circuit WHERE paused_at IS NOT NULL AND probes > 0"))


@pytest.mark.more
@stores.on_both_and_longer
def test_a_worker_that_is_to_drain_ends_where_only_a_paused_stage_is_left_and_says_so(
    books: Books, fleet: WorkerFleet, tmp_path: Path
) -> None:
    outage = tmp_path / "outage"
    outage.touch()
    failing = chores(15, f"fail-while={outage}")
    healthy = transfers(10)
    books.start([*failing, *healthy])
    worker = fleet.command("--drain", "--processes", "2", "--threads", "2")
    assert worker.wait() == 1
    (told,) = worker.logged("stage-still-paused")
    assert "15 messages wait at bank.chore, which is paused" in told["text"]
    assert "RuntimeError: told to fail" in told["text"]
    assert any("stopped before it drained" in line["text"] for line in worker.lines())
    assert books.waiting() == len(failing)
    assert books.letters() == []
    outage.unlink()
    assert fleet.command("--drain").wait() == 0
    assert books.problems([*failing, *healthy]) == []
