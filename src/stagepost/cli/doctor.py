"""``stagepost doctor``"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console
from rich.padding import Padding
from rich.table import Column, Table

from stagepost.app.app import remotes_of
from stagepost.app.loading import load_app
from stagepost.cli.exits import BAD_NEWS, CANNOT, readable_errors
from stagepost.cli.options import database_option, json_option
from stagepost.cli.show import console, echo, plain
from stagepost.flow.clock import SystemClock
from stagepost.observe.doctor import Report, examine, examine_broker
from stagepost.ports.findings import SEVERITIES, Culprit, Finding, size, span
from stagepost.runtime.settings import read_settings

STYLES = {"ok": "green", "warning": "yellow", "critical": "bold red"}


@click.command()
@database_option
@json_option
@click.option(
    "--app", "app_name", metavar="MODULE:APP", help="Also examine the addresses at the broker that this app sends to."
)
@click.option("--thorough", is_flag=True, help="Read all of an SQLite file, to find damage. This may take long.")
def doctor(database: str | None, as_json: bool, app_name: str | None, thorough: bool) -> None:
    """Find present and coming problems of the store, and explain why each matters and what to do.

    If the settings name two databases, the command examines both. With --database, it examines that one.

    \b
    Exit codes: 0 no finding is critical, 1 a finding is critical, 2 a store cannot be examined.
    """
    clock = SystemClock()
    with readable_errors():
        settings = read_settings(database=database)
        reports = [examine(settings.database, settings.database_source, clock, thorough=thorough)]
        if database is None and settings.queue is not None:
            reports.append(examine(settings.queue, settings.queue_source, clock, thorough=thorough))
        if database is None and settings.broker is not None:
            # The receiver writes to the database that has the messages.
            edge = reports[-1].edge
            targets = remotes_of(load_app(app_name)) if app_name is not None else []
            reports[0].findings.extend(examine_broker(settings.broker, clock, edge, targets))
    if as_json:
        reported = [_json(each) for each in reports]
        echo(json.dumps({**reported[0], "queue": reported[1] if len(reported) > 1 else None}))
    else:
        for number, each in enumerate(reports):
            _print(each, is_first=number == 0)
    if not all(each.place for each in reports):
        raise click.exceptions.Exit(CANNOT)
    if "critical" in {each.severity for each in reports}:
        raise click.exceptions.Exit(BAD_NEWS)


def _json(report: Report) -> dict[str, Any]:
    return {
        "database": report.place,
        "looked": report.place is not None,
        "severity": report.severity,
        "findings": [asdict(each) for each in report.findings],
    }


def _print(report: Report, *, is_first: bool) -> None:
    out = console()
    if not is_first:
        out.print()
    counts = Counter(each.severity for each in report.findings)
    out.print(
        f"[bold]{plain(report.place or 'cannot be examined')}[/bold]  "
        + ", ".join(f"[{STYLES[each]}]{counts[each]} {each}[/]" for each in reversed(SEVERITIES) if counts[each])
    )
    for each in report.findings:
        if each.severity != "ok":
            _print_trouble(out, each)
    well = Table(
        Column(no_wrap=True), Column(no_wrap=True), Column(), box=None, show_header=False, padding=(0, 2, 0, 0)
    )
    for each in report.findings:
        if each.severity == "ok":
            well.add_row(f"[{STYLES['ok']}]ok[/]", each.code, plain(each.seen))
    if well.row_count:
        out.print()
        out.print(well)


def _print_trouble(out: Console, finding: Finding) -> None:
    out.print(
        f"\n[{STYLES[finding.severity]}]{finding.severity}[/]  [bold]{finding.code}[/bold]  {plain(finding.seen)}"
    )
    table = Table(Column(no_wrap=True, style="dim"), Column(), box=None, show_header=False, padding=(0, 2, 0, 0))
    for culprit in finding.who:
        table.add_row("", plain(_format_culprit(culprit)))
    table.add_row("why", plain(finding.why))
    table.add_row("do", plain(finding.remedy))
    out.print(Padding(table, (0, 0, 0, 2)))


def _format_culprit(culprit: Culprit) -> str:
    return ", ".join(_format_value(name, value) for name, value in culprit.items() if value not in (None, ""))


def _format_value(name: str, value: Any) -> str:
    if name.endswith("_seconds"):
        return f"{name.removesuffix('_seconds').replace('_', ' ')} {span(value)}"
    if name.endswith("_bytes"):
        return f"{name.removesuffix('_bytes').replace('_', ' ')} {size(value)}"
    return f"{name.replace('_', ' ')} {value:,}" if isinstance(value, int) and name != "pid" else f"{name} {value}"
