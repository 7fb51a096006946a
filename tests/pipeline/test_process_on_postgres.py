"""``stagepost process`` on PostgreSQL: the tests of the one on SQLite, and the connections that it needs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stagepost.pipeline.jobs.claim_loop import DRIVER_CONNECTIONS_MAX, LOOP_CONNECTIONS_MAX
from stagepost.pipeline.session import slots_now
from tests.pipeline.books import orders
from tests.pipeline.postgres_books import PostgresBooks
from tests.pipeline.test_process import (
    Run,
    run,
    test_a_continuous_job_waits_for_more_until_it_is_told_to_stop,
    test_a_handler_in_a_coroutine_commits_fails_and_dies_as_any_other,
    test_a_handler_that_raises_is_tried_again_and_then_set_aside,
    test_it_leaves_the_same_as_a_worker,
    test_slow_messages_of_one_stage_run_on_all_slots_at_once,
    test_told_to_stop_the_tasks_finish_what_runs_and_give_back_what_they_hold,
    test_workers_and_spark_work_on_one_store_at_the_same_time,
)
from tests.pipeline.test_process_deaths import (
    test_poison_that_kills_its_process_is_set_aside_and_takes_no_neighbour_along,
    test_python_processes_killed_again_and_again_lose_and_double_nothing,
)

__all__ = [
    "run",
    "test_a_continuous_job_waits_for_more_until_it_is_told_to_stop",
    "test_a_handler_in_a_coroutine_commits_fails_and_dies_as_any_other",
    "test_a_handler_that_raises_is_tried_again_and_then_set_aside",
    "test_it_leaves_the_same_as_a_worker",
    "test_poison_that_kills_its_process_is_set_aside_and_takes_no_neighbour_along",
    "test_python_processes_killed_again_and_again_lose_and_double_nothing",
    "test_slow_messages_of_one_stage_run_on_all_slots_at_once",
    "test_told_to_stop_the_tasks_finish_what_runs_and_give_back_what_they_hold",
    "test_workers_and_spark_work_on_one_store_at_the_same_time",
]

pytestmark = pytest.mark.more

CONNECTIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name <> 'books'"


@pytest.fixture
def books(new_postgres: Callable[[], str]) -> PostgresBooks:
    return PostgresBooks(new_postgres())


@pytest.fixture
def new_books(new_postgres: Callable[[], str]) -> Callable[[str], PostgresBooks]:
    return lambda name: PostgresBooks(new_postgres())


def test_the_connections_are_bounded_by_the_slots_as_the_docs_state(
    spark: SparkSession, run: Run, books: PostgresBooks, tmp_path: Path
) -> None:
    """Counted again and again, also while the driver's child runs a suspect."""
    flows = [*orders(1, f"kill-once={tmp_path}/died", name="dies"), *orders(200)]
    books.start(flows)
    counted, has_ended = [0], threading.Event()

    def count() -> None:
        while not has_ended.wait(0.02):
            counted.append(books.number(CONNECTIONS))

    counter = threading.Thread(target=count)
    counter.start()
    try:
        run()
    finally:
        has_ended.set()
        counter.join()
    assert books.problems(flows) == []
    slots = slots_now(spark)
    assert slots * 3 < max(counted) <= LOOP_CONNECTIONS_MAX * slots + DRIVER_CONNECTIONS_MAX
