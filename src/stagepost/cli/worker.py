"""``stagepost worker``"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import closing

import click

from stagepost.app.app import engine_of
from stagepost.app.logs import configure
from stagepost.cli.exits import readable_errors
from stagepost.cli.options import FiniteNumber, app_argument, database_option, find_app, json_option, log_level_option
from stagepost.flow.errors import DeclarationError
from stagepost.runtime.assembly import check_databases
from stagepost.runtime.declarations import declare_stages, describe_undeclared, living, undeclared
from stagepost.runtime.engine import Engine
from stagepost.worker.child import Plan
from stagepost.worker.supervisor import Supervisor

logger = logging.getLogger(__name__)


@click.command()
@app_argument
@database_option
@click.option("--processes", type=click.IntRange(1, 256), default=1, show_default=True, help="Worker processes.")
@click.option("--threads", type=click.IntRange(1, 256), default=4, show_default=True, help="Stage threads in each.")
@click.option("--drain", is_flag=True, help="Stop when no message is left, neither ready nor delayed.")
@click.option(
    "--grace",
    type=FiniteNumber(min=0),
    default=30.0,
    show_default=True,
    help="Seconds that running handlers get to finish after a stop signal.",
)
@log_level_option("INFO")
@json_option
def worker(
    app_name: str | None,
    database: str | None,
    processes: int,
    threads: int,
    drain: bool,
    grace: float,
    log_level: str,
    as_json: bool,
) -> None:
    """Run the stages of MODULE:APP until a signal stops it.

    At SIGTERM or Ctrl-C it takes no further messages, lets running handlers finish, and releases claimed messages. At
    a second signal it ends at once, and running messages are redelivered. A process that dies is replaced, and its
    running messages are tried again, alone.

    Exit code 1: a running handler was cut off, or a signal stopped the command before it had drained.
    """
    configure(log_level.upper(), as_json=as_json)
    with readable_errors():
        app, name = find_app(app_name, database)
        engine = engine_of(app)
        stages = engine.modes()
        if not stages and engine.databases.broker is None:
            raise DeclarationError(f"{name} has no stages to run. Was the module that declares its endpoints imported?")
        check_databases(engine)
        declare_stages(engine)
        plan = Plan(
            app=name,
            threads=threads,
            drain=drain,
            grace_seconds=grace,
            supervisor=os.getpid(),
            log_level=log_level.upper(),
            log_json=as_json,
        )
        # An app that only starts flows at other services needs no worker, only its dispatcher.
        processes = processes if stages else 0
        supervisor = Supervisor(engine, plan, processes)
        logger.info(
            "%s: stages %d, processes %d, threads in each %d, on %s",
            app.name,
            len(stages),
            processes,
            threads,
            engine.store.url,
            extra={"event": "worker-starts"},
        )
        code = supervisor.run()
        if drain:
            _log_remaining(engine)
    outcome = "stopped" if not drain else "drained" if code == 0 else "stopped before it drained"
    logger.info("%s: %s", app.name, outcome, extra={"event": "worker-stopped"})
    sys.exit(code)


def _log_remaining(engine: Engine) -> None:
    """Log the messages that wait at paused stages of the app, or at stages that no app declares."""
    with closing(engine.access()) as access:
        unknown = {each.stage: each for each in undeclared(access.session, lambda: living(engine.store, engine.clock))}
        paused = {each.stage: each for each in access.session.circuits.paused() if each.stage in engine.stages()}
        depths = access.session.queue.depths()
    for depth in depths:
        waiting = depth.ready + depth.claimed + depth.delayed + depth.suspect
        if waiting and depth.stage in unknown:
            text = describe_undeclared(unknown[depth.stage])
            logger.warning("%d %s", waiting, text, extra={"event": "stage-undeclared", "stage": depth.stage})
        elif waiting and depth.stage in paused:
            logger.warning(
                "%d messages wait at %s, which is paused and fails with: %s",
                waiting,
                depth.stage,
                paused[depth.stage].error,
                extra={"event": "stage-still-paused", "stage": depth.stage},
            )
