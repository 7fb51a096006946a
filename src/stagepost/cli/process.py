"""``stagepost process``"""

from __future__ import annotations

import json
import math
from contextlib import closing
from pathlib import Path

import click

from stagepost.app.app import engine_of
from stagepost.app.logs import configure
from stagepost.cli.exits import readable_errors
from stagepost.cli.interruption import stoppable
from stagepost.cli.job_progress import Tasks, job_progress
from stagepost.cli.options import app_argument, database_option, find_app, json_option, log_level_option
from stagepost.cli.show import duration, echo, reserve_stdout
from stagepost.cli.spark import load_job, on_spark, run_job, session
from stagepost.flow.clock import Clock
from stagepost.pipeline.spark_options import SparkOptions
from stagepost.ports.findings import counted
from stagepost.ports.queue import Depth, Pending
from stagepost.runtime.access import Access
from stagepost.runtime.service import StopFlag

# Counting the queue for the progress takes at most this part of the time: one in so many.
LOOKS_SHARE = 10


@click.command()
@app_argument
@database_option
@on_spark
@click.option("--continuous", "is_continuous", is_flag=True, help="Wait for more messages when none is left.")
@log_level_option("WARNING")
@json_option
def process(
    app_name: str | None,
    database: str | None,
    spark_options: SparkOptions,
    is_continuous: bool,
    log_level: str,
    as_json: bool,
) -> None:
    """Run the stages of MODULE:APP on Spark's executors until no message is left, or with --continuous until Ctrl-C.

    The transaction is that of a worker, and workers may run the same app meanwhile. The command waits for delayed
    messages. Messages that may kill their process run alone, one at a time, in a child of the driver. After a kill, the
    same command continues with the rest.
    """
    configure(log_level.upper(), as_json=as_json)
    with readable_errors(), reserve_stdout():
        app, name = find_app(app_name, database)
        job = load_job("process")
        engine = engine_of(app)
        stages = list(engine.stages())
        stop = StopFlag()
        plan = job.ProcessingPlan(name, str(Path.cwd()), engine.databases.place, log_level, is_continuous=is_continuous)
        with (
            closing(engine.access()) as access,
            stoppable() as request,
            session(f"stagepost process {app.name}", spark_options, is_divided=False) as spark,
            job_progress(spark, "stagepost process") as shown,
        ):
            depths = QueueLook(access, stages, engine.clock)

            def look() -> None:
                if depths.is_due():
                    shown.describe(*depths.read())
                shown.look()

            done = run_job(lambda: job.process(spark, plan, stop=stop), request, stop.stop, look)
    if as_json:
        echo(json.dumps({"committed": done.committed, "rounds": done.rounds, "failed_rounds": done.failed}))
        return
    total = sum(done.committed.values())
    rounds = f"{counted(done.rounds, 'round')} of tasks, {done.failed} of them failed"
    echo(f"drained: {counted(total, 'message')} committed, in {rounds}")
    for node, committed in done.committed.items():
        echo(f"  {committed:>8}  {node}")


class QueueLook:
    """Reads what is left, for the progress. A large queue takes long to count, so it is counted less often."""

    def __init__(self, access: Access, stages: list[str], clock: Clock) -> None:
        self._access = access
        self._stages = stages
        self._clock = clock
        self._due_at = -math.inf
        self._most = 0

    def is_due(self) -> bool:
        return self._clock.monotonic() >= self._due_at

    def read(self) -> tuple[str, Tasks]:
        """Return a text, and how many messages are done of the most that were left at a time."""
        begin = self._clock.monotonic()
        pending = self._access.claimer.pending(self._stages)
        depths = self._access.session.queue.depths()
        end = self._clock.monotonic()
        self._due_at = end + (end - begin) * LOOKS_SHARE
        left = sum(each.ready + each.claimed + each.delayed + each.suspect for each in depths)
        self._most = max(self._most, left)
        return describe(depths, pending, self._clock), Tasks(self._most - left, self._most)


def describe(depths: list[Depth], pending: Pending, clock: Clock) -> str:
    """Describe the remaining messages. If none can run, describe the next one that comes due."""
    ready = sum(each.ready for each in depths)
    claimed = sum(each.claimed for each in depths)
    if ready or claimed:
        return f"{ready} ready, {claimed} claimed, {sum(each.delayed + each.suspect for each in depths)} waiting"
    due = [(at, kind) for at, kind in ((pending.next_due_at, "delayed"), (pending.next_suspect_at, "suspect")) if at]
    if not due:
        return "finishing"
    at, kind = min(due)
    return f"waiting {duration(max(at - clock.now(), 0))} for the next {kind} message"
