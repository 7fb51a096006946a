"""Java dies in mid-job, as when memory is short. Each command says so in a paragraph, with the code of a failure."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException

from stagepost.pipeline.failures import JAVA_ENDED, UNREACHABLE, describe_error
from tests.pipeline.commands import JAVA, Cli, Commands
from tests.pipeline.test_interrupts import Job, new_job
from tests.pipeline.test_process import Run, run
from tests.processes import kill
from tests.waiting import wait_until

__all__ = ["new_job", "run"]


@pytest.mark.parametrize(
    "error",
    [ConnectionRefusedError(111, "Connection refused"), Py4JNetworkError("Answer from Java side is empty"),
     Py4JError("An error occurred while calling o77.statusTracker")],
)  # fmt: skip
def test_a_call_without_an_answer_is_described_by_its_cause(error: Exception) -> None:
    assert describe_error(error) == JAVA_ENDED


@pytest.mark.parametrize(
    ("place", "advised"), [("postgresql:///shop: It is a standby.", True), ("/data/shop.db: its disk is full.", False)]
)
def test_only_a_database_that_executors_connect_to_gets_the_advice_on_connections(place: str, advised: bool) -> None:
    text = f"StoreUnavailable: {place}"
    assert describe_error(PySparkException(text)) == (f"{text} {UNREACHABLE}" if advised else text)


@pytest.mark.more
@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "moment"),
    [("audit", "has_java"), ("audit", "has_tasks"), ("initiate", "has_written"), ("stream", "has_written")],
)
def test_a_command_whose_java_dies_says_so_and_goes_on_when_it_is_run_again(
    new_job: Callable[[str], Job], commands: Commands, cli: Cli, run: Run, name: str, moment: str
) -> None:
    """The code 1 of an audit would say that a message is lost."""
    job = new_job(name)
    command = job.start()
    wait_until(lambda: getattr(job, moment)() or not command.is_running(), "it is time to kill Java")
    for java in commands.pids(JAVA):
        kill(java)
    answer = command.answer()
    assert (answer.code, answer.out, answer.is_one_paragraph) == (2, "", True), answer.err
    wait_until(lambda: not commands.pids(), "no process is left")
    job.go_on(cli, run)
