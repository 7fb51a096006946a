"""Calls to real servers that are killed between receiving and answering, by workers that are killed, stopped or slow.

With a ``query`` each call takes effect once. Without it the servers see at most as many repeats as are counted.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from stagepost.flow.clock import SystemClock
from stagepost.ports.effects import EffectFigures
from stagepost.ports.registry import driver_of
from stagepost.runtime.assembly import log_of
from tests.cli.shop import command, parsed
from tests.faults import stores
from tests.faults.pausing import pause
from tests.places import bare_environment
from tests.processes import ROOT, Process, ProcessGroup
from tests.waiting import wait_until

SCRIPT = Path(sys.executable).with_name("stagepost")
START = """
import sys
from tests.faults.calls import Payment, app
for each in sys.argv[2:]:
    name, _, what = each.partition(":")
    payment = Payment(name, sleeps=float(what or 0) if what != "refused" else 0, is_refused=what == "refused")
    app.start(app.target(sys.argv[1]), payment, flow_id=f"{sys.argv[1]}:{name}")
"""


START_ENDINGS = """
import sys
from tests.faults.calls import Ending, app, done, settle
for how in sys.argv[1:]:
    app.start(settle, Ending(how, how), flow_id=how, reply_to=done)
"""
# Where the one worker is killed while each message ends, and while its effect is undone.
KILLS = (
    "kept/settle/called",
    "branch/settle/known",
    "branch/calls.undo.charge/intended",
    "failed/settle/committing",
    "refused/settle/committed",
    "refused/calls.undo.charge/called",
    "exhausted/settle/intended",
    "exhausted/calls.undo.charge/committing",
    "unknown/settle/called",
    "doubted/settle/called",
)


class Calls:
    """The servers, the workers and the books of one test."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self._folder = folder
        self._processes = ProcessGroup()
        self._servers: dict[str, Process] = {}
        self._started: list[Process] = []
        for name in ("http", "smtp"):
            self.serve(name)
        if url.startswith("sqlite"):
            with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
                file.execute("CREATE TABLE paid (payment TEXT, capture TEXT)")
        else:
            with psycopg.connect(url) as server:
                server.execute("CREATE TABLE paid (payment text, capture text)")

    def serve(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)
        self._servers[name] = self._run([sys.executable, "-m", "tests.faults.called", name, str(self._folder)])
        wait_until((self._folder / name).exists, f"the {name} server listens")

    def write(self, name: str, text: object) -> None:
        (self._folder / name).write_text(str(text))

    def exists(self, name: str) -> bool:
        return (self._folder / name).exists()

    def start(self, stage: str, *payments: str) -> None:
        assert self._run([sys.executable, "-c", START, stage, *payments]).wait() == 0

    def start_endings(self, *endings: str) -> None:
        assert self._run([sys.executable, "-c", START_ENDINGS, *endings]).wait() == 0

    def left(self) -> Counter[str]:
        """Count the captures that were not voided, by their payments."""
        voided = set(self.lines("voids"))
        return Counter(each.split()[1] for each in self.lines("captures") if each.split()[0] not in voided)

    def worker(self, kill: str = "", *options: str) -> Process:
        command = [str(SCRIPT), "worker", "tests.faults.calls:app", "--drain", "--threads", "2", "--json", *options]
        return self._run(command, CALLS_KILL=kill, CALLS_ATTEMPTS="20" if "/" not in kill else "3")

    def finish(self, *workers: Process) -> None:
        """Wait until the workers have drained the queue, and start each server again that dies meanwhile."""
        wait_until(lambda: self._keep_serving() and not any(each.is_running() for each in workers), "all is drained")
        assert [each.wait() for each in workers if each.wait() != 0] == [], workers[0].log.read_text()[-3000:]

    def lines(self, book: str) -> list[str]:
        file = self._folder / book
        return file.read_text().splitlines() if file.exists() else []

    def captured(self) -> Counter[str]:
        return Counter(each.split()[1] for each in self.lines("captures"))

    def paid(self) -> dict[str, str]:
        statement = "SELECT payment, capture FROM paid"
        if self.url.startswith("sqlite"):
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as file:
                rows = file.execute(statement).fetchall()
        else:
            with psycopg.connect(self.url) as server:
                rows = server.execute(statement).fetchall()
        assert len(rows) == len(dict(rows)), rows
        return dict(rows)

    def figures(self) -> EffectFigures:
        log = log_of(driver_of(self.url).open_existing(self.url, "the test"), SystemClock())
        assert log is not None
        with log.reading() as effects:
            return effects.figures()

    def letters(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = parsed(command("dead", "list", "--each", "--json", "--database", self.url))
        return found

    def pids(self, part: str) -> list[int]:
        return self._processes.pids(part)

    def close(self) -> None:
        for each in self._started:
            each.kill()
        self._processes.kill_all()
        for log in sorted(self._folder.glob("*.log")):
            print(f"--- {log.name}\n{log.read_text(errors='replace')[-6000:]}")  # noqa: T201

    def _keep_serving(self) -> bool:
        for name, server in self._servers.items():
            if not server.is_running():
                self.serve(name)
        return True

    def _run(self, command: list[str], **settings: str) -> Process:
        environment = bare_environment() | self._processes.environment
        environment |= {"CALLS_PLACES": str(self._folder), "STAGEPOST_DATABASE": self.url} | settings
        log = self._folder / f"{len(self._started)}.log"
        with log.open("ab") as file:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )
        self._started.append(Process(process, log))
        return self._started[-1]


