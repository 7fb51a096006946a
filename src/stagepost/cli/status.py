"""``stagepost status``"""

from __future__ import annotations

import json
from dataclasses import asdict

import click
from rich.table import Column, Table

from stagepost.cli.exits import readable_errors
from stagepost.cli.options import database_option, json_option, open_for_reading
from stagepost.cli.show import console, duration
from stagepost.flow.clock import SystemClock
from stagepost.observe.status import Status, read_status


@click.command()
@database_option
@json_option
def status(database: str | None, as_json: bool) -> None:
    """What waits, what runs, and who works on it."""
    clock = SystemClock()
    with readable_errors():
        store, access = open_for_reading(database)
        found = read_status(store, access, clock)
        access.session.close()
    if as_json:
        click.echo(json.dumps({"database": store.url, "drained": found.is_drained, **asdict(found)}))
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
    for worker in found.workers:
        out.print(
            f"{worker.node}  {worker.state}, runs {worker.running}, since {duration(now - worker.started_at)}",
            style=None if worker.state == "alive" else "red",
        )
    if not found.workers:
        out.print("no worker is running")


def _right(*names: str) -> list[Column]:
    return [Column(name, justify="right") for name in names]
