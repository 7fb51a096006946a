"""``stagepost process``: Spark's executors run an app's stages to the end, as a worker would."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkConf
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from stagepost.flow.errors import DeclarationError, StoreContention
from stagepost.pipeline.jobs import process as job
from stagepost.pipeline.jobs import rounds as job_rounds
from stagepost.pipeline.jobs.claim_loop import ProcessingPlan
from stagepost.pipeline.jobs.process import (
    ProcessingFailed,
    ProcessingReport,
    ProcessingStopped,
    process,
)
from stagepost.ports.declarations import Declaration
from stagepost.runtime.databases import open_store
from stagepost.runtime.isolation import Isolation
from stagepost.runtime.service import StopFlag
from stagepost.runtime.settings import Place
from stagepost.store.postgres.session import PostgresSession
from stagepost.store.sqlite import connection, writer_lock
from stagepost.store.sqlite.session import SqliteSession
from stagepost.testing.contract.givens import a_row, committed
from tests.pipeline.books import Books, orders
from tests.pipeline.commands import Cli, Commands
from tests.pipeline.shop import STAGES, Ask, module_of
from tests.waiting import wait_until

Run = Callable[..., ProcessingReport]


@pytest.fixture
def run(spark: SparkSession, books: Books, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Process the store with a shop of these settings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def start(
        app: str = "",
        stop: StopFlag | None = None,
        *,
        is_continuous: bool = False,
        **settings: Any,
    ) -> ProcessingReport:
        plan = ProcessingPlan(
            app or module_of(tmp_path, **settings),
            str(tmp_path),
            Place(books.url, None),
            "CRITICAL",
            is_continuous=is_continuous,
        )
        return process(spark, plan, stop=stop)

    return start


def test_all_is_done_and_told_by_who_did_it(run: Run, books: Books) -> None:
    flows = orders(50)
    books.start(flows)
    done = run()
    assert books.problems(flows) == []
    assert (sum(done.committed.values()), done.failed) == (50 * len(STAGES), 0)
    assert {node.partition("@")[0] for node in done.committed} == {"spark"}
    assert dict(
        books.rows("SELECT node, count(*) FROM stagepost_journal WHERE waypoint = 'committed' GROUP BY node")
    ) == (done.committed)


def test_messages_that_no_app_declares_a_stage_for_are_told_of(
    run: Run, books: Books, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(open_store(books.url).session()) as session, committed(session):
        session.queue.enqueue([a_row("m1", "mail.send")])
    run()
    (line,) = (each.getMessage() for each in caplog.records if getattr(each, "event", "") == "stage-undeclared")
    assert line.startswith("messages wait at mail.send, which no app declares.")


def test_an_app_whose_stages_another_one_declares_is_refused(run: Run, books: Books) -> None:
    with closing(open_store(books.url).session()) as session, committed(session):
        session.declarations.put([Declaration("shop.done", "shop.done", "store")])
    with pytest.raises(DeclarationError, match=r"app 'shop' declares shop\.done, and so does app 'store'"):
        run()
    assert books.proofs_of_life() == []


@pytest.mark.parametrize("value", ["true", " TRUE"])
def test_a_session_that_runs_copies_of_slow_tasks_is_refused(
    spark: SparkSession, run: Run, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    conf = SparkConf(loadDefaults=False).set("spark.speculation", value)
    monkeypatch.setattr(spark.sparkContext, "_conf", conf)
    with pytest.raises(
        DeclarationError, match=r"spark\.speculation is on: .*Make the session with spark\.speculation=f"
    ):
        run()


def test_nothing_to_do_is_soon_done(run: Run, books: Books) -> None:
    done = run()
    assert (done.committed, done.failed) == ({}, 0)
    assert books.proofs_of_life() == []


def test_it_leaves_the_same_as_a_worker(run: Run, books: Books, new_books: Callable[[str], Books]) -> None:
    """Ledger, dead letters and messages: what was sent has the same ids whoever sends it."""
    flows = [
        *orders(20),
        *orders(3, "fail", entries=1, name="bad"),
        *orders(2, "fail-once=/dev/null/no", entries=1, name="x"),
    ]
    other = new_books("worked")
    books.start(flows)
    other.start(flows)
    run()
    other.drain()
    for statement in (
        "SELECT flow_id, stage, quantity FROM ledger ORDER BY flow_id, stage",
        """
        SELECT waypoint, message_id, stage, cause_id, kind, ordinal FROM stagepost_journal
        WHERE waypoint NOT IN ('received', 'returned') ORDER BY message_id, attempt, waypoint
        """,
        """
        SELECT message_id, stage, reason, failures, deaths, fingerprint FROM stagepost_dead_letter ORDER BY message_id
        """,
    ):
        assert books.rows(statement) == other.rows(statement)
    assert books.is_drained()


@pytest.mark.more
def test_it_ends_where_only_a_paused_stage_is_left_and_says_so(run: Run, books: Books) -> None:
    # A success between the failures would begin their count again.
    books.start(orders(12, "fail", entries=1, name="bad"))
    with pytest.raises(ProcessingFailed, match=r"paused stages: shop\.stock: RuntimeError: told to fail"):
        run()
    assert books.letters() == []
    assert not books.is_drained()


def test_a_handler_that_raises_is_tried_again_and_then_set_aside(run: Run, books: Books, tmp_path: Path) -> None:
    flows = [
        *orders(2, "fail", entries=1, name="bad"),
        *orders(3, f"fail-once={tmp_path}/failed", name="once"),
        *orders(5),
    ]
    books.start(flows)
    done = run()
    assert books.problems(flows) == []
    assert done.failed == 0
    assert {reason for _, reason in books.letters()} == {"exhausted"}
    # Three attempts each of the two, and one of the first of the three.
    assert books.waypoints("failed") == 7
    assert books.waypoints("died") == 0


def test_a_handler_in_a_coroutine_commits_fails_and_dies_as_any_other(run: Run, books: Books, tmp_path: Path) -> None:
    faults = {"good": "", "bad": "fail", "once": f"fail-once={tmp_path}/failed", "dies": f"kill-once={tmp_path}/died"}
    app = books.app
    with app.initiate() as out:
        for name, fault in faults.items():
            out.send(app.target("shop.later"), Ask(1, fault), flow_id=name)
    assert run().failed == 0
    assert sorted(books.rows("SELECT flow_id, stage FROM ledger")) == [
        (name, "shop.later") for name in ("dies", "good", "once")
    ]
    assert books.letters() == [("bad", "exhausted")]
    assert (books.waypoints("failed"), books.waypoints("died")) == (4, 1)
    assert (books.is_drained(), books.owners()) == (True, [])


def test_slow_messages_of_one_stage_run_on_all_slots_at_once(run: Run, books: Books, tmp_path: Path) -> None:
    """Also if one claim loop has claimed both: it gives back the one that waits."""
    gates = [tmp_path / "first", tmp_path / "second"]
    flows = [*orders(100), *(each for gate in gates for each in orders(1, f"gate={gate}", name=gate.name))]
    books.start(flows)

    def open_both() -> None:
        wait_until(lambda: all(Path(f"{gate}.entered").exists() for gate in gates), "both run at the same time")
        for gate in gates:
            Path(f"{gate}.open").touch()

    opener = threading.Thread(target=open_both)
    opener.start()
    run()
    opener.join()
    assert books.problems(flows) == []


@pytest.mark.more
def test_sinks_are_around_the_stages_in_sparks_tasks_too(run: Run, books: Books, tmp_path: Path) -> None:
    flows = [*orders(2), *orders(1, f"fail-once={tmp_path}/failed", name="once")]
    books.start(flows)
    run(sink=str(tmp_path / "sinks"))
    assert books.problems(flows) == []
    lines = Counter((tmp_path / "sinks").read_text().splitlines())
    well = {f"{stage} initialize before_commit success dispose": len(flows) for stage in STAGES}
    assert lines == {**well, "shop.stock initialize failure told to fail dispose": 1}


def test_a_handler_that_exits_is_one_that_failed(run: Run, books: Books) -> None:
    flows = [*orders(1, "quit", entries=1, name="bad"), *orders(3)]
    books.start(flows)
    assert run().failed == 0
    assert books.problems(flows) == []
    assert books.waypoints("died") == 0


IN_TWO_PHASES = """
from dataclasses import dataclass
from stagepost import App, Context

