"""``stagepost quarantine list | show``: the rows of bulk runs that started no flow, each with its reason."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click
from rich.table import Column, Table

from stagepost.cli.exits import fail, readable_errors
from stagepost.cli.options import database_option, existing_store, json_option
from stagepost.cli.show import console, echo, moment, plain
from stagepost.flow.texts import lines
from stagepost.ports.runs import Quarantined, Run, Runs

RUNS_MAX = 20
ROWS_DEFAULT = 50
ROWS_MAX = 10_000
REASON_SHOWN = 300
ROW_SHOWN = 65_536


@click.group()
def quarantine() -> None:
    """List and show quarantined rows: rows of files and DataFrames that started no flow."""


@quarantine.command("list")
@click.option("--run", "run_id", metavar="ID", help="The rows of one run, by file and record.")
@click.option(
    "--limit",
    type=click.IntRange(1, ROWS_MAX),
    default=ROWS_DEFAULT,
    show_default=True,
    help="With --run: how many rows to list.",
)
@click.option("--after", metavar="FILE:RECORD", help="With --run: list the rows behind this one.")
@database_option
@json_option
def list_(run_id: str | None, limit: int, after: str | None, database: str | None, as_json: bool) -> None:
    """List the newest runs that quarantined rows, or the rows of one run."""
    with readable_errors(), existing_store(database) as (_, access):
        runs = access.session.runs
        if run_id is None:
            _print_runs(runs.with_quarantine(RUNS_MAX), as_json)
            return
        file, _, record = (after or ":0").rpartition(":")
        if not record.isdecimal():
            raise click.BadParameter("it is not FILE:RECORD, such as orders.csv:17", param_hint="--after")
        rows = runs.quarantined(run_id, limit + 1, (file, int(record)))
    _print_rows(run_id, rows[:limit], as_json, has_more=len(rows) > limit)


@quarantine.command()
@click.argument("run_id", metavar="RUN")
@click.argument("file")
@click.argument("record", type=click.IntRange(1))
@database_option
@json_option
def show(run_id: str, file: str, record: int, database: str | None, as_json: bool) -> None:
    """Show one quarantined row: its reason, and its whole text."""
    with readable_errors(), existing_store(database) as (_, access):
        row = next(_rows_at(access.session.runs, run_id, file, record), None)
    if row is None:
        fail(
            f"run {run_id} quarantined no record {record} of {file}; stagepost quarantine list --run {run_id} "
            "lists its rows"
        )
    if as_json:
        echo(json.dumps(row._asdict()))
        return
    table = Table(Column(style="bold"), Column(overflow="fold"), box=None, show_header=False)
    table.add_row("run", plain(run_id))
    table.add_row("file", plain(row.file))
    table.add_row("record", str(row.record))
    table.add_row("flow", plain(row.flow_id or "none"))
    table.add_row("why", plain(row.reason))
    out = console()
    out.print(table)
    out.rule("row", align="left")
    echo(lines(row.row[:ROW_SHOWN]))
    if len(row.row) > ROW_SHOWN:
        echo(f"... {len(row.row):,} characters in all; --json shows all of them")


def _rows_at(runs: Runs, run_id: str, file: str, record: int) -> Iterator[Quarantined]:
    """Yield the row of that file and record. A run names files with their folder, so a bare name is of this folder."""
    for name in (file, str(Path(file).resolve())):
        rows = runs.quarantined(run_id, 1, (name, record - 1))
        yield from (row for row in rows if (row.file, row.record) == (name, record))


def _print_runs(runs: list[Run], as_json: bool) -> None:
    if as_json:
        echo(json.dumps([asdict(each) for each in runs]))
        return
    if not runs:
        echo("no quarantined rows")
        return
    table = Table(
        Column("run", no_wrap=True),
        Column("began", no_wrap=True),
        "target",
        Column("quarantined", justify="right"),
        "source",
        box=None,
    )
    for each in runs:
        table.add_row(
            plain(each.id),
            moment(each.started_at),
            plain(each.target),
            str(each.counts.quarantined),
            plain(each.source),
        )
    console().print(table)
    echo("\nstagepost quarantine list --run RUN lists the rows of a run")


def _print_rows(run_id: str, rows: list[Quarantined], as_json: bool, *, has_more: bool) -> None:
    if as_json:
        echo(json.dumps([row._asdict() for row in rows]))
        return
    if not rows:
        echo(f"run {run_id} has no quarantined rows there")
        return
    table = Table(
        Column("file", overflow="fold"),
        Column("record", justify="right"),
        Column("flow", overflow="fold"),
        Column("why", overflow="fold"),
        box=None,
    )
    for row in rows:
        table.add_row(plain(row.file), str(row.record), plain(row.flow_id or ""), plain(row.reason[:REASON_SHOWN]))
    console().print(table)
    if has_more:
        last = rows[-1]
        echo(f"there are more: --after {last.file}:{last.record} lists the next ones")
