"""``stagepost dead replay | replays``"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click
from rich.progress import BarColumn, MofNCompleteColumn
from rich.table import Column, Table

from stagepost.cli.exits import BAD_NEWS, INTERRUPTED, fail, readable_errors
from stagepost.cli.interruption import interruptible
from stagepost.cli.options import (
    FiniteNumber,
    database_option,
    existing_store,
    find_letter,
    json_option,
    meanings_of,
    user_name,
)
from stagepost.cli.show import console, echo, moment, plain, progress
from stagepost.flow.clock import SystemClock, to_microseconds
from stagepost.flow.errors import StagepostError
from stagepost.ports.dead_letters import DeadLetters, LetterGroup, Selection
from stagepost.ports.replays import TIME_MAX, Period, Replay
from stagepost.runtime.assembly import queue_commit_of_command
from stagepost.transaction.queue_commit import QueueCommit
from stagepost.transaction.replaying import freeze, preview, run_replay

NUMBER = click.IntRange(0, 2**63 - 1)


class Moment(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    """A moment in ISO 8601, in UTC without an offset."""

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            at = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is not a moment such as 2026-03-01 or 2026-03-01T12:30:00Z", param, ctx)
        return to_microseconds(at if at.tzinfo else at.replace(tzinfo=UTC))


MOMENT = Moment()


@click.command()
@click.argument("named", metavar="[ID]...", nargs=-1)
@click.option("--id", "numbers", metavar="NUMBER", type=NUMBER, multiple=True, help="The letter of that number.")
@click.option("--message", "messages", metavar="MESSAGE_ID", multiple=True, help="The letter of that message.")
@click.option("--group", metavar="FINGERPRINT", help="Every letter of that group.")
@click.option("--flow", metavar="FLOW_ID", help="Every letter of that flow.")
@click.option(
    "--since",
    metavar="MOMENT",
    type=MOMENT,
    help="Every letter that died at MOMENT, such as 2026-03-01T12:30Z, or later.",
)
@click.option("--until", metavar="MOMENT", type=MOMENT, help="Every letter that died before MOMENT.")
@click.option("--all", "every", is_flag=True, help="Every letter.")
@click.option("--resume", metavar="REPLAY", type=NUMBER, help="The rest of an unfinished replay.")
@click.option(
    "--rate",
    metavar="N",
    type=FiniteNumber(min=0, min_open=True),
    help="At most N messages a second. Default: no limit.",
)
@click.option("--again", is_flag=True, help="Replay also messages that may have been sent to another service before.")
@click.option("--dry-run", is_flag=True, help="Replay nothing; show how many letters would be replayed, by group.")
@database_option
@json_option
def replay(
    named: tuple[str, ...],
    numbers: tuple[int, ...],
    messages: tuple[str, ...],
    group: str | None,
    flow: str | None,
    since: int | None,
    until: int | None,
    every: bool,
    resume: int | None,
    rate: float | None,
    again: bool,
    dry_run: bool,
    database: str | None,
    as_json: bool,
) -> None:
    """Give dead letters new attempts, under the same message ids.

    Name the letters by ID (a number, a message's id or a flow's), with --id or --message, by --group, by --flow, by the
    time of death, or with --all. The command freezes the set in the store, so letters that die later are not replayed.

    After Ctrl-C, or any other end, --resume replays the rest. Several commands can do so at once, each at its own rate.
    """
    is_period = since is not None or until is not None
    ways = [named, numbers, messages, group is not None, flow is not None, is_period, every, resume is not None]
    if sum(map(bool, ways)) != 1:
        raise click.UsageError(
            "name the letters in exactly one way: by ID, with --id, --message, --group, --flow, --since and --until, "
            "--all, or --resume"
        )
    if dry_run and resume is not None:
        raise click.UsageError(
            "--dry-run does not go with --resume; stagepost dead replays shows how many letters are left"
        )
    with readable_errors(), existing_store(database) as (store, access):
        queue_commit = queue_commit_of_command(store, access, SystemClock(), f"cli:{user_name()}")
        if resume is not None:
            _resume(queue_commit, resume, rate, as_json)
            return
        missing: list[str] = []
        wanted: list[Selection | Period] = [Selection("all")]
        if group is not None:
            wanted = [Selection("group", group)]
        elif flow is not None:
            wanted = [Selection("flow", flow)]
        elif is_period:
            wanted = [Period(since or 0, TIME_MAX if until is None else until)]
        elif not every:
            wanted, missing = _find_letters(access.session.dead_letters, named, numbers, messages)
        if dry_run:
            _show_groups(preview(access.session, wanted), as_json)
        else:
            _replay(queue_commit, wanted, missing, rate, as_json, again=again)


@click.command()
@database_option
@json_option
def replays(database: str | None, as_json: bool) -> None:
    """List all replays, with their users and their progress."""
    with readable_errors(), existing_store(database) as (_, access):
        found = access.session.replays.listed()
    if as_json:
        echo(json.dumps([asdict(each) | {"left": each.left} for each in found]))
        return
    if not found:
        echo("no replays")
        return
    numbers = [Column(name, justify="right") for name in ("letters", "replayed", "gone", "left", "a second")]
    table = Table(Column("replay", justify="right"), "asked", "by", *numbers, "which", box=None)
    for each in found:
        rate = "" if each.rate is None else f"{each.rate:g}"
        counts = (each.letters, each.replayed, each.gone, each.left)
        table.add_row(
            str(each.id), moment(each.asked_at), plain(each.who), *map(str, counts), rate, plain(each.selection)
        )
    console().print(table)


def _find_letters(
    dead_letters: DeadLetters, named: Sequence[str], numbers: Sequence[int], messages: Sequence[str]
) -> tuple[list[Selection | Period], list[str]]:
    """Return the selections of the named letters, each once, and the names without a letter."""
    meanings = [(each, meanings_of(each)) for each in named]
    meanings += [(str(number), [Selection("id", number)]) for number in numbers]
    meanings += [(each, [Selection("message", each)]) for each in messages]
    found = [(name, find_letter(dead_letters, selections)) for name, selections in meanings]
    wanted = dict.fromkeys(letter[0] for _, letter in found if letter is not None)
    return list(wanted), [name for name, letter in found if letter is None]


def _replay(
    queue_commit: QueueCommit,
    wanted: Sequence[Selection | Period],
    missing: Sequence[str],
    rate: float | None,
    as_json: bool,
    *,
    again: bool,
) -> None:
    who = user_name()
    started = freeze(queue_commit.session, wanted, clock=queue_commit.clock, who=who, rate=rate, may_send_again=again)
    for each in missing if not as_json else ():
        echo(f"there is no dead letter {each!r}", err=True)
    if started is None:
        _print_result(None, missing, as_json)
        raise click.exceptions.Exit(BAD_NEWS)
    if not as_json:
        echo(f"replay {started.id}: {started.letters} dead letters")
    _work_off(queue_commit, started, rate, missing, as_json)


def _resume(queue_commit: QueueCommit, number: int, rate: float | None, as_json: bool) -> None:
    found = queue_commit.session.replays.find(number)
    if found is None:
        fail(f"there is no replay {number}; stagepost dead replays lists all replays")
    _work_off(queue_commit, found, found.rate if rate is None else rate, [], as_json)


def _work_off(
    queue_commit: QueueCommit, started: Replay, rate: float | None, missing: Sequence[str], as_json: bool
) -> None:
    who = user_name()
    try:
        with interruptible() as stop, progress(BarColumn(), MofNCompleteColumn()) as shown:
            task = shown.add_task(
                f"replay {started.id}", total=started.letters, completed=started.letters - started.left
            )
            for chunk in run_replay(queue_commit, started, stop=stop, who=who, rate=rate):
                shown.update(task, advance=len(chunk.ids))
            is_interrupted = not stop.wait(0)
        ended = queue_commit.session.replays.find(started.id) or started
    except StagepostError:
        echo(f"replay interrupted. {_how_to_resume(started)}", err=True)
        raise
    _print_result(ended, missing, as_json)
    if is_interrupted and ended.left:
        if not as_json:
            echo(f"stopped, {ended.left} are left. {_how_to_resume(ended)}", err=True)
        raise click.exceptions.Exit(INTERRUPTED)
    if missing:
        raise click.exceptions.Exit(BAD_NEWS)


def _how_to_resume(started: Replay) -> str:
    return f"Continue with: stagepost dead replay --resume {started.id}"


def _print_result(ended: Replay | None, missing: Sequence[str], as_json: bool) -> None:
    if as_json:
        found = {"replay": None, "asked": 0, "replayed": 0, "gone": 0, "left": 0}
        if ended is not None:
            found = {
                "replay": ended.id,
                "asked": ended.letters,
                "replayed": ended.replayed,
                "gone": ended.gone,
                "left": ended.left,
            }
        echo(json.dumps(found | {"not_found": list(missing)}))
    elif ended is None:
        echo("no dead letters to replay")
    else:
        gone = f"; {ended.gone} were gone, replayed or edited by another command" if ended.gone else ""
        echo(f"replayed {ended.replayed} of {ended.letters} dead letters{gone}")


def _show_groups(groups: Sequence[LetterGroup], as_json: bool) -> None:
    count = sum(each.count for each in groups)
    if as_json:
        echo(json.dumps({"letters": count, "groups": [asdict(each) for each in groups]}))
    else:
        table = Table("group", "stage", "why", Column("letters", justify="right"), "last", box=None)
        for each in groups:
            table.add_row(each.fingerprint, each.stage, each.reason, str(each.count), moment(each.last_at))
        if groups:
            console().print(table)
        echo(f"{count} dead letters would be replayed")
    if not count:
        raise click.exceptions.Exit(BAD_NEWS)