@pytest.fixture
def calls(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Calls]:
    folder = tmp_path / "places"
    folder.mkdir()
    make: Callable[[], str] = request.getfixturevalue(f"new_{store}")
    made = Calls(make(), folder)
    yield made
    made.close()


PAYMENTS = [f"p{n}" for n in range(4)]


@stores.on_both
def test_a_card_processor_killed_between_receiving_and_answering_captures_once(calls: Calls) -> None:
    calls.start("pay", *PAYMENTS)
    calls.write("dies", 2)
    calls.finish(calls.worker())
    assert calls.captured() == Counter(PAYMENTS)
    assert set(calls.paid()) == set(PAYMENTS)
    # A capture whose answer was lost is asked for, and no other. A thread's call may be lost with the server too.
    assert 2 <= len(set(calls.lines("queries"))) <= 4
    assert calls.figures() == EffectFigures(0, None, 0, 0)


@stores.on_both
def test_a_mail_server_killed_between_receiving_and_answering_gets_the_counted_repeats(calls: Calls) -> None:
    calls.start("mail", *PAYMENTS)
    calls.write("dies", 2)
    calls.finish(calls.worker())
    mails = Counter(calls.lines("mails"))
    repeats = calls.figures().repeated
    assert set(mails) == set(PAYMENTS)
    assert 2 <= mails.total() - len(PAYMENTS) <= repeats
    assert set(calls.paid()) == set(PAYMENTS)


@pytest.mark.more
@stores.on_both
@pytest.mark.parametrize("step", ["intended", "called", "known"])
def test_a_worker_killed_at_a_step_of_a_call_captures_once(calls: Calls, step: str) -> None:
    calls.start("pay", "p0")
    calls.finish(calls.worker(step))
    assert calls.exists("killed-0")
    assert calls.captured() == Counter(["p0"])
    assert calls.paid() == {"p0": "c1"}


@pytest.mark.more
@stores.on_both
@pytest.mark.parametrize("step", ["intended", "called", "known"])
def test_the_child_of_a_suspect_killed_at_a_step_of_a_call_captures_once(calls: Calls, step: str) -> None:
    """The first kill makes the message a suspect, and the second one meets the child that runs it alone."""
    calls.start("pay", "p0")
    calls.finish(calls.worker(f"{step}:2"))
    # A result that is known is not called for again, so the child does not pass the steps of a call.
    assert calls.exists("killed-1") == (step == "intended")
    assert calls.captured() == Counter(["p0"])
    assert calls.paid() == {"p0": "c1"}


@pytest.mark.more
@stores.on_both
@pytest.mark.parametrize("step", ["intended", "called", "known"])
def test_a_worker_killed_at_a_step_of_a_mail_sends_at_most_the_counted_repeats(calls: Calls, step: str) -> None:
    calls.start("mail", "p0")
    calls.finish(calls.worker(step))
    assert len(calls.lines("mails")) == (2 if step == "called" else 1)
    assert calls.figures().repeated == (step != "known")
    assert calls.paid() == {"p0": "mail"}


