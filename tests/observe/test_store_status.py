"""One look at a store: what waits, what runs, who works."""

from __future__ import annotations

from pathlib import Path

import pytest

from stagepost.app.app import engine_of
from stagepost.flow.clock import SystemClock
from stagepost.observe.status import Status, read_status
from stagepost.ports.queue import Depth
from stagepost.store.sqlite.store import lives_of
from tests.cli.shop import Shop
from tests.liveness.scripted_worker import scripted_worker

EMPTY = {"ready": 0, "claimed": 0, "delayed": 0, "suspect": 0, "dead": 0}


@pytest.mark.parametrize(
    ("what", "is_drained"),
    [("ready", False), ("claimed", False), ("delayed", False), ("suspect", False), ("dead", True)],
)
def test_drained_means_that_nothing_is_left_to_do_and_the_dead_are_done(what: str, is_drained: bool) -> None:
    depth = Depth("shop.pay", **(EMPTY | {what: 1}), oldest_at=None)
    assert Status([depth], []).is_drained is is_drained
    assert Status([], []).is_drained


def test_a_worker_runs_what_is_on_its_record_and_still_its_own(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "shop.db")
    for number in range(3):
        shop.order(f"order:{number}")
    locks = lives_of(tmp_path / "shop.db")
    with scripted_worker(locks, app="shop", slots=2) as busy, scripted_worker(locks, app="other", slots=1) as idle:
        identity = busy.path.name.removeprefix("shop@").removesuffix(".lock")
        access = shop.harness.access
        first, second, _ = access.claimer.claim(["shop.pay"], 3, f"shop/{identity}", "node")
        busy.told("note", 0, first.row, first.deliveries)
        # Of an earlier delivery: it was settled, and is on record until the next one comes.
        busy.told("note", 1, second.row, second.deliveries - 1)
        found = read_status(engine_of(shop.app).store, access, SystemClock())
    workers = {each.process: each for each in found.workers}
    assert workers[busy.pid].running == 1
    assert workers[busy.pid].state == "alive"
    assert workers[busy.pid].node == "scripted@here"
    assert workers[idle.pid].running == 0
    assert [(each.ready, each.claimed) for each in found.depths] == [(0, 3)]
    shop.close()
