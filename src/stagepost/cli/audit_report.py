"""The report of an audit on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table

from stagepost.cli.show import console, plain
from stagepost.pipeline.report.scale import count, milliseconds, size
from stagepost.ports.findings import counted

WINDOWS_SHOWN = 20
FINDINGS_SHOWN = 10
# A disk that is full so soon is shown in red.
FEW_DAYS = 30
FINDINGS = ("lost", "doubled", "in_doubt", "stuck")
STAGE_COUNTS = ("sent", "committed", "expired", "dead", "edited", "open", "failures", "deaths")

# No table is wider.
WIDTH_MAX = 10_000
# The marks of a cell without a figure.
ZERO, NOTHING = "·", ""

Rows = list[dict[str, Any]]


def print_report(found: dict[str, Any]) -> None:
    out = console()
    flows = found["flows"]
    out.rule(f"audit of {plain(found['url'])}", align="left")
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
    if found["archived"]:
        out.print(f"{counted(found['archived'], 'waypoint')} of them were read from the archive")
    if found["has_gap"]:
        out.print("[yellow]earlier waypoints were purged or archived, and are not in this audit[/]: see --archive")
    if found["continued_from"] is not None:
        out.print("continued from the last audit: doubles of flows that were settled before, only a full audit finds")
    for row in found["reopened"]:
        out.print(
            f"  [yellow]reopened[/]  the window from {row['window'][:19]}Z, which was final, is now {row['state']}"
        )
    for name in FINDINGS:
        _findings(out, name, found[name], found[f"{name}_count"])
    _stages(out, found["stages"], {row["stage"]: row for row in found["latency"]})
    _windows(out, found["windows"])
    _letters(out, found["dead_letters"])
    _retention(out, found["retention"], found["types"])
    _work(out, found["work"])
    _growth(out, found["growth"])


def print_line(found: dict[str, Any]) -> None:
    """Print one line about an audit of many, and its findings."""
    out = console()
    parts = [f"{found['flows']['flows']} flows, {found['flows']['under_way']} under way"]
    parts += [f"{name} {_count(found[f'{name}_count'])}" for name in FINDINGS]
    if not found["complete"]:
        parts.append(f"[yellow]{counted(found['unseen'], 'waypoint')} not proved yet[/]")
    days = found["growth"]["days_to_full"]
    if days is not None and days < FEW_DAYS:
        parts.append(f"[red]the disk is full in {count(days)} days[/]")
    out.print(f"{found['at'][:19]}Z  " + "   ".join(parts))
    for row in found["reopened"]:
        out.print(f"  [yellow]reopened[/]  the window from {row['window'][:19]}Z")
    for name in FINDINGS:
        _findings(out, name, found[name], found[f"{name}_count"])


def _count(number: int) -> str:
    return f"[green]{number}[/]" if number == 0 else f"[bold red]{number}[/]"


def _findings(out: Console, name: str, rows: Rows, count: int) -> None:
    for row in rows[:FINDINGS_SHOWN]:
        more = row.get("how") or row.get("place") or ""
        out.print(
            f"  [red]{name}[/]  {plain(row['stage'])}  flow {plain(row['flow_id'])}  message "
            f"{plain(row['message_id'])}  {more}"
        )
    if count > FINDINGS_SHOWN:
        out.print(f"  [red]{name}[/]  … and {count - FINDINGS_SHOWN} more; --json lists a hundred")


def _stages(out: Console, rows: Rows, latency: dict[str, dict[str, Any]]) -> None:
    cells = []
    for row in rows:
        hop = latency.get(row["stage"], {})
        counts = (_plain(row[name]) for name in STAGE_COUNTS)
        times = (_milliseconds(hop.get(name)) for name in ("wait_p50", "wait_p99", "run_p50", "run_p99"))
        cells.append([plain(row["stage"]), *counts, *times])
    _print_table(out, "stages", ("stage", *STAGE_COUNTS, "wait ms p50", "p99", "run ms p50", "p99"), cells)


def _windows(out: Console, rows: Rows) -> None:
    names = ("flows", "sent", "committed", "expired", "dead", "edited", "open", "lost", "doubled")
    cells = [
        [row["window"][:19] + "Z", *(_plain(row[name]) for name in names), row["state"]]
        for row in rows[-WINDOWS_SHOWN:]
    ]
    _print_table(out, "windows of origin", ("from", *names, "state"), cells)
    if len(rows) > WINDOWS_SHOWN:
        out.print(f"  the last {WINDOWS_SHOWN} of {len(rows)} windows; --json lists all")


def _letters(out: Console, rows: Rows) -> None:
    if not rows:
        out.print("\nno dead letters")
        return
    table = Table(
        Column("group", no_wrap=True, min_width=max(cell_len(row["fingerprint"]) for row in rows)),
        Column("stage", no_wrap=True),
        Column("why", no_wrap=True),
        Column("verdict", no_wrap=True),
        Column("letters", justify="right", min_width=len("letters")),
        Column("a sample", overflow="ellipsis", no_wrap=True),
        title="\ndead letters",
        title_justify="left",
        title_style="bold",
        box=None,
    )
    for row in rows:
        table.add_row(
            row["fingerprint"], row["stage"], row["reason"], row["verdict"], str(row["letters"]), plain(row["cause"])
        )
    out.print(table)


def _retention(out: Console, rows: Rows, types: Rows) -> None:
    names = ("late copies", "lag p99", "lag max", "slowest delivery", "keep", "kept now", "about", "guard")
    cells = []
    for row in rows:
        lags = (milliseconds(row[name]) for name in ("lag_p99", "lag_max", "slowest_delivery"))
        kept = NOTHING if row["kept_hours"] is None else f"{row['kept_hours']} h"
        if row["is_too_short"]:
            kept = f"[red]{kept}[/]"
        keep = f"{row['keep_hours']} h"
        duplicates = _plain(row["duplicates"])
        cells.append([plain(row["stage"]), duplicates, *lags, keep, kept, size(row["bytes"]), row["guard"]])
    _print_table(out, "retention of ids", ("stage", *names), cells)
    for row in types:
        stages = counted(row["stages"], "stage")
        out.print(f"  {plain(row['type'])}, of {stages}: keep ids for {row['keep_hours']} h, guard {row['guard']}")


def _growth(out: Console, growth: dict[str, Any]) -> None:
    out.print(
        f"\nthe journal grows by {growth['waypoints_per_day']:,.0f} waypoints a day, for "
        f"{growth['messages_per_day']:,.0f} messages with {size(growth['envelope_bytes_per_day'])} of envelopes"
    )
    if growth["store_bytes"] is not None:
        rate = growth["store_bytes_per_day"]
        more = "" if rate is None else f", and grows by {size(rate)} a day"
        out.print(f"the store takes {size(growth['store_bytes'])}{more}")
    if growth["days_to_full"] is not None:
        colour = "red" if growth["days_to_full"] < FEW_DAYS else "green"
        free = size(growth["free_bytes"])
        out.print(f"[{colour}]the disk is full in {count(growth['days_to_full'])} days[/], with {free} free")
    for each in growth["unknown"]:
        out.print(f"[yellow]unknown[/]  {plain(each)}")


def _work(out: Console, rows: Rows) -> None:
    cells = [[plain(row["node"]), str(row["committed"])] for row in rows]
    _print_table(out, "committed messages", ("node", "messages"), cells)


def _print_table(out: Console, title: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table of figures, and never a part of one.

    On a terminal that is too narrow, columns without a figure are left out. If the others do not fit, the terminal
    wraps the lines.
    """
    if not rows:
        return
    table = _table(out, title, names, rows)
    if _width(out, table) > out.width:
        kept = [at for at in range(len(names)) if at == 0 or any(row[at] not in (ZERO, NOTHING) for row in rows)]
        table = _table(out, title, [names[at] for at in kept], [[row[at] for at in kept] for row in rows])
    before = out.width
    out.width = max(before, _width(out, table))
    out.print(table, crop=False)
    out.width = before


def _table(out: Console, title: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    columns = [Column(names[0], no_wrap=True)]
    for at, name in enumerate(names[1:], 1):
        widest = max((cell_len(out.render_str(row[at]).plain) for row in rows), default=0)
        columns.append(Column(name, justify="right", min_width=max(widest, *map(len, name.split()))))
    table = Table(*columns, title=f"\n{title}", title_justify="left", title_style="bold", box=None)
    for row in rows:
        table.add_row(*row)
    return table


def _width(out: Console, table: Table) -> int:
    """Return the width that the table needs at least."""
    return Measurement.get(out, out.options.update(max_width=WIDTH_MAX), table).minimum


def _plain(number: int) -> str:
    return str(number) if number else ZERO


def _milliseconds(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1f}"
