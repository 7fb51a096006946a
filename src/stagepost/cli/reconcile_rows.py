"""``stagepost reconcile FILE...``: the rows of files against the messages that a stage committed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import click
from rich.table import Column, Table

from stagepost.cli.archives import archives_by_store, refuse_others
from stagepost.cli.interruption import stoppable
from stagepost.cli.job_progress import job_progress
from stagepost.cli.options import existing_store
from stagepost.cli.replay import MOMENT
from stagepost.cli.show import console, plain
from stagepost.cli.spark import cancel_jobs, load_job, run_job, session
from stagepost.flow.clock import SystemClock
from stagepost.flow.errors import DeclarationError
from stagepost.pipeline.audited_store import held_by
from stagepost.pipeline.spark_options import SparkOptions
from stagepost.ports.findings import counted

F = TypeVar("F", bound=Callable[..., Any])

FINDINGS_SHOWN = 10

_OPTIONS = (
    click.option("--stage", metavar="STAGE", help="The stage whose committed messages the rows are compared with."),
    click.option(
        "--id", "id_columns", metavar="COLUMNS", help="The columns of the flow id: one, or several,with,commas."
    ),
    click.option("--amount", metavar="COLUMN", help="The column of the amount that the stage records."),
    click.option(
        "--flow-prefix",
        metavar="TEXT",
        help="Flow ids are PREFIX:VALUE. Default: the stage's name. Empty for a column that holds whole flow ids.",
    ),
    click.option(
        "--since", metavar="MOMENT", type=MOMENT, help="The rows have the flows that began at MOMENT or later."
    ),
    click.option("--until", metavar="MOMENT", type=MOMENT, help="The rows have the flows that began before MOMENT."),
    click.option(
        "--format", "file_format", type=click.Choice(["csv", "json", "parquet"]), help="Default: by the suffix."
    ),
    click.option("--separator", metavar="CHAR", help="The separator of CSV cells. Default: a comma."),
)


@dataclass(frozen=True, slots=True)
class RowOptions:
    """The options that belong to files with rows."""

    stage: str | None
    id_columns: str | None
    amount: str | None
    flow_prefix: str | None
    since: int | None
    until: int | None
    file_format: str | None
    separator: str | None

    def refuse(self) -> None:
        """Raise ``DeclarationError`` if one of them was given without a file."""
        given = [name for name in self.__slots__ if getattr(self, name) is not None]
        if given:
            name = {"id_columns": "id", "file_format": "format"}.get(given[0], given[0].replace("_", "-"))
            raise DeclarationError(f"--{name} belongs to files with rows: name a FILE, or leave it out")


def options_of_rows(command: F) -> F:
    """Add the options to a command. It gets them as ``rows``."""

    @functools.wraps(command)
    def gathered(*arguments: Any, **others: Any) -> Any:
        rows = RowOptions(**{name: others.pop(name) for name in RowOptions.__slots__})
        return command(*arguments, rows=rows, **others)

    for option in reversed(_OPTIONS):
        gathered = option(gathered)
    return gathered  # type: ignore[return-value]  # the wrapper has the command's other parameters


def reconcile_files(
    files: tuple[str, ...],
    options: RowOptions,
    database: str | None,
    archives: tuple[str, ...],
    spark_options: SparkOptions,
) -> Any:
    """Return the report on the rows of the files."""
    if options.stage is None or options.id_columns is None:
        raise DeclarationError("files with rows need --stage STAGE, and --id COLUMNS to make flow ids")
    job = load_job("reconcile_rows")
    from stagepost.pipeline.files import chosen_format  # noqa: PLC0415 - it needs an extra

    rows = job.RowFiles(
        files=files,
        file_format=chosen_format(options.file_format, files),
        id_columns=[each.strip() for each in options.id_columns.split(",")],
        flow_prefix=options.stage if options.flow_prefix is None else options.flow_prefix,
        amount=options.amount,
        separator=options.separator or ",",
    )
    rows.check()
    with existing_store(database) as (store, access):
        # Before the position: a flow that leaves meanwhile has lines behind it.
        held = held_by(access)
        by_store = archives_by_store(archives)
        archive = by_store.pop(access.session.edge.store(), None)
        refuse_others(by_store)
        service = job.Service.read(store.address, access.session, SystemClock(), archive)
    job.check_stage(service, options.stage)
    with (
        stoppable() as request,
        session("stagepost reconcile", spark_options) as spark,
        job_progress(spark, "stagepost reconcile") as shown,
    ):
        return run_job(
            lambda: job.reconcile_rows(
                spark,
                service,
                rows,
                options.stage,
                held=held,
                since=options.since,
                until=options.until,
                describe=shown.describe,
            ),
            request,
            partial(cancel_jobs, spark),
            shown.look,
        )
    raise AssertionError  # a request to stop has ended the command


def print_rows(found: dict[str, Any]) -> None:
    out = console()
    whole = f", whole from {found['proved_from'][:19]}Z on" if found["proved_from"] else ""
    out.print(f"{found['url']}, read until {found['seen_until'][:19]}Z{whole}")
    if found["held"] != 0:
        held = "unknown" if found["held"] is None else counted(found["held"], "started flow")
        out.print(f"not in the queue yet: {held}. So no row is proved lost; run the command again later")
    verdict = "[green]rows and committed messages are the same[/]"
    if not found["clean"]:
        verdict = "[red]rows and committed messages differ[/]"
    out.print(f"{counted(found['rows'], 'row')} against the stage {plain(found['stage'])}: {verdict}")
    if found["amount"] is not None:
        out.print(f"sum of the rows {found['amount']}, sum of the committed messages {found['committed_amount']}")
    table = Table(Column("verdict", no_wrap=True), Column("rows", justify="right"), box=None)
    for name, number in found["counts"].items():
        if number or name == "ok":
            table.add_row(name.replace("_", " "), str(number))
    out.print(table)
    out.print(f"{found['differing']} of {found['buckets']} groups of flows were compared flow by flow")
    for name, rows in found["findings"].items():
        for row in rows[:FINDINGS_SHOWN]:
            out.print(f"  [red]{name}[/]  {_described(row)}")
        if len(rows) > FINDINGS_SHOWN:
            out.print(f"  [red]{name}[/]  … and more; --json lists a hundred")


def _described(row: dict[str, Any]) -> str:
    if "reason" in row:
        return f"{plain(row['place'])}  {plain(row['reason'])}"
    parts = [f"flow {plain(row['flow_id'])}", counted(row["rows"], "row"), counted(row["commits"], "commit")]
    if row["amount"] is not None or row["committed_amount"] is not None:
        parts.append(f"amount {row['amount'] or 'none'}, committed {row['committed_amount'] or 'none'}")
    if row["place"]:
        parts.append(plain(row["place"]))
    return "  ".join(parts)
