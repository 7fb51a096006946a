"""The audit's report, as a terminal shows it."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Column, Table

from stagepost.cli.show import console, plain
from stagepost.observe.checks.finding import counted

WINDOWS_SHOWN = 20
FINDINGS_SHOWN = 10
STAGE_COUNTS = ("sent", "committed", "expired", "dead", "edited", "open", "failures", "deaths")

Rows = list[dict[str, Any]]


def print_report(found: dict[str, Any]) -> None:
    out = console()
    flows = found["flows"]
    out.rule(f"audit of {found['url']}", align="left")
    out.print(
        f"{found['waypoints']} waypoints tell of {flows['flows']} flows: {flows['completed']} completed, "
        f"{flows['dead']} ended "
        f"in a dead letter, {flows['under_way']} under way"
    )
    verdict = "[green]every message was executed exactly once, or is accounted for[/]"
    if not found["clean"]:
        verdict = "[red]not every message was executed exactly once[/]"
    out.print(f"lost {_count(found['lost_count'])}   doubled {_count(found['doubled_count'])}   {verdict}")
    if found["unseen"]:
        colour = "yellow" if found["complete"] else "red"
        out.print(
            f"[{colour}]not proved yet: {counted(found['unseen'], 'waypoint')} from {found['seen_until'][:19]}Z on, "
            "after this look or behind a transaction that is open; 'stagepost doctor' names those that are for long[/]"
        )
    _findings(out, "lost", found["lost"], found["lost_count"])
    _findings(out, "doubled", found["doubled"], found["doubled_count"])
    _findings(out, "stuck", found["stuck"], found["stuck_count"])
    _stages(out, found["stages"], {row["stage"]: row for row in found["latency"]})
    _windows(out, found["windows"])
    _letters(out, found["dead_letters"])
    _work(out, found["work"])


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
    table = _table(
        "stages",
        "stage",
        "sent",
        "committed",
        "expired",
        "dead",
        "edited",
        "open",
        "failures",
        "deaths",
        "wait ms p50",
        "p99",
        "run ms p50",
        "p99",
    )
    for row in rows:
        hop = latency.get(row["stage"], {})
        table.add_row(
            row["stage"],
            *(_plain(row[name]) for name in STAGE_COUNTS),
            *(_milliseconds(hop.get(name)) for name in ("wait_p50", "wait_p99", "run_p50", "run_p99")),
        )
    out.print(table)


def _windows(out: Console, rows: Rows) -> None:
    shown = rows[-WINDOWS_SHOWN:]
    names = ("flows", "sent", "committed", "expired", "dead", "edited", "open", "lost", "doubled")
    table = _table("windows of origin", "from", *names, "state")
    for row in shown:
        table.add_row(row["window"][:19] + "Z", *(_plain(row[name]) for name in names), row["state"])
    out.print(table)
    if len(rows) > len(shown):
        out.print(f"  the last {len(shown)} of {len(rows)} windows; --json lists all")


def _letters(out: Console, rows: Rows) -> None:
    if not rows:
        out.print("\nno dead letters")
        return
    table = Table(
        Column("group", no_wrap=True),
        Column("stage", no_wrap=True),
        Column("why", no_wrap=True),
        Column("letters", justify="right"),
        Column("a sample", overflow="ellipsis", no_wrap=True),
        title="dead letters",
        title_justify="left",
        box=None,
    )
    for row in rows:
        table.add_row(row["fingerprint"], row["stage"], row["reason"], str(row["letters"]), plain(row["cause"]))
    out.print(table)


def _work(out: Console, rows: Rows) -> None:
    table = _table("who committed how many", "node", "messages")
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
