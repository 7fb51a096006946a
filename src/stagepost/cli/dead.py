"""``stagepost dead list | show | replay``"""

from __future__ import annotations

import getpass
import json
import os
from typing import Any

import click
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn
from rich.table import Column, Table

from stagepost.app.stores import Access
from stagepost.cli.exits import BAD_NEWS, readable_errors
from stagepost.cli.options import database_option, json_option, open_for_reading
from stagepost.cli.show import console, moment, progress
from stagepost.flow.clock import SystemClock
from stagepost.recovery.deadletter import describe
from stagepost.recovery.letters import KeptLetter, LetterGroup, Selection
from stagepost.transaction.replaying import replay as replay_letters
from stagepost.transaction.replaying import select_ids

LIST_MAX = 1_000
# Whatever has more of them is beyond 64 bits.
NUMBER_DIGITS_MAX = 18


@click.group()
def dead() -> None:
    """Dead letters: messages set aside, with their cause."""


@dead.command("list")
@click.option("--group", metavar="FINGERPRINT", help="The letters of one group, each on a line.")
@click.option("--each", "one_by_one", is_flag=True, help=f"All letters, each on a line, at most {LIST_MAX}.")
@database_option
@json_option
def list_(group: str | None, one_by_one: bool, database: str | None, as_json: bool) -> None:
    """Dead letters in groups: one line for each kind of failure at one place."""
    with readable_errors():
        _, access = open_for_reading(database)
        reader = access.session.reader
        if group or one_by_one:
            selection = Selection("group", group) if group else Selection("all")
            letters = [kept for kept, _ in zip(reader.letters(selection), range(LIST_MAX), strict=False)]
            _print_letters(letters, as_json)
        else:
            _print_groups(reader.letter_groups(), access, as_json)
        access.session.close()


@dead.command()
@click.argument("letter", metavar="ID")
@database_option
@json_option
def show(letter: str, database: str | None, as_json: bool) -> None:
    """One dead letter, whole: by its number, its message's id, or the first one of a flow."""
    with readable_errors():
        _, access = open_for_reading(database)
        kept = next((kept for each in _named(letter) for kept in access.session.reader.letters(each)), None)
        access.session.close()
    if kept is None:
        click.echo(f"there is no dead letter {letter!r}", err=True)
        raise click.exceptions.Exit(BAD_NEWS)
    if as_json:
        click.echo(json.dumps(_letter_json(kept, with_envelope=True)))
    else:
        _print_letter(kept)


@dead.command()
@click.argument("letters", metavar="[ID]...", nargs=-1)
@click.option("--group", metavar="FINGERPRINT", help="Every letter of that group.")
@click.option("--flow", metavar="FLOW_ID", help="Every letter of that flow.")
@click.option("--all", "every", is_flag=True, help="Every letter there is.")
@database_option
@json_option
def replay(
    letters: tuple[str, ...], group: str | None, flow: str | None, every: bool, database: str | None, as_json: bool
) -> None:
    """Give dead letters new attempts, under the same message ids.

    Say which: by number, message id or flow id, by --group, by --flow, or --all. What dies again meanwhile is not
    replayed.
    """
    ways = [bool(letters), group is not None, flow is not None, every]
    if sum(ways) != 1:
        raise click.UsageError("say which letters, in one way: by ID, with --group, with --flow, or with --all")
    wanted = [[Selection("all")]]
    if group is not None:
        wanted = [[Selection("group", group)]]
    elif flow is not None:
        wanted = [[Selection("flow", flow)]]
    elif letters:
        wanted = [_named(letter) for letter in letters]
    clock = SystemClock()
    with readable_errors():
        _, access = open_for_reading(database)
        found = [
            next((ids for each in selections if (ids := select_ids(access.session, each))), []) for selections in wanted
        ]
        ids = list(dict.fromkeys(each for group_ids in found for each in group_ids))
        replayed = 0
        with progress(BarColumn(), MofNCompleteColumn()) as shown:
            task = shown.add_task("replaying", total=len(ids))
            who = _user()
            for count in replay_letters(access.session, access.transport, ids, clock=clock, node=f"cli:{who}", who=who):
                replayed += count
                shown.update(task, completed=replayed)
        access.session.close()
    missing = [letter for letter, group_ids in zip(letters, found, strict=False) if not group_ids]
    if as_json:
        click.echo(json.dumps({"asked": len(ids), "replayed": replayed, "not_found": missing}))
    else:
        click.echo(f"replayed {replayed} of {len(ids)} dead letters")
        for letter in missing:
            click.echo(f"there is no dead letter {letter!r}", err=True)
    if missing or not ids:
        raise click.exceptions.Exit(BAD_NEWS)


