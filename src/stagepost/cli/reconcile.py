"""``stagepost reconcile``: the journals of services against each other, or one journal against the rows of files."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import Any

import click
from rich.console import Console
from rich.table import Column, Table

from stagepost.cli.archives import archives_by_store, archives_option, refuse_others
from stagepost.cli.exits import BAD_NEWS, readable_errors
from stagepost.cli.interruption import stoppable
from stagepost.cli.job_progress import job_progress
from stagepost.cli.options import database_option, existing_store, json_option
from stagepost.cli.reconcile_rows import RowOptions, options_of_rows, print_rows, reconcile_files
from stagepost.cli.show import console, echo, plain, reserve_stdout
from stagepost.cli.spark import cancel_jobs, load_job, on_spark, run_job, session
from stagepost.flow.clock import SystemClock
from stagepost.flow.errors import DeclarationError
from stagepost.flow.urls import has_password
from stagepost.pipeline.report.advice import HOUR_SECONDS
from stagepost.pipeline.spark_options import SparkOptions
from stagepost.ports.findings import counted
from stagepost.ports.registry import driver_of
from stagepost.ports.session import Session

VARIABLE_PREFIX = "env:"
FINDINGS_SHOWN = 10


@click.command()
@click.argument("files", metavar="[FILE]...", nargs=-1)
@options_of_rows
@database_option
@click.option(
    "--with",
    "others",
    metavar="URL",
    multiple=True,
    help="The store of another service, or env:NAME for a variable that holds its URL. Repeatable.",
)
@archives_option
@on_spark
@click.option("--window", type=click.IntRange(1), default=60, show_default=True, help="Seconds of a window of origin.")
@click.option(
    "--late",
    type=click.IntRange(0),
    default=300,
    show_default=True,
    help="Seconds by which a later message must have left that shows a loss.",
)
@click.option(
    "--overdue", type=click.IntRange(1), default=24, show_default=True, help="Hours after which a message is lost."
)
@json_option
def reconcile(
    files: tuple[str, ...],
    rows: RowOptions,
    database: str | None,
    others: tuple[str, ...],
    archive_folders: tuple[str, ...],
    spark_options: SparkOptions,
    window: int,
    late: int,
    overdue: int,
    as_json: bool,
) -> None:
    """Compare what services sent to each other over a broker with what arrived.

    With FILE..., compare the rows of CSV, JSON or Parquet files with the messages that a stage committed, by flow id
    and amount. The options from --stage to --separator belong to files, and those from --with to --overdue to services.

    Exits with 1 if a message is lost or doubled, or if rows and messages differ.
    """
    with readable_errors(), reserve_stdout():
        if files:
            if others:
                raise DeclarationError("reconcile compares either services, by --with, or the rows of files")
            report, show = reconcile_files(files, rows, database, archive_folders, spark_options), print_rows
        else:
            rows.refuse()
            report = reconcile_services(
                database,
                others,
                archive_folders,
                spark_options,
                window_seconds=window,
                late_seconds=late,
                overdue_seconds=overdue * HOUR_SECONDS,
            )
            show = print_report
    if as_json:
        echo(json.dumps(report.as_dict()))
    else:
        show(report.as_dict())
    if not report.is_clean:
        raise click.exceptions.Exit(BAD_NEWS)


def reconcile_services(
    database: str | None, others: tuple[str, ...], archives: tuple[str, ...], spark_options: SparkOptions, **terms: int
) -> Any:
    """Return the report on the messages between the services."""
    urls = [url_of(each) for each in others]
    if not urls:
        raise DeclarationError(
            "reconcile compares services: name the store of each other one with --with URL. For rows, name files."
        )
    job = load_job("reconcile")
    by_store = archives_by_store(archives)

    def service_of(url: str, session: Session) -> Any:
        return job.Service.read(url, session, SystemClock(), by_store.pop(session.edge.store(), None))

    with existing_store(database) as (store, access):
        services = [service_of(store.address, access.session)]
    for url in urls:
        with closing(driver_of(url).open_existing(url, "--with").session()) as opened:
            services.append(service_of(url, opened))
    refuse_others(by_store)
    if len({each.uuid for each in services}) < len(services):
        raise DeclarationError(
            "--with names a store twice, or a copy of one: each service has a store of its own. The store of "
            "--database, of STAGEPOST_DATABASE or of stagepost.toml is compared too, and is not named again."
        )
    with (
        stoppable() as request,
        session("stagepost reconcile", spark_options) as spark,
        job_progress(spark, "stagepost reconcile") as shown,
    ):
        return run_job(
            lambda: job.reconcile(spark, services, describe=shown.describe, **terms),
            request,
            partial(cancel_jobs, spark),
            shown.look,
        )
    raise AssertionError  # a request to stop has ended the command


def url_of(text: str) -> str:
    """Return the URL that an argument names. Raises ``DeclarationError`` for a password in it."""
    if text.startswith(VARIABLE_PREFIX):
        name = text.removeprefix(VARIABLE_PREFIX)
        url = os.environ.get(name)
        if not url:
            raise DeclarationError(f"--with {text}: the variable {name} is not set. Set it to the URL of the store.")
        return url
    if has_password(text):
        raise DeclarationError(
            "--with contains a password, and every user of this machine can read a command line. Put the URL into a "
            f"variable and write --with {VARIABLE_PREFIX}NAME, or keep the password in a password file (PGPASSFILE)."
        )
    return text


def print_report(found: dict[str, Any]) -> None:
    out = console()
    for each in found["services"]:
        whole = f", whole from {each['proved_from'][:19]}Z on" if each["proved_from"] else ""
        out.print(f"{each['url']}, read until {each['seen_until'][:19]}Z{whole}")
    verdict = "[green]no message was lost, and none arrived twice[/]"
    if not found["clean"]:
        verdict = "[red]messages were lost, or arrived twice[/]"
    out.print(verdict)
    names = ("sent", "ok", "lost", "unexpected", "duplicated", "recovered", "in_flight", "dead", "unprovable")
    numbers = [Column(name.replace("_", " "), justify="right") for name in (*names, "windows", "differing")]
    table = Table(Column("address", no_wrap=True), *numbers, box=None)
    for row in found["addresses"]:
        table.add_row(row["address"], *(str(row[name] or "·") for name in (*names, "windows", "differing")))
    out.print(table)
    for row in found["elsewhere"]:
        out.print(f"[yellow]not compared[/]  {counted(row['sent'], 'message')} to {row['address']}, of no service here")
    for name in ("lost", "duplicated", "unexpected"):
        _findings(out, name, found[name])


def _findings(out: Console, name: str, rows: Sequence[dict[str, Any]]) -> None:
    for row in rows[:FINDINGS_SHOWN]:
        out.print(
            f"  [red]{name}[/]  {row['address']}  flow {plain(row['flow_id'])}  message {plain(row['message_id'])}"
        )
    if len(rows) > FINDINGS_SHOWN:
        out.print(f"  [red]{name}[/]  … and more; --json lists a hundred")