app = App("shop", mode="two_phase")

@dataclass
class Order:
    number: int

@app.endpoint("shop.pay")
def pay(ctx: Context, order: Order) -> None: ...
"""


def test_a_server_that_prepares_nothing_is_refused_before_anything_runs(
    spark: SparkSession, new_postgres: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in_two_phases.py").write_text(IN_TWO_PHASES)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(PostgresSession, "prepared_max", 0)
    plan = ProcessingPlan("in_two_phases:app", str(tmp_path), Place(new_postgres(), new_postgres()), "CRITICAL")
    with pytest.raises(DeclarationError, match="max_prepared_transactions"):
        process(spark, plan)


def test_what_is_delayed_is_waited_for(run: Run, books: Books) -> None:
    flows = [*orders(5, name="late"), *orders(5)]
    books.start(flows[:5], delay=1.5)
    books.start(flows[5:])
    run()
    assert books.problems(flows) == []
    assert books.number(
        "SELECT min(c.at - a.origin_at) FROM stagepost_journal AS c JOIN stagepost_journal AS a USING (message_id)"
        " WHERE c.waypoint = 'received' AND a.waypoint = 'accepted' AND a.flow_id LIKE 'late%'"
    ) >= 1_500_000  # fmt: skip


def test_what_a_module_prints_when_it_is_imported_and_when_it_runs_disturbs_nothing(
    run: Run, books: Books, tmp_path: Path
) -> None:
    before = (
        "import os, sys\nprint('imported' * 1000)\nsys.stdout.flush()\nos.write(1, b'by the descriptor\\n')\n"
        "print('aside', file=sys.stderr)"
    )
    flows = [*orders(5, "talk"), *orders(1, f"kill-once={tmp_path}/died", name="dies")]
    books.start(flows)
    assert run(module_of(tmp_path, before)).failed == 0
    assert books.problems(flows) == []


def test_no_trace_of_the_job_is_left(run: Run, books: Books) -> None:
    books.start(orders(5))
    threads = set(threading.enumerate())
    run()
    assert (books.owners(), books.proofs_of_life()) == ([], [])
    assert [
        each.name for each in set(threading.enumerate()) - threads if each.name in ("watchdog", "housekeeper")
    ] == []


def test_the_child_that_ran_suspects_leaves_no_lock_file(run: Run, books: Books, tmp_path: Path) -> None:
    flows = orders(1, f"kill-once={tmp_path}/died", name="dies")
    books.start(flows)
    run()
    assert books.problems(flows) == []
    assert books.proofs_of_life() == []


def test_workers_and_spark_work_on_one_store_at_the_same_time(
    run: Run, books: Books, commands: Commands, tmp_path: Path
) -> None:
    flows = [
        *orders(400),
        *orders(2, "fail", entries=1, name="bad"),
        *orders(3, f"kill-once={tmp_path}/died", name="dies"),
    ]
    books.start(flows)
    app = module_of(tmp_path)
    worker = commands.start("worker", app, "--processes", "1", "--threads", "2", "--drain", "--log-level", "ERROR")
    wait_until(lambda: books.nodes("committed"), "the worker works")
    has_ended = threading.Event()

    def feed() -> None:
        """Start flows until Spark works too, which begins late on a busy machine."""
        while "spark" not in books.nodes("committed") and not has_ended.wait(0.02):
            if books.waiting() < 200:
                more = orders(100, name=f"{len(flows)}-")
                flows.extend(more)
                books.start(more)

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        run(app)
    finally:
        has_ended.set()
        feeder.join()
    assert worker.answer().code == 0
    assert books.problems(flows) == []
    assert {"worker", "spark"} <= books.nodes("committed")


def test_two_jobs_on_one_store_share_the_work(spark: SparkSession, run: Run, books: Books, tmp_path: Path) -> None:
    flows = orders(200)
    books.start(flows)
    app = module_of(tmp_path)
    threads = [threading.Thread(target=run, args=(app,)) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert books.problems(flows) == []


# Ended from outside


def test_what_a_cancelled_jobs_tasks_held_is_done_by_the_next_job(
    spark: SparkSession, run: Run, books: Books, tmp_path: Path
) -> None:
    """Spark ends a cancelled task by ending its process; what it held counts as nothing, but for what it ran."""
    flows = [*orders(1, f"gate={tmp_path}/gate", name="waits"), *orders(20)]
    books.start(flows)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - whatever Spark says of it
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    wait_until((tmp_path / "gate.entered").exists, "a task is in its handler")
    spark.sparkContext.cancelAllJobs()
    thread.join()
    assert len(errors) == 1
    assert "cancelled" in str(errors[0])
    (tmp_path / "gate.open").touch()
    run()
    assert books.problems(flows) == []
    assert books.waypoints("died") <= 2
    assert books.waypoints("failed") == 0


# When nothing can move


def test_a_module_that_executors_cannot_import_is_told_at_once_with_its_own_reason(
    run: Run, books: Books, tmp_path: Path
) -> None:
    """It is there for the driver, and not for them."""
    books.start(orders(3))
    before = "import sys\nif any('daemon' in each for each in sys.argv):\n    import gone"
    app = module_of(tmp_path, before)
    with pytest.raises(
        DeclarationError, match=rf"the executor on .* cannot import the app {app}: No module named 'gone'"
    ):
        run(app)
    assert books.waiting() == 3
    assert (books.owners(), books.proofs_of_life()) == ([], [])


def test_a_driver_that_cannot_run_suspects_ends_the_job_at_once(
    run: Run, books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the middle of a round, which lasts five minutes."""
    books.start(orders(5))

    def fail(isolation: Isolation) -> bool:
        if books.committed() == 5 * len(STAGES):
            raise RuntimeError("told to fail")
        return False

    monkeypatch.setattr(Isolation, "run_next", fail)
    with pytest.raises(RuntimeError, match="told to fail"):
        run(is_continuous=True)
    assert (books.owners(), books.proofs_of_life()) == ([], [])


