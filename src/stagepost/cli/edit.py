"""``stagepost dead edit``"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from random import Random
from typing import NoReturn, TextIO

import click

from stagepost.app.loading import load_app
from stagepost.cli import letters
from stagepost.cli.exits import BAD_NEWS, readable_errors
from stagepost.cli.options import database_option, json_option, open_for_reading
from stagepost.cli.show import say
from stagepost.flow.clock import SystemClock
from stagepost.flow.errors import DeclarationError
from stagepost.flow.ids import RandomIds
from stagepost.recovery.editing import EditRefused, document_of, edited_messages, envelope_of, with_value
from stagepost.transaction.editing import check_fits
from stagepost.transaction.editing import edit as edit_letter
from stagepost.transaction.stage import Stage

# What is not UTF-8 is refused as what is not JSON is, and not before it can be told where it is.
LENIENT = "surrogateescape"


@click.command()
@click.argument("letter", metavar="ID")
@click.option(
    "--set",
    "assignments",
    metavar="PATH=JSON",
    multiple=True,
    help="Write a value, such as messages.0.body.amount=12, in place of opening the editor. Repeatable.",
)
@click.option(
    "--file",
    metavar="FILE",
    type=click.File(encoding="utf-8", errors=LENIENT),
    help="Read it from there; - is standard input.",
)
@click.option("--app", "app_name", metavar="MODULE:APP", help="Check that its stage can read what you write.")
@database_option
@json_option
def edit(
    letter: str,
    assignments: tuple[str, ...],
    file: TextIO | None,
    app_name: str | None,
    database: str | None,
    as_json: bool,
) -> None:
    """Send a dead letter's message on, changed, as a new message with a new id.

    Opens $EDITOR with the message and its state. The new message has the old one as its cause; its flow, its call stack
    and its properties stay. Nothing happens where nothing was changed, or the editor ends with an error.
    """
    clock = SystemClock()
    ids = RandomIds(clock, Random())  # noqa: S311 - an id, no secret
    with readable_errors():
        _, access = open_for_reading(database)
        try:
            found = letters.find(access.session.reader, letter)
            if found is None:
                _give_up(f"there is no dead letter {letter!r}")
            _, kept = found
            stage = None if app_name is None else _stage(app_name, kept.letter.stage)
            envelope = envelope_of(kept.letter)
            document = document_of(envelope) if file is None else file.read()
            draft = None
            for each in assignments:
                document = with_value(document, each)
            if file is None and not assignments:
                document, draft = _written_in_editor(document)
            try:
                messages = edited_messages(envelope, document)
                if messages is not None and stage is not None:
                    check_fits(stage, messages, envelope.messages)
            except EditRefused:
                if draft is not None:
                    say(f"what you wrote is in {draft}: mend it, and give it with --file", err=True)
                raise
            if draft is not None:
                draft.unlink()
            if messages is None:
                _give_up("nothing was changed, and nothing done")
            new_id, who = ids.mint(), letters.user()
            is_done = edit_letter(
                access.session,
                access.transport,
                kept,
                envelope,
                messages,
                message_id=new_id,
                clock=clock,
                node=f"cli:{who}",
                who=who,
            )
            if not is_done:
                _give_up(f"dead letter {kept.id} is gone: somebody else replayed or edited it meanwhile")
        finally:
            access.session.close()
    if as_json:
        told = {"letter": kept.id, "flow_id": kept.letter.flow_id, "stage": kept.letter.stage}
        say(json.dumps(told | {"message_id": kept.letter.message_id, "new_message_id": new_id}))
    else:
        say(f"message {kept.letter.message_id} goes on, edited, as {new_id} at {kept.letter.stage}")


def _give_up(reason: str) -> NoReturn:
    say(reason, err=True)
    raise click.exceptions.Exit(BAD_NEWS)


def _stage(app_name: str, address: str) -> Stage:
    stage = load_app(app_name).stages().get(address)
    if stage is None:
        raise DeclarationError(
            f"{app_name} does not declare {address}, where that letter died: it is another app's, or of a module that "
            "nobody imported. Name its app, or leave --app out: then only the JSON is checked."
        )
    return stage


def _written_in_editor(document: str) -> tuple[str, Path]:
    """What was written, and the file it is in, which is the only copy. Readable by its owner alone."""
    handle, name = tempfile.mkstemp(prefix="stagepost-letter-", suffix=".json")
    draft = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(document)
        click.edit(filename=name)
        return draft.read_text(encoding="utf-8", errors=LENIENT), draft
    except BaseException:
        draft.unlink()
        raise
