"""``stagepost audit``, and its report on a terminal."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Column, Table

from stagepost.app.endpoints import check_address
from stagepost.cli.audit_series import AuditSeries
from stagepost.cli.exits import BAD_NEWS, readable_errors
from stagepost.cli.findings import findings_of, keep, send
from stagepost.cli.interruption import stoppable
from stagepost.cli.job_progress import job_progress
from stagepost.cli.options import database_option, existing_store, held_by, json_option
from stagepost.cli.show import console, echo, plain, reserve_stdout
from stagepost.cli.spark import cancel_jobs, load_job, on_spark, run_job, session
from stagepost.flow.clock import SystemClock
from stagepost.flow.errors import DeclarationError
from stagepost.pipeline.report.advice import HOUR_SECONDS, LetterFacts
from stagepost.pipeline.report.scale import milliseconds, size
from stagepost.pipeline.spark_options import SparkOptions
from stagepost.ports.audits import AuditFinding
from stagepost.ports.dead_letters import DeadLetters, LetterGroup, Selection
from stagepost.ports.findings import counted
from stagepost.ports.journal import Position
from stagepost.ports.session import Session

WINDOWS_SHOWN = 20
FINDINGS_SHOWN = 10
STAGE_COUNTS = ("sent", "committed", "expired", "dead", "edited", "open", "failures", "deaths")

Rows = list[dict[str, Any]]


@click.command()
@database_option
@on_spark
@click.option("--window", type=click.IntRange(1), default=60, show_default=True, help="Seconds of a window of origin.")
@click.option("--late", type=click.IntRange(0), default=300, show_default=True, help="Seconds until a window is final.")
@click.option(
    "--stuck", type=click.IntRange(1), default=600, show_default=True, help="Seconds until a waiting message is stuck."
)
@click.option(
    "--outage", type=click.IntRange(0), default=72, show_default=True, help="Hours of the longest outage to plan for."
)
@click.option(
    "--html", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="Write a page with plots."
)
@click.option(
    "--findings-to", metavar="ENDPOINT", help="Send each finding to this endpoint, once however often it is found."
)
@click.option(
    "--state",
    "state_folder",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    help="Continue where the last audit with this folder ended.",
)
@click.option(
    "--keep",
    "keep_hours",
    type=click.IntRange(0),
    default=72,
    show_default=True,
    help="Hours for which --state keeps ended flows.",
)
@json_option
def audit(
    database: str | None,
    spark_options: SparkOptions,
    window: int,
    late: int,
    stuck: int,
    outage: int,
    html: Path | None,
    findings_to: str | None,
    state_folder: Path | None,
    keep_hours: int,
    as_json: bool,
) -> None:
    """Prove from the journal that each message was executed once, or set aside with its reason.

    Exits with 1 if a message is lost or doubled, or if an open transaction keeps final windows from being proved. The
    audit looks a second time for messages that seem lost: in the queue, the dead letters and the newest journal lines.
    """
    with readable_errors(), reserve_stdout():
        check_writable(html)
        if findings_to is not None:
            check_address(findings_to)
        job = load_job("audit")
        with existing_store(database) as (store, access):
            # The state is read before the position, so that it ends before it.
            series = None if state_folder is None else AuditSeries.begin(state_folder, access.session, SystemClock())
            # The time is read before the position, so rows written between belong to a window that is not over.
            at = SystemClock().now()
            until = access.session.journal.position()
            unseen = access.session.journal.since(until).lines
            held = held_by(access)
            letters = [with_cause(access.session.dead_letters, each) for each in access.session.dead_letters.groups()]
        terms = job.AuditTerms(
            window_seconds=window,
            late_seconds=late,
            stuck_seconds=stuck,
            outage_seconds=outage * HOUR_SECONDS,
            keep_seconds=keep_hours * HOUR_SECONDS,
        )
        former = None
        if series is not None and series.former is not None:
            former = job.AuditState.read(Path(series.former.folder), window)
            former.check_end(until)
        with (
            abandoned_on_error(series),
            stoppable() as request,
            session("stagepost audit", spark_options) as spark,
            job_progress(spark, "stagepost audit") as shown,
        ):
            report = run_job(
                lambda: job.audit(
                    spark,
                    store.address,
                    until=until,
                    at=at,
                    terms=terms,
                    unseen=unseen,
                    letters=letters,
                    former=former,
                    save_to=None if series is None else series.folder,
                    describe=shown.describe,
                ),
                request,
                partial(cancel_jobs, spark),
                shown.look,
            )
        report = replace(report, held=held)
        found = report.as_dict()
        findings = findings_of(found)
        with existing_store(database) as (_, access):
            keep_findings(access.session, findings, at, series, until)
        if findings_to is not None:
            new = send(findings_to, database, findings)
            echo(f"{counted(new, 'new finding')} of {len(findings)} sent to {findings_to}", err=True)
    if html is not None:
        html.write_text(report.as_html(), encoding="utf-8")
    if as_json:
        echo(json.dumps(found))
    else:
        print_report(found)
        if html is not None:
            echo(f"\nthe page is in {html}")
    if not (report.is_clean and report.is_complete):
        raise click.exceptions.Exit(BAD_NEWS)


@contextmanager
def abandoned_on_error(series: AuditSeries | None) -> Iterator[None]:
    """Remove the state of an audit that fails or is interrupted."""
    try:
        yield
    except BaseException:
        if series is not None:
            series.abandon()
        raise


def keep_findings(
    session: Session, findings: list[AuditFinding], now: int, series: AuditSeries | None, until: Position
) -> None:
    """Keep the findings, and name the state of a series in the same commit."""
    if series is None:
        keep(session, findings, now)
    else:
        series.end(session, findings, until, now)


def check_writable(path: Path | None) -> None:
    """Raise ``DeclarationError`` if the page cannot be written, before Java starts."""
    if path is None:
        return
    folder = path.absolute().parent
    if not folder.is_dir():
        raise DeclarationError(f"--html {path}: the folder {folder} does not exist. Make it, or name another one.")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise DeclarationError(f"--html {path}: it cannot be written. Change its permissions, or name another file.")


def with_cause(dead_letters: DeadLetters, group: LetterGroup) -> LetterFacts:
    """Return the group with the cause of its latest letter, which may be gone by now."""
    for kept in dead_letters.select(Selection("id", group.latest_id)):
        cause = kept.letter.causes[0]
        return LetterFacts(group, f"{cause.type}: {cause.message}")
    return LetterFacts(group, "")


def print_report(found: dict[str, Any]) -> None:
    out = console()
    flows = found["flows"]
    out.rule(f"audit of {found['url']}", align="left")
    out.print(
        f"{found['waypoints']} waypoints of {flows['flows']} flows: {flows['completed']} completed, "
        f"{flows['dead']} ended in a dead letter, {flows['under_way']} under way"
    )
    verdict = "[green]every message was executed exactly once, or is accounted for[/]"
    if not found["clean"]:
        verdict = "[red]not every message was executed exactly once[/]"
    out.print(f"lost {_count(found['lost_count'])}   doubled {_count(found['doubled_count'])}   {verdict}")
    if found["in_doubt_count"] or found["doubted_count"]:
        out.print(
            f"in doubt {_count(found['in_doubt_count'])}   doubted {_count(found['doubted_count'])}   "
            "[yellow]direct modes do not prove each message: see docs/brokers.md[/]"
        )
    if found["unseen"]:
        colour = "yellow" if found["complete"] else "red"
        out.print(
            f"[{colour}]not proved yet: {counted(found['unseen'], 'waypoint')} from {found['seen_until'][:19]}Z on, "
            "written after this audit began, or behind an open transaction; 'stagepost doctor' names long ones[/]"
        )
    if found["held"]:
        out.print(f"{counted(found['held'], 'started flow')} not in the queue yet, and not in this audit")
    if found["continued_from"] is not None:
        out.print("continued from the last audit: doubles of flows that were settled before, only a full audit finds")
    for row in found["reopened"]:
        out.print(
            f"  [yellow]reopened[/]  the window from {row['window'][:19]}Z, which was final, is now {row['state']}"
        )
    for name in ("lost", "doubled", "in_doubt", "stuck"):
        _findings(out, name, found[name], found[f"{name}_count"])
    _stages(out, found["stages"], {row["stage"]: row for row in found["latency"]})
    _windows(out, found["windows"])
    _letters(out, found["dead_letters"])
    _retention(out, found["retention"])
    _work(out, found["work"])
    _growth(out, found["growth"])


def _count(number: int) -> str:
    return f"[green]{number}[/]" if number == 0 else f"[bold red]{number}[/]"


def _findings(out: Console, name: str, rows: Rows, count: int) -> None:
    for row in rows[:FINDINGS_SHOWN]:
        more = row.get("how") or row.get("place") or ""
        out.print(
            f"  [red]{name}[/]  {row['stage']}  flow {plain(row['flow_id'])}  message {row['message_id']}  {more}"
        )
    if count > FINDINGS_SHOWN:
        out.print(f"  [red]{name}[/]  … and {count - FINDINGS_SHOWN} more; --json lists a hundred")


def _stages(out: Console, rows: Rows, latency: dict[str, dict[str, Any]]) -> None:
    table = _table("stages", "stage", *STAGE_COUNTS, "wait ms p50", "p99", "run ms p50", "p99")
    for row in rows:
        hop = latency.get(row["stage"], {})
        table.add_row(
            row["stage"],
            *(_plain(row[name]) for name in STAGE_COUNTS),
            *(_milliseconds(hop.get(name)) for name in ("wait_p50", "wait_p99", "run_p50", "run_p99")),
        )
    out.print(table)


def _windows(out: Console, rows: Rows) -> None:
    names = ("flows", "sent", "committed", "expired", "dead", "edited", "open", "lost", "doubled")
    table = _table("windows of origin", "from", *names, "state")
    for row in rows[-WINDOWS_SHOWN:]:
        table.add_row(row["window"][:19] + "Z", *(_plain(row[name]) for name in names), row["state"])
    out.print(table)
    if len(rows) > WINDOWS_SHOWN:
        out.print(f"  the last {WINDOWS_SHOWN} of {len(rows)} windows; --json lists all")


def _letters(out: Console, rows: Rows) -> None:
    if not rows:
        out.print("\nno dead letters")
        return
    table = Table(
        Column("group", no_wrap=True),
        Column("stage", no_wrap=True),
        Column("why", no_wrap=True),
        Column("verdict", no_wrap=True),
        Column("letters", justify="right"),
        Column("a sample", overflow="ellipsis", no_wrap=True),
        title="dead letters",
        title_justify="left",
        box=None,
    )
    for row in rows:
        table.add_row(
            row["fingerprint"], row["stage"], row["reason"], row["verdict"], str(row["letters"]), plain(row["cause"])
        )
    out.print(table)


def _retention(out: Console, rows: Rows) -> None:
    table = _table(
        "retention of ids", "stage", "late copies", "lag p99", "lag max", "slowest delivery", "keep", "about"
    )
    for row in rows:
        lags = (milliseconds(row[name]) for name in ("lag_p99", "lag_max", "slowest_delivery"))
        table.add_row(row["stage"], _plain(row["duplicates"]), *lags, f"{row['keep_hours']} h", size(row["bytes"]))
    out.print(table)


def _growth(out: Console, growth: dict[str, float]) -> None:
    out.print(
        f"\nthe journal grows by {growth['waypoints_per_day']:,.0f} waypoints a day, for "
        f"{growth['messages_per_day']:,.0f} messages with {size(growth['envelope_bytes_per_day'])} of envelopes"
    )


def _work(out: Console, rows: Rows) -> None:
    table = _table("committed messages", "node", "messages")
    for row in rows:
        table.add_row(row["node"], str(row["committed"]))
    out.print(table)


def _table(title: str, first: str, *numbers: str) -> Table:
    columns = [Column(first, no_wrap=True), *(Column(name, justify="right") for name in numbers)]
    return Table(*columns, title=f"\n{title}", title_justify="left", title_style="bold", box=None)


def _plain(number: int) -> str:
    return str(number) if number else "·"


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
