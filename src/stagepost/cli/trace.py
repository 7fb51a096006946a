"""``stagepost trace``"""

from __future__ import annotations

import json
from typing import Any

import click
from msgspec import structs
from rich.markup import escape
from rich.tree import Tree

from stagepost.cli.exits import BAD_NEWS, readable_errors
from stagepost.cli.options import database_option, json_option, open_for_reading
from stagepost.cli.show import clock_time, console, duration, moment
from stagepost.flow.waypoint import Waypoint
from stagepost.observe.trace import Trace, TracedMessage, read_trace

COLOURS = {"completed": "green", "committed": "green", "dead": "red", "edited": "cyan", "under way": "yellow"}


@click.command()
@click.argument("flow_or_message_id", metavar="ID")
@database_option
@json_option
def trace(flow_or_message_id: str, database: str | None, as_json: bool) -> None:
    """The whole history of a flow, by its id or by that of one of its messages, as a tree."""
    with readable_errors():
        _, access = open_for_reading(database)
        found = read_trace(access.session.reader, flow_or_message_id)
        access.session.close()
    if found is None:
        if as_json:
            click.echo(json.dumps(None))
        else:
            click.echo(f"the journal knows no flow and no message {flow_or_message_id!r}", err=True)
        raise click.exceptions.Exit(BAD_NEWS)
    if as_json:
        click.echo(json.dumps(_as_json(found)))
    else:
        console().print(_tree(found))


def _tree(found: Trace) -> Tree:
    standing = f"[{COLOURS[found.standing]}]{found.standing}[/]"
    tree = Tree(
        f"[bold]{escape(found.flow_id)}[/bold]  {standing}, {len(found.messages)} messages, began "
        f"{moment(found.began_at)}, "
        f"took {duration(found.last_at - found.began_at)}"
    )
    for root in found.roots:
        _add(tree, root)
    return tree


def _add(tree: Tree, message: TracedMessage) -> None:
    colour = COLOURS.get(message.standing, "yellow")
    branch = tree.add(
        f"[bold]{escape(message.stage)}[/bold]  [{colour}]{message.standing}[/]  [dim]{message.kind or ''} "
        f"{escape(message.message_id)}[/dim]"
    )
    for waypoint in message.waypoints:
        branch.add(_line(waypoint), guide_style="dim")
    for caused in message.caused:
        _add(branch, caused)


def _line(waypoint: Waypoint) -> str:
    parts = [f"[dim]{clock_time(waypoint.at)}[/dim] {waypoint.waypoint:<9}"]
    if waypoint.attempt > 1:
        parts.append(f"attempt {waypoint.attempt}")
    if waypoint.ms is not None:
        parts.append(duration(waypoint.ms * 1_000))
    if waypoint.bytes is not None:
        parts.append(f"{waypoint.bytes} bytes")
    parts.append(f"[dim]{escape(waypoint.node)}[/dim]")
    if waypoint.detail:
        parts.append(escape(waypoint.detail))
    return "  ".join(parts)


def _as_json(found: Trace) -> dict[str, Any]:
    return {
        "flow_id": found.flow_id,
        "standing": found.standing,
        "messages": [
            {
                "message_id": each.message_id,
                "stage": each.stage,
                "cause_id": each.cause_id,
                "kind": each.kind,
                "standing": each.standing,
                "waypoints": [structs.asdict(waypoint) for waypoint in each.waypoints],
            }
            for each in found.messages.values()
        ],
    }
