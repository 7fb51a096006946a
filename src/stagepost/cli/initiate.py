"""``stagepost initiate``"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

from stagepost.app.app import engine_of
from stagepost.cli.exits import BAD_NEWS, UNBALANCED, print_error, readable_errors
from stagepost.cli.interruption import stoppable
from stagepost.cli.job_progress import Tasks, job_progress
from stagepost.cli.options import app_option, database_option, find_app, json_option
from stagepost.cli.show import echo, reserve_stdout
from stagepost.cli.spark import cancel_jobs, load_job, on_spark, run_job, session
from stagepost.pipeline.spark_options import SparkOptions
from stagepost.ports.runs import RunCounts

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
@click.option("--reply-to", metavar="ENDPOINT", help="The endpoint that gets the replies.")
@click.option("--flow-prefix", metavar="TEXT", help="Flow ids are PREFIX:VALUE. Default: the target endpoint's name.")
@click.option("--format", "file_format", type=click.Choice(["csv", "json", "parquet"]), help="Default: by the suffix.")
@click.option("--separator", metavar="CHAR", default=",", show_default=True, help="The separator of CSV cells.")
@app_option
@database_option
@on_spark
@json_option
def initiate(
    files: tuple[str, ...],
    target: str,
    id_columns: str,
    reply_to: str | None,
    flow_prefix: str | None,
    file_format: str | None,
    separator: str,
    app_name: str | None,
    database: str | None,
    spark_options: SparkOptions,
    as_json: bool,
) -> None:
    """Start a flow for each row of FILE..., once, however often the command is run.

    A file is CSV with column names in its first line, JSON with one object a line, or Parquet. Columns fill the fields
    of the endpoint's message by name. A row is quarantined with the reason, and starts no flow, if it does not fit the
    message, or if its id was accepted before with other content.

    Exit code 1: every row was quarantined. Exit code 4: the counts do not add up.
    """
    with readable_errors(), reserve_stdout():
        app, name = find_app(app_name, database)
        job = load_job("initiate")
        from stagepost.pipeline.files import chosen_format  # noqa: PLC0415 - it needs an extra

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
                file_format=chosen_format(file_format, files[0]),
            )
            ids = [each.strip() for each in id_columns.split(",")]
            job.check_request(plan, files, ids, separator)
            with (
                stoppable() as request,
                session(f"stagepost initiate {target}", spark_options) as spark,
                job_progress(spark, "stagepost initiate") as shown,
            ):
                rows = 0
                shown.describe("counting rows")

                def start(counted: int) -> None:
                    nonlocal rows
                    rows = counted

                def look() -> None:
                    if rows:
                        shown.describe("starting flows", Tasks(access.session.runs.counts(run_id).done, rows))
                    shown.look()

                counts = run_job(
                    lambda: job.initiate(
                        spark,
                        plan,
                        list(files),
                        id_columns=ids,
                        flow_prefix=flow_prefix or target,
                        separator=separator,
                        on_counted=start,
                    ),
                    request,
                    partial(cancel_jobs, spark),
                    look,
                )
            reasons = [row._asdict() for row in access.session.runs.quarantined(run_id, REASONS_SHOWN)]
    if as_json:
        echo(json.dumps({"run_id": run_id, "balanced": counts.is_balanced, **asdict(counts), "examples": reasons}))
    else:
        _print(counts, run_id, reasons)
    if not counts.is_balanced:
        print_error(
            "unbalanced",
            f"{counts.rows_in} rows were counted, and {counts.done} have an outcome. The files changed while they were "
            "read, or this is a defect of Stagepost. Run the same command again: it starts no flow twice. If the "
            f"counts still do not add up, report the defect with the run id {run_id}.",
        )
        raise click.exceptions.Exit(UNBALANCED)
    if 0 < counts.quarantined == counts.rows_in:
        raise click.exceptions.Exit(BAD_NEWS)


def _print(counts: RunCounts, run_id: str, reasons: list[dict[str, Any]]) -> None:
    echo(
        f"{counts.rows_in} rows in = {counts.started} started + {counts.repeated} repeated + "
        f"{counts.quarantined} quarantined"
    )
    for row in reasons:
        echo(f"  quarantined  {row['file']} record {row['record']}: {row['reason']}")
    if counts.quarantined > len(reasons):
        echo(f"  … all of them are in the table stagepost_quarantine, run_id {run_id}")