def _named(letter: str) -> list[Selection]:
    """What that may mean, the likeliest first: a message's id, or a flow's, may consist of digits, too."""
    is_number = letter.isdecimal() and len(letter) <= NUMBER_DIGITS_MAX
    by_number = [Selection("id", int(letter))] if is_number else []
    return [*by_number, Selection("message", letter), Selection("flow", letter)]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # In a container, under a number that nobody gave a name.
        return f"user {os.getuid()}"


def _print_groups(groups: list[LetterGroup], access: Access, as_json: bool) -> None:
    if as_json:
        fields = LetterGroup.__dataclass_fields__
        click.echo(json.dumps([{name: getattr(each, name) for name in fields} for each in groups]))
        return
    if not groups:
        click.echo("no dead letters")
        return
    table = Table(
        Column("group", no_wrap=True),
        Column("stage", no_wrap=True),
        Column("why", no_wrap=True),
        Column("letters", justify="right"),
        Column("last", no_wrap=True),
        "a sample",
        box=None,
    )
    for each in groups:
        sample = next(access.session.reader.letters(Selection("id", each.latest_id)), None)
        text = escape(sample.letter.summary) if sample else ""
        table.add_row(each.fingerprint, each.stage, each.reason, str(each.count), moment(each.last_at), text)
    console().print(table)
    click.echo("\nstagepost dead list --group GROUP shows a group, dead show ID a letter, dead replay tries again")


def _print_letters(letters: list[KeptLetter], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([_letter_json(kept, with_envelope=False) for kept in letters]))
        return
    table = Table(Column("id", justify="right"), "dead", "flow", "stage", "why", "cause", box=None)
    for kept in letters:
        letter = kept.letter
        table.add_row(
            str(kept.id),
            moment(letter.dead_at),
            escape(letter.flow_id),
            letter.stage,
            letter.reason,
            escape(letter.summary),
        )
    console().print(table if letters else "no dead letters")


def _print_letter(kept: KeptLetter) -> None:
    letter = kept.letter
    table = Table(Column(style="bold"), Column(overflow="fold"), box=None, show_header=False)
    table.add_row("dead letter", str(kept.id))
    table.add_row("flow", escape(letter.flow_id))
    table.add_row("message", escape(letter.message_id))
    table.add_row("stage", f"{letter.stage}, declared at {escape(letter.declared_at)}")
    table.add_row("why", letter.reason)
    table.add_row("attempts", f"{letter.failures} failed, {letter.deaths} died, {letter.deliveries} deliveries")
    table.add_row("began", moment(letter.origin_at))
    table.add_row("dead", f"{moment(letter.dead_at)} at {escape(letter.node)}")
    table.add_row("group", letter.fingerprint)
    for index, cause in enumerate(letter.causes):
        table.add_row("cause" if index == 0 else "because of", escape(describe(cause)))
    out = console()
    out.print(table)
    out.rule("stack", align="left")
    click.echo(letter.stack.rstrip())
    out.rule("envelope", align="left")
    click.echo(letter.envelope.decode(errors="replace"))


def _letter_json(kept: KeptLetter, *, with_envelope: bool) -> dict[str, Any]:
    letter = kept.letter
    found: dict[str, Any] = {
        "id": kept.id,
        "message_id": letter.message_id,
        "flow_id": letter.flow_id,
        "stage": letter.stage,
        "reason": letter.reason,
        "causes": [{"type": cause.type, "message": cause.message} for cause in letter.causes],
        "fingerprint": letter.fingerprint,
        "failures": letter.failures,
        "deaths": letter.deaths,
        "deliveries": letter.deliveries,
        "origin_at": letter.origin_at,
        "dead_at": letter.dead_at,
        "node": letter.node,
        "declared_at": letter.declared_at,
    }
    if with_envelope:
        found["stack"] = letter.stack
        found["envelope"] = letter.envelope.decode(errors="replace")
    return found
