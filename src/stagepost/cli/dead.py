"""``stagepost dead list | show``, and the group that also has ``replay``, ``replays`` and ``edit``."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click
from rich.table import Column, Table

from stagepost.cli.edit import edit
from stagepost.cli.exits import readable_errors
from stagepost.cli.options import database_option, existing_store, json_option, named_letter
from stagepost.cli.replay import replay, replays
from stagepost.cli.show import console, echo, moment, plain
from stagepost.flow.texts import lines
from stagepost.ports.dead_letters import KeptLetter, LetterGroup, Selection
from stagepost.runtime.access import Access

LIST_MAX = 1_000
ENVELOPE_SHOWN = 65_536


@click.group(commands=[replay, replays, edit])
def dead() -> None:
    """List, show, replay and edit dead letters: messages that were set aside with their cause."""


@dead.command("list")
@click.option("--group", metavar="FINGERPRINT", help="The letters of one group, each on a line.")
@click.option("--each", "one_by_one", is_flag=True, help=f"All letters, each on a line, at most {LIST_MAX}.")
@database_option
@json_option
def list_(group: str | None, one_by_one: bool, database: str | None, as_json: bool) -> None:
    """List dead letters in groups: one line for each kind of failure at one place."""
    with readable_errors(), existing_store(database) as (_, access):
        dead_letters = access.session.dead_letters
        if group or one_by_one:
            selection = Selection("group", group) if group else Selection("all")
            letters = [kept for kept, _ in zip(dead_letters.select(selection), range(LIST_MAX), strict=False)]
            _print_letters(letters, as_json)
        else:
            _print_groups(dead_letters.groups(), access, as_json)


@dead.command()
@click.argument("letter", metavar="ID")
@database_option
@json_option
def show(letter: str, database: str | None, as_json: bool) -> None:
    """Show one whole dead letter: by its number, by its message's id, or the first one of a flow."""
    with readable_errors(), existing_store(database) as (_, access):
        kept = named_letter(access.session.dead_letters, letter)
    if as_json:
        echo(json.dumps(_letter_json(kept, with_envelope=True)))
    else:
        _print_letter(kept)


def _print_groups(groups: list[LetterGroup], access: Access, as_json: bool) -> None:
    if as_json:
        echo(json.dumps([asdict(each) for each in groups]))
        return
    if not groups:
        echo("no dead letters")
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
    echo(
        "\nstagepost dead list --group GROUP lists a group, and dead show ID shows a letter; dead replay tries letters "
        "again, and dead edit sends a message again with changes"
    )


def _print_letters(letters: list[KeptLetter], as_json: bool) -> None:
    if as_json:
        echo(json.dumps([_letter_json(kept, with_envelope=False) for kept in letters]))
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
    rows = [
        ("dead letter", str(kept.id)),
        ("flow", plain(letter.flow_id)),
        ("message", plain(letter.message_id)),
        ("stage", f"{letter.stage}, declared at {plain(letter.declared_at)}"),
        ("why", letter.reason),
        ("attempts", f"{letter.failures} failed, {letter.deaths} died, {letter.deliveries} deliveries"),
        ("began", moment(letter.origin_at)),
        ("dead", f"{moment(letter.dead_at)} at {plain(letter.node)}"),
        ("group", letter.fingerprint),
        *(("because of" if index else "cause", plain(cause.summary)) for index, cause in enumerate(letter.causes)),
    ]
    for row in rows:
        table.add_row(*row)
    out = console()
    out.print(table)
    out.rule("stack", align="left")
    echo(lines(letter.stack.rstrip()))
    out.rule("envelope", align="left")
    echo(lines(letter.envelope[:ENVELOPE_SHOWN].decode(errors="replace")))
    if len(letter.envelope) > ENVELOPE_SHOWN:
        echo(f"… {len(letter.envelope):,} bytes in all; --json shows all of them")


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