def test_three_rounds_in_a_row_that_move_nothing_are_the_last(
    run: Run, books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "PAUSE_SECONDS_FIRST", 0.01)
    books.start(orders(3))
    broken_rounds(monkeypatch, books, fail_first=100, runs_each=0)
    with pytest.raises(ProcessingFailed, match="3 rounds of tasks failed without progress: told to fail"):
        run()
    assert books.waiting() == 3


def test_a_failed_round_that_committed_something_is_followed_by_another(
    run: Run, books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    flows = orders(10)
    books.start(flows)
    broken_rounds(monkeypatch, books, fail_first=5, runs_each=1)
    done = run()
    assert books.problems(flows) == []
    assert (done.failed, done.rounds) == (5, 6)


def test_rounds_that_only_bury_move_too(run: Run, books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    books.start_broken(*(f"bad{number}" for number in range(8)))
    broken_rounds(monkeypatch, books, fail_first=4, runs_each=5)
    run()
    assert len(books.letters()) == 8


def broken_rounds(patch: pytest.MonkeyPatch, books: Books, *, fail_first: int, runs_each: int) -> None:
    """The first rounds run a few messages, and then fail as Spark says it."""
    rounds = count(1)
    real = job.Driver._run_round

    def broken(driver: job.Driver) -> Exception | None:
        if next(rounds) > fail_first:
            return real(driver)
        harness = books.harness()
        for _ in range(runs_each):
            harness.run_one() or harness.skip_wait()
        harness.close()
        return PythonException("told to fail")

    patch.setattr(job.Driver, "_run_round", broken)


def test_a_database_that_somebody_holds_for_long_is_waited_for(
    run: Run, books: Books, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flows = orders(1, f"kill-once={tmp_path}/died")
    books.start(flows)
    held, refused = threading.Event(), threading.Event()
    real_begin, real_run_next = SqliteSession.begin, Isolation.run_next

    def begin(session: SqliteSession, *, is_durable: bool = True) -> None:
        try:
            real_begin(session, is_durable=is_durable)
        except StoreContention:
            refused.set()
            raise

    def hold() -> None:
        with books.connected() as other:
            other.execute("BEGIN IMMEDIATE")
            held.set()
            wait_until(refused.is_set, "the driver was refused the database")
            other.execute("ROLLBACK")

    def run_next(isolation: Isolation) -> bool:
        """Let the other connection have the database as soon as there is a suspect to claim."""
        if not held.is_set() and books.suspects():
            holder.start()
            wait_until(held.is_set, "the database is held")
        return real_run_next(isolation)

    # In this process alone, where the driver is.
    monkeypatch.setattr(connection, "BUSY_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(writer_lock, "WAIT_SECONDS_MAX", 0.05)
    monkeypatch.setattr(SqliteSession, "begin", begin)
    monkeypatch.setattr(Isolation, "run_next", run_next)
    holder = threading.Thread(target=hold)
    try:
        run()
    finally:
        holder.join()
    assert books.problems(flows) == []


# The command


def test_the_command_says_who_committed_how_many(cli: Cli, books: Books) -> None:
    flows = orders(5)
    books.start(flows)
    answer = cli("process", cli.app, "--json")
    assert (answer.code, answer.err) == (0, "")
    assert sum(answer.json["committed"].values()) == 20
    assert set(answer.json) == {"committed", "rounds", "failed_rounds"}
    assert books.problems(flows) == []
    answer = cli("process", cli.app)
    assert answer.out.startswith("drained: 0 messages committed, in 1 round of tasks, 0 of them failed")


def test_what_cannot_be_processed_is_said_in_a_paragraph(cli: Cli, books: Books, tmp_path: Path) -> None:
    for arguments, says in {
        (): "no app is named",
        ("no_such_module:app",): "no module 'no_such_module'",
        ("json:dumps",): "is a function, not a stagepost.App",
    }.items():
        answer = cli("process", *arguments)
        assert (answer.code, answer.is_one_paragraph) == (2, True)
        assert says in answer.err


def test_a_store_in_memory_is_refused(cli: Cli, tmp_path: Path) -> None:
    answer = cli("process", module_of(tmp_path, database="memory:"), url="memory:")
    assert (answer.code, answer.is_one_paragraph) == (2, True)
    assert "the memory store lives in one process" in answer.err


@pytest.mark.more
@pytest.mark.heavy
def test_what_a_module_prints_is_not_part_of_the_answer(commands: Commands, books: Books, tmp_path: Path) -> None:
    flows = orders(1, f"kill-once={tmp_path}/died")
    books.start(flows)
    app = module_of(tmp_path, "print('loading the app')")
    answer = commands.start("process", app, "--json", "--log-level", "CRITICAL").answer()
    assert answer.code == 0
    assert books.problems(flows) == []
    assert sum(answer.json["committed"].values()) == len(STAGES)


# Told to stop


def test_a_continuous_job_waits_for_more_until_it_is_told_to_stop(run: Run, books: Books, tmp_path: Path) -> None:
    first, second = orders(10, name="first"), [*orders(10), *orders(1, f"kill-once={tmp_path}/died", name="dies")]
    books.start(first)

    def both() -> bool:
        if books.is_drained() and books.committed() == len(first) * len(STAGES):
            books.start(second)
        return books.committed() == (len(first) + len(second)) * len(STAGES)

    stopped(run, books, tmp_path, both, is_continuous=True)
    assert books.problems([*first, *second]) == []
    assert (books.owners(), books.proofs_of_life()) == ([], [])


def stopped(run: Run, books: Books, folder: Path, when: Callable[[], bool], **settings: Any) -> ProcessingStopped:
    """What the job raises when it is told to stop at that moment; what it ran goes on to its end after that."""
    stop = StopFlag()
    raised: list[BaseException] = []

    def work() -> None:
        try:
            run(stop=stop, **settings)
        except BaseException as error:  # noqa: BLE001 - it is looked at by the test
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    wait_until(lambda: when() or raised, "it is time to stop")
    stop.stop()
    (folder / "gate.open").touch()
    thread.join()
    assert isinstance(raised[0], ProcessingStopped), raised
    return raised[0]


def test_told_to_stop_the_tasks_finish_what_runs_and_give_back_what_they_hold(
    run: Run, books: Books, tmp_path: Path
) -> None:
    # More than the tasks can do before they hear of the stop.
    flows = [*orders(1, f"gate={tmp_path}/gate", name="gated"), *orders(800)]
    books.start(flows)
    stopped(run, books, tmp_path, (tmp_path / "gate.entered").exists)
    assert books.number("SELECT count(*) FROM ledger WHERE flow_id = 'gated0' AND stage = 'shop.stock'") == 1
    assert (books.owners(), books.proofs_of_life()) == ([], [])
    assert not books.is_drained()
    assert books.waypoints("died") == books.waypoints("failed") == 0
    run()
    assert books.problems(flows) == []


@pytest.mark.more
def test_what_does_not_end_in_time_is_ended_and_counts_as_nothing(
    run: Run, books: Books, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_rounds, "GRACE_SECONDS", 3.0)
    flows = [*orders(1, f"gate={tmp_path}/never", name="gated"), *orders(50)]
    books.start(flows)
    stopped(run, books, tmp_path, (tmp_path / "never.entered").exists)
    assert (books.owners(), books.proofs_of_life()) == ([], [])
    assert books.waypoints("died") == books.waypoints("failed") == 0
    (tmp_path / "never.open").touch()
    run()
    assert books.problems(flows) == []


def test_told_to_stop_while_it_waits_for_what_is_delayed_or_runs_a_suspect_it_ends(
    run: Run, books: Books, tmp_path: Path
) -> None:
    books.start(orders(1), delay=3600)
    stopped(run, books, tmp_path, lambda: bool(books.proofs_of_life()))
    books.change("DELETE FROM stagepost_delayed")
    flows = orders(1, f"kill-once={tmp_path}/died", name="dies")
    books.start(flows)
    stopped(run, books, tmp_path, lambda: books.number("SELECT count(*) FROM stagepost_suspect") > 0)
    assert (books.owners(), books.proofs_of_life()) == ([], [])
    run()
    assert books.problems(flows) == []
