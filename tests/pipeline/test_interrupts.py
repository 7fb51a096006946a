"""Ctrl-C and SIGTERM in the commands that run on Spark: nothing is left behind, and a second run goes on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random

import pytest

from tests.campaigns import Tell
from tests.pipeline.books import Books, orders
from tests.pipeline.commands import JAVA, PYTHON_OF_SPARK, Cli, Command, Commands
from tests.pipeline.shop import STAGES, module_of
from tests.pipeline.test_process import Run, run
from tests.waiting import wait_until

__all__ = ["run"]

ROWS = 60_000
FLOWS = 4_000
INTERRUPTS = 50
SPREAD_SECONDS = 30.0
BEFORE_JAVA = "interrupted\n"
LINE = "interrupted, stopping; a second signal ends the command at once\n"


class Job:
    """A command that takes long enough, and what a second run of it must come to."""

    def __init__(self, name: str, commands: Commands, books: Books, folder: Path) -> None:
        self.name = name
        self.books = books
        self.app = module_of(folder)
        self._commands = commands
        self.inbox = folder / "inbox"
        self.file = self.inbox / "orders.csv"
        self._into = ("--to", "shop.order", "--id", "order_id", "--flow-prefix", "o", "--app", self.app)
        self._follow = (self.inbox, "--stream", "--checkpoint", folder / "checkpoint", "--format", "csv")
        if name in ("initiate", "stream"):
            self.inbox.mkdir()
            self.file.write_text("order_id,quantity\n" + "".join(f"{number},1\n" for number in range(ROWS)))
        else:
            self.flows = orders(FLOWS)
            books.start(self.flows)

    def start(self) -> Command:
        words: dict[str, tuple[object, ...]] = {
            "initiate": (self.file, *self._into),
            "stream": (*self._follow, *self._into),
            "process": (self.app,),
            "continuous": (self.app, "--continuous"),
            "audit": (),
        }
        command = {"continuous": "process", "stream": "initiate"}.get(self.name, self.name)
        return self._commands.start(command, *words[self.name], "--json")

    def has_java(self) -> bool:
        return bool(self._commands.pids(JAVA))

    def groups_of_java(self) -> set[int]:
        found = set()
        for pid in self._commands.pids(JAVA):
            # Spark's launcher is a Java process that ends soon.
            with suppress(ProcessLookupError):
                found.add(os.getpgid(pid))
        return found

    def has_tasks(self) -> bool:
        return bool(self._commands.pids(PYTHON_OF_SPARK))

    def has_written(self) -> bool:
        table, rows = ("stagepost_accepted", 5_000) if self.name in ("initiate", "stream") else ("ledger", 10)
        return self.books.number(f"SELECT count(*) FROM {table}") > rows

    def check(self, command: Command, number: signal.Signals = signal.SIGINT) -> None:
        """One line, the signal's exit code, and nothing of it is left. A job that ended by itself has done its work."""
        answer = command.answer()
        # Java has ended before the command, which a caller that reads its output waits for.
        assert self._commands.pids(JAVA) == []
        wait_until(lambda: not self._commands.pids(), "no process is left")
        if answer.code == 0:
            assert answer.err == ""
        else:
            assert (answer.code, answer.out) == (128 + number, "")
            assert answer.err in (LINE, BEFORE_JAVA)
        assert (self.books.owners(), self.books.proofs_of_life()) == ([], [])
        assert self.books.waypoints("died") == self.books.waypoints("failed") == 0

    def go_on(self, cli: Cli, run: Run) -> None:
        if self.name in ("initiate", "stream"):
            source = (self.file,) if self.name == "initiate" else (*self._follow, "--once")
            answer = cli.initiate(*source, "--flow-prefix", "o", to="shop.order", by="order_id")
            assert (answer.code, answer.json["rows_in"], answer.json["balanced"]) == (0, ROWS, True)
            assert self.books.waiting() == ROWS
        elif self.name in ("process", "continuous"):
            run(self.app)
            assert self.books.problems(self.flows) == []
            assert self.books.committed() == FLOWS * len(STAGES)
        else:
            assert cli.audit().json["flows"]["flows"] == FLOWS


