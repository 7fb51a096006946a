"""``stagepost trace``"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click
from msgspec import structs

from stagepost.cli.archives import archive_option, check_archive, whole_history
from stagepost.cli.exits import BAD_NEWS, readable_errors
from stagepost.cli.options import database_option, existing_store, json_option
from stagepost.cli.show import clock_time, duration, echo, moment
from stagepost.flow.clock import SystemClock
from stagepost.flow.texts import one_line
from stagepost.observe.trace import Trace, TracedMessage, describe_effect, read_trace
from stagepost.ports.effects import LoggedEffect
from stagepost.ports.journal import Waypoint
from stagepost.runtime.assembly import log_of
from stagepost.runtime.settings import archive_of

COLOURS = {
    "completed": "green",
    "committed": "green",
    "confirmed": "green",
    "dead": "red",
    "edited": "cyan",
    "under way": "yellow",
}
Line = TracedMessage | Waypoint | LoggedEffect

# A branch, the last branch, and the indents below these two.
GUIDES = ("├── ", "└── ", "│   ", "    ")
ASCII_GUIDES = ("|-- ", "`-- ", "|   ", "    ")
# A flow may be thousands of messages deep, so deeper messages are not indented further.
INDENTED_MAX = 40


@click.command()
@click.argument("flow_or_message_id", metavar="ID")
@archive_option
@database_option
@json_option
def trace(flow_or_message_id: str, archive: str | None, database: str | None, as_json: bool) -> None:
    """Show the whole history of a flow as a tree. ID is the flow's, or that of one of its messages."""
    with readable_errors(), existing_store(database) as (store, access):
        check_archive(archive, access.session)
        folder = archive_of(archive)
        is_archived = any(each.kind == "journal" for each in access.session.archives.manifests())
        journal = access.session.journal if folder is None or not is_archived else whole_history(folder, access)
        found = read_trace(journal, flow_or_message_id, log_of(store, SystemClock()))
    if as_json:
        echo(json.dumps(found and _as_json(found)))
    elif found is not None:
        echo("\n".join(_lines(found)))
    else:
        echo(f"the journal has no flow and no message {flow_or_message_id!r}", err=True)
        if is_archived and folder is None:
            echo("older lines are in the archive of this store: name its folder with --archive", err=True)
    if found is None:
        raise click.exceptions.Exit(BAD_NEWS)


def _lines(found: Trace) -> Iterator[str]:
    """Yield the lines of the tree, without recursion or a table, because a flow can be of any size and depth."""
    took = duration(found.last_at - found.began_at)
    yield (
        f"{_bold(found.flow_id)}  {_coloured(found.standing)}, {len(found.messages)} messages, began "
        f"{moment(found.began_at)}, took {took}"
    )
    branch, last_branch, below, below_last = _guides()
    left: list[tuple[str, int, bool, Line]] = _children("", 0, found.roots)
    while left:
        indent, depth, is_last, each = left.pop()
        yield f"{indent}{last_branch if is_last else branch}{_label(each, depth)}"
        if isinstance(each, TracedMessage):
            if depth < INDENTED_MAX:
                indent += below_last if is_last else below
            left += _children(indent, depth + 1, [*each.waypoints, *each.effects, *each.caused])


def _children(indent: str, depth: int, children: Sequence[Line]) -> list[tuple[str, int, bool, Line]]:
    """Return the children in reverse order, because the caller takes them off the end."""
    return [(indent, depth, at == 0, each) for at, each in enumerate(reversed(children))]


def _guides() -> tuple[str, str, str, str]:
    try:
        "".join(GUIDES).encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return ASCII_GUIDES
    return GUIDES


def _label(each: Line, depth: int) -> str:
    if isinstance(each, LoggedEffect):
        return _label_of_effect(each)
    if isinstance(each, TracedMessage):
        deep = _dim(f"  {depth} deep") if depth > INDENTED_MAX else ""
        identity = _dim(f"{each.kind or ''} {one_line(each.message_id)}")
        return f"{_bold(each.stage)}  {_coloured(each.standing)}  {identity}{deep}"
    parts = [f"{_dim(clock_time(each.at))} {each.waypoint:<9}"]
    if each.attempt > 1:
        parts.append(f"attempt {each.attempt}")
    if each.ms is not None:
        parts.append(duration(each.ms * 1_000))
    if each.bytes is not None:
        parts.append(f"{each.bytes} bytes")
    parts.append(_dim(each.node))
    if each.detail:
        parts.append(one_line(each.detail))
    return "  ".join(parts)


def _label_of_effect(effect: LoggedEffect) -> str:
    calls = len(effect.intents)
    parts = [f"effect {one_line(effect.id.name)}  {describe_effect(effect)}", f"{calls} call{'s' * (calls > 1)}"]
    repeats = sum(each.is_repeat for each in effect.intents)
    if repeats:
        parts.append(f"{repeats} possibly repeated")
    if effect.generation:
        parts.append(f"generation {effect.generation}")
    parts += [_dim(f"{clock_time(each.at)} {each.node}") for each in effect.intents[-1:]]
    return "  ".join(parts)


def _bold(text: str) -> str:
    return click.style(one_line(text), bold=True)


def _dim(text: str) -> str:
    return click.style(one_line(text), dim=True)


def _coloured(standing: str) -> str:
    return click.style(standing, fg=COLOURS.get(standing, "yellow"))


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
                "effects": [_effect_as_json(effect) for effect in each.effects],
            }
            for each in found.messages.values()
        ],
    }


def _effect_as_json(effect: LoggedEffect) -> dict[str, Any]:
    """Return an effect without its request and its result, which may hold secrets."""
    return {
        "name": effect.id.name,
        "ordinal": effect.id.ordinal,
        "message_index": effect.id.message_index,
        "handler": effect.id.handler,
        "generation": effect.generation,
        "state": describe_effect(effect),
        "calls": [each._asdict() for each in effect.intents],
    }
