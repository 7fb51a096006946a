"""``stagepost initiate``"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

from stagepost.app.app import engine_of
from stagepost.cli.exits import BAD_NEWS, UNBALANCED, print_error, readable_errors
from stagepost.cli.initiate_stream import Total, described, follow, quarantine_lines
from stagepost.cli.interruption import stoppable
from stagepost.cli.job_progress import Tasks, job_progress
from stagepost.cli.options import app_option, database_option, find_app, json_option
from stagepost.cli.show import echo, reserve_stdout
from stagepost.cli.spark import cancel_jobs, load_job, on_spark, run_job, session
from stagepost.flow.errors import DeclarationError
from stagepost.pipeline.spark_options import SparkOptions
from stagepost.ports.findings import counted
from stagepost.ports.runs import Quarantined, RunCounts
from stagepost.runtime.access import Access

REASONS_SHOWN = 5


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--to", "target", metavar="ENDPOINT", required=True, help="The endpoint that each row is sent to.")
@click.option(
    "--id",
    "id_columns",
    metavar="COLUMNS",
    required=True,
    help="The columns whose values identify a row: one, or several,with,commas.",
)
@click.option(
    "--type", "message_type", metavar="NAME", help="The message type of the rows, where ENDPOINT takes several."
)
@click.option("--reply-to", metavar="ENDPOINT", help="The endpoint that gets the replies.")
@click.option("--flow-prefix", metavar="TEXT", help="Flow ids are PREFIX:VALUE. Default: the target endpoint's name.")
@click.option("--format", "file_format", type=click.Choice(["csv", "json", "parquet"]), help="Default: by the suffix.")
@click.option("--separator", metavar="CHAR", default=",", show_default=True, help="The separator of CSV cells.")
@click.option("--stream", "is_stream", is_flag=True, help="Read the files of one folder as they come, until Ctrl-C.")
@click.option("--once", is_flag=True, help="With --stream: end when the files that are there are done.")
@click.option("--checkpoint", metavar="FOLDER", help="With --stream: the folder that holds which files are done.")
@app_option
@database_option
@on_spark
@json_option
def initiate(
    files: tuple[str, ...],
    target: str,
    id_columns: str,
    message_type: str | None,
    reply_to: str | None,
    flow_prefix: str | None,
    file_format: str | None,
    separator: str,
    is_stream: bool,
    once: bool,
    checkpoint: str | None,
    app_name: str | None,
    database: str | None,
    spark_options: SparkOptions,
    as_json: bool,
) -> None:
    """Start a flow for each row of FILE..., once, however often the command is run.

    A file is CSV with column names in its first line, JSON with one object a line, or Parquet. Columns fill the fields
    of the endpoint's message by name. A row is quarantined with the reason, and starts no flow, if it does not fit the
    message, or if its id was accepted before with other content.

    With --stream, each batch of new files is a run, and prints its counts. A file must come into the folder whole, by a
    rename, and must not change.

    Exit code 1: every row was quarantined. Exit code 4: the counts do not add up.
    """
    with readable_errors(), reserve_stdout():
        app, name = find_app(app_name, database)
        job = load_job("initiate")
        from stagepost.pipeline.files import chosen_format  # noqa: PLC0415 - it needs an extra

        if is_stream and file_format is None:
            raise DeclarationError("--stream needs --format, because the folder may have no file yet")
        if not is_stream and (once or checkpoint is not None):
            raise DeclarationError("--once and --checkpoint belong to --stream")
        engine = engine_of(app)
        with closing(engine.access()) as access:
            run_id = engine.ids.mint()
            plan = job.InitiationPlan(
                app=name,
                folder=str(Path.cwd()),
                place=engine.databases.place,
                target=target,
                reply_to=reply_to,
                run_id=run_id,
                file_format=chosen_format(file_format, files),
                message_type=message_type,
            )
            ids = [each.strip() for each in id_columns.split(",")]
            reading = {"id_columns": ids, "flow_prefix": flow_prefix or target, "separator": separator}
            if is_stream:
                streams = load_job("initiate_stream")
                folder = streams.check_folder(files, checkpoint)
            job.check_request(plan, files, ids, separator)
            opened = partial(session, f"stagepost initiate {target}", spark_options)
            if is_stream:

                def first_quarantined(run: str) -> list[Quarantined]:
                    # Spark calls it in a thread of its own, and a session is for one thread.
                    with closing(engine.access()) as own:
                        return own.session.runs.quarantined(run, 1)

                total = follow(
                    streams,
                    opened,
                    plan,
                    folder,
                    first_quarantined,
                    checkpoint=str(checkpoint),
                    is_endless=not once,
                    **reading,
                )
            else:
                counts = _initiate_once(job, opened, plan, files, access, reading)
                reasons = access.session.runs.quarantined(run_id, REASONS_SHOWN)
    if is_stream:
        _report_stream(total, as_json)
    else:
        _report(counts, run_id, reasons, as_json)


def _initiate_once(
    job: Any, opened: Callable[[], Any], plan: Any, files: Sequence[str], access: Access, reading: dict[str, Any]
) -> RunCounts:
    with stoppable() as request, opened() as spark, job_progress(spark, "stagepost initiate") as shown:
        rows = 0
        shown.describe("counting rows")

        def start(counted: int) -> None:
            nonlocal rows
            rows = counted

        def look() -> None:
            if rows:
                shown.describe("starting flows", Tasks(access.session.runs.counts(plan.run_id).done, rows))
            shown.look()

        counts: RunCounts = run_job(
            lambda: job.initiate(spark, plan, list(files), on_counted=start, **reading),
            request,
            partial(cancel_jobs, spark),
            look,
        )
        return counts
    raise AssertionError  # a request to stop has ended the command


def _report(counts: RunCounts, run_id: str, reasons: list[Quarantined], as_json: bool) -> None:
    if as_json:
        examples = [row._asdict() for row in reasons]
        echo(json.dumps({"run_id": run_id, "balanced": counts.is_balanced, **asdict(counts), "examples": examples}))
    else:
        echo(described(counts))
        for line in quarantine_lines(run_id, reasons) if counts.quarantined else ():
            echo(line)
    _exit(counts.is_balanced, counts.rows_in, counts.done, counts.quarantined, run_id)


def _report_stream(total: Total, as_json: bool) -> None:
    echo(json.dumps(asdict(total)) if as_json else f"{counted(total.runs, 'run')}: {described(total)}")
    done = total.started + total.repeated + total.quarantined
    _exit(total.balanced, total.rows_in, done, total.quarantined, total.last_run_id)


def _exit(is_balanced: bool, rows_in: int | None, done: int, quarantined: int, run_id: str | None) -> None:
    """Exit with the code of the counts, if they are not good."""
    if not is_balanced:
        print_error(
            "unbalanced",
            f"{rows_in} rows were counted, and {done} have an outcome. The files changed while they were "
            "read, or this is a defect of Stagepost. Run the same command again: it starts no flow twice. If the "
            f"counts still do not add up, report the defect with the run id {run_id}.",
        )
        raise click.exceptions.Exit(UNBALANCED)
    if 0 < quarantined == rows_in:
        raise click.exceptions.Exit(BAD_NEWS)
