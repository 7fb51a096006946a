"""``stagepost process`` while processes die: every effect exactly once, by a ledger without a key."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from stagepost.pipeline.jobs.process import ProcessingReport
from stagepost.runtime.service import StopFlag
from stagepost.transaction.steps import STEPS, Step
from tests.pipeline.books import Books, orders
from tests.pipeline.commands import JAVA, Command, Commands
from tests.pipeline.shop import STAGES, module_of
from tests.pipeline.test_process import run
from tests.processes import kill
from tests.waiting import wait_until

Run = Callable[..., ProcessingReport]

__all__ = ["run"]


@pytest.mark.parametrize("step", STEPS["single"])
def test_a_python_process_killed_at_any_step_leaves_every_effect_exactly_once(
    step: Step, run: Run, books: Books, tmp_path: Path
) -> None:
    flows = orders(30)
    books.start(flows)
    marker = tmp_path / "killed"
    done = run(kill=f"{step},*,20,{marker}")
    assert marker.exists()
    assert books.problems(flows) == []
    assert books.waypoints("failed") == 0
    # Killed once it had committed: nobody died of it.
    assert books.waypoints("died") == (0 if step in (Step.COMMITTED, Step.AFTER_COMMIT) else 1)
    assert done.failed == 0


def test_python_processes_killed_again_and_again_lose_and_double_nothing(
    run: Run, books: Books, tmp_path: Path
) -> None:
    """More often than Spark tries one task."""
    killed_again_and_again(run, books, tmp_path, kills=6, seed=1)


def killed_again_and_again(run: Run, books: Books, folder: Path, *, kills: int, seed: int) -> None:
    """For longer campaigns: so many kills, at moments that the seed decides, among what those processes claimed."""
    random = Random(seed)
    flows = orders(100 * kills)
    books.start(flows)
    moments = sorted(random.randrange(len(STAGES) * len(flows) * 9 // 10) for _ in range(kills))
    stop = StopFlag()

    def is_time(moment: int) -> bool:
        return stop.is_stopped or books.committed() >= moment

    def murder() -> None:
        for moment in moments:
            wait_until(partial(is_time, moment), "so much is done")
            victims = [process for process in working(books) if not stop.is_stopped]
            if victims:
                kill(random.choice(victims))

    murderer = threading.Thread(target=murder)
    murderer.start()
    try:
        run(module_of(folder))
    finally:
        stop.stop()
        murderer.join()
    assert books.problems(flows) == []
    assert books.waypoints("failed") == 0


def working(books: Books) -> list[int]:
    """Python processes of Spark's that have committed on that store lately."""
    nodes = books.rows(
        "SELECT DISTINCT node FROM (SELECT node FROM stagepost_journal ORDER BY id DESC LIMIT 50) AS latest"
    )
    return [int(node.rpartition(":")[2]) for (node,) in nodes if node.startswith("spark@")]


def test_poison_that_kills_its_process_is_set_aside_and_takes_no_neighbour_along(run: Run, books: Books) -> None:
    flows = [*orders(2, "sigkill", entries=1, name="deadly"), *orders(60)]
    books.start(flows)
    done = run()
    assert books.problems(flows) == []
    assert {reason for _, reason in books.letters()} == {"worker-died"}
    assert done.failed == 0
    # The healthy ones committed all their stages among the executors, but for those that ran beside a death.
    assert books.number("SELECT count(*) FROM stagepost_journal WHERE waypoint = 'died' AND flow_id LIKE 'o%'") <= 2
    assert {node for (node,) in books.rows("SELECT DISTINCT substr(node, 1, 6) FROM stagepost_dead_letter")} == {
        "driver"
    }


@pytest.mark.more
def test_more_deaths_than_spark_allows_a_task_end_a_round_and_not_the_job(
    run: Run, books: Books, tmp_path: Path
) -> None:
    flows = [each for number in range(20) for each in orders(1, f"kill-once={tmp_path}/{number}", name=f"d{number}-")]
    books.start(flows)
    done = run()
    assert books.problems(flows) == []
    assert done.failed >= 1


@pytest.mark.more
def test_a_handler_that_does_not_yield_to_its_time_limit_has_failed_and_its_process_is_replaced(
    run: Run, books: Books
) -> None:
    flows = [*orders(1, "stuck", entries=1, name="stuck"), *orders(30)]
    books.start(flows)
    done = run(time_limit=2, yield_seconds=0.3)
    assert books.problems(flows) == []
    assert books.letters() == [("stuck0", "exhausted")]
    assert books.waypoints("died") == 0
    assert books.number("SELECT count(*) FROM stagepost_journal WHERE waypoint = 'failed' AND flow_id <> 'stuck0'") == 0
    assert done.failed == 0


# The driver and its Java


def processing(commands: Commands, books: Books, app: str, committed: int) -> Command:
    """The command, when it has committed that much."""
    started = commands.start("process", app, "--json", "--log-level", "CRITICAL")
    wait_until(lambda: books.committed() >= committed or not started.is_running(), "it has begun to work")
    assert started.is_running()
    return started


def spark_processes(commands: Commands) -> list[int]:
    return [*commands.pids("pyspark"), *commands.pids(JAVA)]


@pytest.mark.more
@pytest.mark.heavy
@pytest.mark.parametrize("victim", ["java", pytest.param("driver", marks=pytest.mark.soak)])
def test_a_job_whose_driver_or_java_is_killed_goes_on_when_it_is_run_again(
    victim: str, commands: Commands, run: Run, books: Books, tmp_path: Path
) -> None:
    flows = orders(800)
    books.start(flows)
    app = module_of(tmp_path)
    first = processing(commands, books, app, 200)
    if victim == "driver":
        first.kill()
    else:
        (java,) = commands.pids(JAVA)
        kill(java)
        answer = first.answer()
        assert (answer.code, answer.out, answer.is_one_paragraph) == (2, "", True), answer.err
    wait_until(lambda: not spark_processes(commands), "no process of Spark's is left")
    done = books.committed()
    assert not books.is_drained()
    run(app)
    assert books.problems(flows) == []
    assert books.committed() == len(flows) * len(STAGES) > done
    assert books.waypoints("failed") == 0


def test_what_is_run_again_does_not_run_what_was_done(spark: SparkSession, run: Run, books: Books) -> None:
    flows = orders(20)
    books.start(flows)
    run()
    before: list[Any] = books.rows("SELECT * FROM stagepost_journal")
    assert run().committed == {}
    assert books.rows("SELECT * FROM stagepost_journal") == before
