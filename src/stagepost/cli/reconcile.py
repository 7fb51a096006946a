"""``stagepost reconcile``: the journals of two or more services against each other."""

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

from stagepost.cli.exits import BAD_NEWS, readable_errors
from stagepost.cli.interruption import stoppable
from stagepost.cli.job_progress import job_progress
from stagepost.cli.options import database_option, existing_store, json_option
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
from stagepost.transaction.arrivals import replies_address

VARIABLE_PREFIX = "env:"
FINDINGS_SHOWN = 10


@click.command()
@database_option
@click.option(
    "--with",
    "others",
    metavar="URL",
    multiple=True,
    help="The store of another service, or env:NAME for a variable that holds its URL. Repeatable.",
)
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
    database: str | None,
    others: tuple[str, ...],
    spark_options: SparkOptions,
    window: int,
    late: int,
    overdue: int,
    as_json: bool,
) -> None:
    """Compare what services sent to each other over a broker with what arrived.

    Exits with 1 if a message is lost, or arrived twice.
    """
    with readable_errors(), reserve_stdout():
        urls = [url_of(each) for each in others]
        if not urls:
            raise DeclarationError("reconcile compares services: name the store of each other one with --with URL")
        job = load_job("reconcile")
        with existing_store(database) as (store, access):
            services = [service_of(job, store.address, access.session)]
            uuids = [access.session.edge.store()]
        for url in urls:
            with closing(driver_of(url).open_existing(url, "--with").session()) as opened:
                services.append(service_of(job, url, opened))
                uuids.append(opened.edge.store())
        if len(set(uuids)) < len(uuids):
            raise DeclarationError(
                "--with names a store twice, or a copy of one: each service has a store of its own. The store of "
                "--database, of STAGEPOST_DATABASE or of stagepost.toml is compared too, and is not named again."
            )
        with (
            stoppable() as request,
            session("stagepost reconcile", spark_options) as spark,
            job_progress(spark, "stagepost reconcile") as shown,
        ):
            report = run_job(
                lambda: job.reconcile(
                    spark,
                    services,
                    window_seconds=window,
                    late_seconds=late,
                    overdue_seconds=overdue * HOUR_SECONDS,
                    describe=shown.describe,
                ),
                request,
                partial(cancel_jobs, spark),
                shown.look,
            )
    if as_json:
        echo(json.dumps(report.as_dict()))
    else:
        print_report(report.as_dict())
    if not report.is_clean:
        raise click.exceptions.Exit(BAD_NEWS)


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


def service_of(job: Any, url: str, session: Session) -> Any:
    """Return the journal of a service up to now, with the addresses at which the service receives."""
    # The time is read before the position, so what happened before it is below the position.
    at = SystemClock().now()
    until = session.journal.position()
    oldest = session.journal.since(until).lines.oldest_at
    addresses = [each.stage for each in session.declarations.listed()]
    seen_until = at if oldest is None else min(at, oldest)
    return job.Service(url, until, seen_until, [*addresses, replies_address(session.edge.store())])


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
