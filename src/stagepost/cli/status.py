"""``stagepost status``"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

import click
from rich.table import Column, Table

from stagepost.cli.exits import readable_errors
from stagepost.cli.options import database_option, existing_store, json_option
from stagepost.cli.show import console, duration, echo
from stagepost.flow.clock import SystemClock
from stagepost.observe.retention import ROWS_MAX, Kept
from stagepost.observe.status import Status, read_status
from stagepost.ports.circuits import CircuitBreaker
from stagepost.ports.edge import EdgeState, EdgeView
from stagepost.ports.effects import EffectFigures
from stagepost.ports.outbox import Backlog
from stagepost.runtime.declarations import describe_undeclared
from stagepost.transaction.retention import DAY


@click.command()
@database_option
@json_option
def status(database: str | None, as_json: bool) -> None:
    """Show waiting and running messages, workers, and paused stages."""
    clock = SystemClock()
    with readable_errors(), existing_store(database) as (store, access):
        found = read_status(store, access, clock)
        position = access.session.journal.position()
    if as_json:
        fields = asdict(found) | {"held": found.held._asdict(), "unmarked": found.unmarked._asdict()}
        fields["effects"] = found.effects._asdict()
        for name in ("undeclared", "retention", "brokers"):
            fields[name] = [each._asdict() for each in fields[name]]
        echo(json.dumps({"database": store.url, "drained": found.is_drained, "position": str(position), **fields}))
    else:
        _print(store.url, found, clock.now())


def _print(url: str, found: Status, now: int) -> None:
    out = console()
    out.print(f"[bold]{url}[/bold]  {'drained' if found.is_drained else 'work to do'}")
    table = Table("stage", *_right("ready", "claimed", "delayed", "suspect", "dead", "oldest flow"), box=None)
    for each in found.depths:
        numbers = (each.ready, each.claimed, each.delayed, each.suspect, each.dead)
        age = "" if each.oldest_at is None else duration(now - each.oldest_at)
        table.add_row(each.stage, *(str(number) if number else "·" for number in numbers), age)
    out.print(table if found.depths else "no message waits, and none is dead")
    if found.held.size:
        out.print(f"{found.held.size} started and not in the queue yet{_since(found.held, now)}")
    if found.unmarked.size:
        out.print(f"{found.unmarked.size} handled and not marked as sent yet{_since(found.unmarked, now)}")
    for line in _describe_effects(found.effects, now):
        out.print(line)
    for stage in found.undeclared:
        out.print(describe_undeclared(stage), style="red", markup=False)
    for breaker in found.paused:
        out.print(_describe_pause(breaker, now), style="red", markup=False)
    if found.retention:
        out.print(_retention(found.retention))
        out.print("an age counts each hour of the clock that began since, while a worker ran: 1 h may be minutes")
    for worker in found.workers:
        out.print(
            f"{worker.node}  {worker.state}, runs {worker.running}, since {duration(now - worker.started_at)}",
            style=None if worker.state == "alive" else "red",
        )
    for view in found.brokers:
        style = None if view.state == "connected" else "red"
        out.print(_describe_broker(view, now), style=style, markup=False, soft_wrap=True)
    if not found.workers:
        out.print("no worker is running")


STATES: Mapping[EdgeState, str] = {
    "connected": "connected",
    "full": "connected, and receives nothing",
    "blocked": "blocked",
    "away": "away",
}


def _describe_broker(view: EdgeView, now: int) -> str:
    reason = f": {view.reason}" if view.reason else ""
    counts = f"{view.arrived} arrived, {view.dispatched} dispatched by {view.node}"
    return f"{view.broker}  {STATES[view.state]} for {duration(now - view.since)}, {counts}{reason}"


def _retention(kept: Sequence[Kept]) -> Table:
    table = Table("kept", *_right("retention", "age", "rows"), "until", box=None)
    for each in kept:
        retention = "no end" if each.hours is None else _counted_hours(each.hours)
        rows = "" if each.rows is None else f"{each.rows}{'+' if each.rows == ROWS_MAX else ''}"
        age = "·" if each.oldest_hours is None else _counted_hours(each.oldest_hours)
        table.add_row(each.what, "·" if each.until else retention, age, rows, each.until)
    return table


def _counted_hours(hours: int) -> str:
    """Return a number of hours of housekeeping. They are a count, so it never has minutes."""
    return f"{hours} h" if hours < 2 * DAY else f"{hours // DAY} d" + (f" {hours % DAY} h" if hours % DAY else "")


def _describe_effects(found: EffectFigures, now: int) -> Iterator[str]:
    if found.unknown_since is not None:
        oldest = duration(now - found.unknown_since)
        yield f"{found.unknown} effects called and without a result, the oldest for {oldest}"
    if found.repeated:
        yield f"{found.repeated} calls of effects possibly repeated"
    if found.doubted:
        yield f"{found.doubted} effects possibly done, not undone"


def _since(backlog: Backlog, now: int) -> str:
    return "" if backlog.oldest_at is None else f", the oldest for {duration(now - backlog.oldest_at)}"


def _describe_pause(breaker: CircuitBreaker, now: int) -> str:
    pause = breaker.pause
    assert pause is not None, "only paused stages are described"
    wait = pause.next_probe_at - now
    next_probe = f"next probe in {duration(wait)}" if wait > 0 else "probed now, or when a message comes"
    return (
        f"{breaker.stage}  paused for {duration(now - pause.since)}, {pause.probes} probes failed, {next_probe}; "
        f"last error: {breaker.error}"
    )


def _right(*names: str) -> list[Column]:
    return [Column(name, justify="right") for name in names]
