"""``stagepost dead list | show``, and the group that also has ``replay``, ``replays`` and ``edit``."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.table import Column, Table

from stagepost.app.stores import Access
from stagepost.cli.edit import edit
from stagepost.cli.exits import BAD_NEWS, readable_errors
from stagepost.cli.options import database_option, find_letter, json_option, open_for_reading
from stagepost.cli.replay import replay, replays
from stagepost.cli.show import console, moment, plain, say
from stagepost.flow.texts import lines
from stagepost.ports.dead_letters import KeptLetter, LetterGroup, Selection

LIST_MAX = 1_000
ENVELOPE_SHOWN = 65_536


@click.group()
def dead() -> None:
    """List, show, replay and edit dead letters: messages set aside, with their cause."""


for each in (replay, replays, edit):
    dead.add_command(each)


@dead.command("list")
@click.option("--group", metavar="FINGERPRINT", help="The letters of one group, each on a line.")
@click.option("--each", "one_by_one", is_flag=True, help=f"All letters, each on a line, at most {LIST_MAX}.")
@database_option
@json_option
def list_(group: str | None, one_by_one: bool, database: str | None, as_json: bool) -> None:
    """List dead letters in groups: one line for each kind of failure at one place."""
    with readable_errors():
        _, access = open_for_reading(database)
        dead_letters = access.session.dead_letters
        if group or one_by_one:
            selection = Selection("group", group) if group else Selection("all")
            letters = [kept for kept, _ in zip(dead_letters.select(selection), range(LIST_MAX), strict=False)]
            _print_letters(letters, as_json)
        else:
            _print_groups(dead_letters.groups(), access, as_json)
        access.session.close()


@dead.command()
@click.argument("letter", metavar="ID")
@database_option
@json_option
def show(letter: str, database: str | None, as_json: bool) -> None:
    """Show one whole dead letter: by its number, by its message's id, or the first one of a flow."""
    with readable_errors():
        _, access = open_for_reading(database)
        found = find_letter(access.session.dead_letters, letter)
        access.session.close()
    if found is None:
        say(f"there is no dead letter {letter!r}", err=True)
        raise click.exceptions.Exit(BAD_NEWS)
    _, kept = found
    if as_json:
        say(json.dumps(_letter_json(kept, with_envelope=True)))
    else:
        _print_letter(kept)


def _print_groups(groups: list[LetterGroup], access: Access, as_json: bool) -> None:
    if as_json:
        fields = LetterGroup.__dataclass_fields__
        say(json.dumps([{name: getattr(each, name) for name in fields} for each in groups]))
        return
    if not groups:
        say("no dead letters")
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
        sample = next(access.session.dead_letters.select(Selection("id", each.latest_id)), None)
        text = plain(sample.letter.summary) if sample else ""
        table.add_row(each.fingerprint, each.stage, each.reason, str(each.count), moment(each.last_at), text)
    console().print(table)
    say(
        "\nstagepost dead list --group GROUP lists a group, and dead show ID shows a letter; dead replay tries letters "
        "again, and dead edit sends one on with changes"
    )


def _print_letters(letters: list[KeptLetter], as_json: bool) -> None:
    if as_json:
        say(json.dumps([_letter_json(kept, with_envelope=False) for kept in letters]))
        return
    table = Table(Column("id", justify="right"), "dead", "flow", "stage", "why", "cause", box=None)
    for kept in letters:
        letter = kept.letter
        table.add_row(
            str(kept.id),
            moment(letter.dead_at),
            plain(letter.flow_id),
            letter.stage,
            letter.reason,
            plain(letter.summary),
        )
    console().print(table if letters else "no dead letters")


def _print_letter(kept: KeptLetter) -> None:
    letter = kept.letter
    table = Table(Column(style="bold"), Column(overflow="fold"), box=None, show_header=False)
    table.add_row("dead letter", str(kept.id))
    table.add_row("flow", plain(letter.flow_id))
    table.add_row("message", plain(letter.message_id))
    table.add_row("stage", f"{letter.stage}, declared at {plain(letter.declared_at)}")
    table.add_row("why", letter.reason)
    table.add_row("attempts", f"{letter.failures} failed, {letter.deaths} died, {letter.deliveries} deliveries")
    table.add_row("began", moment(letter.origin_at))
    table.add_row("dead", f"{moment(letter.dead_at)} at {plain(letter.node)}")
    table.add_row("group", letter.fingerprint)
    for index, cause in enumerate(letter.causes):
        table.add_row("cause" if index == 0 else "because of", plain(cause.summary))
    out = console()
    out.print(table)
    out.rule("stack", align="left")
    say(lines(letter.stack.rstrip()))
    out.rule("envelope", align="left")
    envelope = letter.envelope[:ENVELOPE_SHOWN].decode(errors="replace")
    say(lines(envelope))
    if len(letter.envelope) > ENVELOPE_SHOWN:
        say(f"… {len(letter.envelope):,} bytes in all; --json shows all of them")


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