@pytest.mark.more
@stores.on_both
def test_a_call_that_is_under_way_outside_when_its_owner_dies_is_waited_for(calls: Calls) -> None:
    """The processor has the request and takes its time. Its owner dies, and the next one asks after the silence."""
    calls.start("pay", "p0")
    calls.write("delay", 1.5)
    worker = calls.worker()
    wait_until(lambda: calls.exists("delaying"), "the processor has the request")
    for pid in calls.pids("stagepost.worker.process"):
        os.kill(pid, signal.SIGKILL)
    calls.finish(worker)
    assert calls.captured() == Counter(["p0"])
    assert len(calls.lines("queries")) == 1
    assert calls.paid() == {"p0": "c1"}


@pytest.mark.more
@stores.on_both
def test_a_call_that_overruns_its_timeout_fails_the_attempt_and_is_asked_about(calls: Calls) -> None:
    calls.start("pay", "p0:30", "p1")
    calls.finish(calls.worker())
    assert calls.captured() == Counter(["p0", "p1"])
    assert set(calls.paid()) == {"p0", "p1"}


@pytest.mark.more
@stores.on_both
def test_an_owner_stopped_in_its_call_is_replaced_and_calls_no_more(calls: Calls) -> None:
    """Its worker's supervisor is stopped too, so that another worker takes over from it."""
    calls.start("pay", "p0")
    first = calls.worker("intended:hold")
    wait_until(lambda: calls.exists("killed-0"), "the owner is held before its call")
    (owner,) = calls.pids("stagepost.worker.process")
    for pid in (first.pid, owner):
        pause(pid, calls.url)
    second = calls.worker()
    wait_until(lambda: calls.paid() == {"p0": "c1"}, "the second worker has captured")
    calls.write("go", "")
    for pid in (owner, first.pid):
        os.kill(pid, signal.SIGCONT)
    calls.finish(first, second)
    assert calls.captured() == Counter(["p0"])
    assert calls.paid() == {"p0": "c1"}


@pytest.mark.more
@stores.on_both
def test_a_refused_message_is_undone_by_whichever_worker_is_left(calls: Calls) -> None:
    calls.start("pay", "p0:refused", "p1")
    calls.write("dies", 1)
    calls.finish(calls.worker())
    captured = {each.split()[1]: each.split()[0] for each in calls.lines("captures")}
    assert calls.captured() == Counter(["p0", "p1"])
    assert set(calls.lines("voids")) == {captured["p0"]}
    assert set(calls.paid()) == {"p1"}


@pytest.mark.more
@pytest.mark.parametrize("store", ["sqlite", pytest.param("postgres", marks=pytest.mark.soak)])
def test_workers_killed_at_each_end_of_a_message_undo_its_effect_and_a_replay_charges_what_was_undone(
    calls: Calls,
) -> None:
    ends = ("kept", "branch", "failed", "refused", "exhausted", "unknown", "doubted", "stuck")
    calls.start_endings(*ends)
    calls.finish(calls.worker(" ".join(KILLS), "--threads", "1"))
    assert [each for each in KILLS if not calls.exists(each.replace("/", "-"))] == []
    # The result of ``doubted`` is unknown, and nobody can be asked. The undo of ``stuck`` is dead.
    assert calls.left() == Counter(["kept", "doubted", "stuck"])
    assert calls.captured() == Counter(ends)
    assert calls.figures().doubted == 1
    assert set(calls.paid()) == {"kept", "branch", "unknown", "doubted"}
    letters = {(each["stage"], each["flow_id"]): str(each["id"]) for each in calls.letters()}
    assert set(letters) == {
        ("settle", "refused"), ("settle", "exhausted"), ("settle", "stuck"), ("calls.undo.charge", "stuck")
    }  # fmt: skip
    undo = letters["calls.undo.charge", "stuck"]
    refused = command("dead", "replay", letters["settle", "stuck"], "--database", calls.url)
    assert (refused.exit_code, f"dead letter {undo}" in refused.stderr) == (2, True)
    calls.write("mended", "")
    assert command("dead", "replay", undo, "--database", calls.url).exit_code == 0
    calls.finish(calls.worker())
    assert calls.left() == Counter(["kept", "doubted"])
    assert command("dead", "replay", "--all", "--database", calls.url).exit_code == 0
    calls.finish(calls.worker())
    charged_again = Counter(["refused", "exhausted", "stuck"])
    assert calls.left() == Counter(["kept", "doubted"]) + charged_again
    assert calls.captured() == Counter(ends) + charged_again
    assert calls.letters() == []
