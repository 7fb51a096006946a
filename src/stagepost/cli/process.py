"""``stagepost process``"""

from __future__ import annotations

import json
import threading
from pathlib import Path

import click

from stagepost.app.logs import configure
from stagepost.cli.exits import readable_errors
from stagepost.cli.interruption import stoppable
from stagepost.cli.options import app_argument, database_option, find_app, json_option, log_level_option
from stagepost.cli.show import answer_alone, duration, progress, say
from stagepost.cli.spark import load_job, master_option, session, watched
from stagepost.flow.clock import Clock
from stagepost.flow.queue import Pending
from stagepost.flow.reading import Depth


@click.command()
@app_argument
@database_option
@master_option
@log_level_option("WARNING")
@json_option
def process(app_name: str | None, database: str | None, master: str | None, log_level: str, as_json: bool) -> None:
    """Run the stages of MODULE:APP on Spark's executors until nothing is left to do.

    The same transaction as a worker's, and workers may run the same app meanwhile. What is delayed is waited for; what
    may kill its process is run last, alone, by the driver. Killed at any moment and run again, it goes on.
    """
    configure(log_level.upper(), as_json=as_json)
    with readable_errors(), answer_alone():
        app, name = find_app(app_name, database)
        job = load_job("process")
        stages = list(app.stages())
        access = app.access()
        stop = threading.Event()
        with stoppable() as request, session(f"stagepost process {app.name}", master) as spark:
            plan = job.Processing(name, str(Path.cwd()), app.place, log_level)
            with progress() as shown:
                line = shown.add_task("starting")

                def look() -> None:
                    pending = access.transport.pending(stages)
                    shown.update(line, description=_describe(access.session.reader.depths(), pending, app.clock))

                done = watched(lambda: job.process(spark, plan, stop=stop), request, stop.set, look)
        access.session.close()
    if as_json:
        say(json.dumps({"committed": done.committed, "rounds": done.rounds, "failed_rounds": done.failed}))
        return
    total = sum(done.committed.values())
    say(f"drained: {total} messages committed, in {done.rounds} rounds of tasks, {done.failed} of them broken off")
    for node, committed in done.committed.items():
        say(f"  {committed:>8}  {node}")


def _describe(depths: list[Depth], pending: Pending, clock: Clock) -> str:
    """What is left, and what it waits for where nothing can run."""
    ready = sum(each.ready for each in depths)
    claimed = sum(each.claimed for each in depths)
    if ready or claimed:
        return f"{ready} ready, {claimed} claimed, {sum(each.delayed + each.suspect for each in depths)} waiting"
    due = [(at, kind) for at, kind in ((pending.next_due_at, "delayed"), (pending.next_suspect_at, "suspect")) if at]
    if not due:
        return "finishing"
    at, kind = min(due)
    return f"waiting {duration(max(at - clock.now(), 0))} for the next {kind} message"