@pytest.fixture
def new_job(commands: Commands, books: Books, tmp_path: Path) -> Callable[[str], Job]:
    return lambda name: Job(name, commands, books, tmp_path)


def interrupted(job: Job, condition: Callable[[], bool], *signals: signal.Signals) -> Command:
    command = job.start()
    wait_until(lambda: condition() or not command.is_running(), "it is time to interrupt it")
    for number in signals:
        command.signal(number)
    return command


@pytest.mark.more
@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "moment"),
    [("stream", "has_written"), ("process", "has_written"), ("continuous", "has_java"), ("audit", "has_tasks")],
)
def test_a_command_that_is_interrupted_leaves_nothing_and_goes_on_when_it_is_run_again(
    new_job: Callable[[str], Job], cli: Cli, run: Run, name: str, moment: str
) -> None:
    job = new_job(name)
    job.check(interrupted(job, getattr(job, moment), signal.SIGINT))
    job.go_on(cli, run)


@pytest.mark.more
@pytest.mark.heavy
def test_sigterm_ends_a_command_as_ctrl_c_does(new_job: Callable[[str], Job], cli: Cli, run: Run) -> None:
    job = new_job("initiate")
    job.check(interrupted(job, job.has_written, signal.SIGTERM), signal.SIGTERM)
    job.go_on(cli, run)


@pytest.mark.more
@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "moment", "number"),
    [
        ("initiate", "has_written", signal.SIGINT),
        ("initiate", "has_java", signal.SIGTERM),
        ("audit", "has_tasks", signal.SIGTERM),
    ],
)
def test_signal_to_the_whole_process_group_prints_one_line(
    new_job: Callable[[str], Job], cli: Cli, run: Run, name: str, moment: str, number: signal.Signals
) -> None:
    """A terminal signals the group at Ctrl-C, and so does ``timeout``. The signal must not reach Java."""
    job = new_job(name)
    command = job.start()
    wait_until(lambda: getattr(job, moment)() or not command.is_running(), "it is time to interrupt it")
    assert command.pid not in job.groups_of_java()
    command.signal(number, is_for_group=True)
    job.check(command, number)
    job.go_on(cli, run)


@pytest.mark.more
@pytest.mark.heavy
def test_a_second_ctrl_c_while_java_starts_ends_it_at_once_and_java_soon_after(
    new_job: Callable[[str], Job], commands: Commands
) -> None:
    job = new_job("audit")
    answer = interrupted(job, job.has_java, signal.SIGINT, signal.SIGINT).answer()
    assert (answer.code, answer.out, answer.err) == (130, "", LINE)
    wait_until(lambda: not commands.pids(), "no process is left")


@pytest.mark.soak
@pytest.mark.heavy
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["initiate", "process", "audit"])
def test_interrupts_at_all_moments_of_the_first_half_minute(
    new_job: Callable[[str], Job], cli: Cli, run: Run, name: str, tell: Tell
) -> None:
    """Each of the commands goes on where the one before it was interrupted."""
    job = new_job(name)
    moments = [SPREAD_SECONDS * (number + Random(number).random()) / INTERRUPTS for number in range(INTERRUPTS)]
    for seconds in moments:
        command = job.start()
        wait_until(partial(has_begun, command), "Python has read the command")
        deadline = time.monotonic() + seconds
        wait_until(partial(is_over, command, deadline), "its moment has come")
        if command.is_running():
            command.signal(signal.SIGINT)
        job.check(command)
    job.go_on(cli, run)
    # Whatever is lost, doubled or stuck has failed the test before.
    tell(f"{INTERRUPTS} interrupts of {name}", [])


def has_begun(command: Command) -> bool:
    """It has loaded what the job needs. Before, Python's own answer to Ctrl-C is another one."""
    try:
        return "libarrow" in Path(f"/proc/{command.pid}/maps").read_text()
    except OSError:
        return True


def is_over(command: Command, deadline: float) -> bool:
    return time.monotonic() > deadline or not command.is_running()
