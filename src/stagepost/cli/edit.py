"""``stagepost dead edit``"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from random import Random
from typing import TextIO

import click

from stagepost.app.app import engine_of
from stagepost.app.loading import load_app
from stagepost.cli.exits import fail, readable_errors
from stagepost.cli.options import database_option, existing_store, json_option, named_letter, user_name
from stagepost.cli.show import echo
from stagepost.flow.clock import SystemClock
from stagepost.flow.errors import DeclarationError
from stagepost.flow.ids import RandomIds
from stagepost.recovery.editing import EditRefused, document_of, edited_messages, envelope_of, with_value
from stagepost.runtime.assembly import queue_commit_of_command
from stagepost.transaction.editing import check_fits
from stagepost.transaction.editing import edit as edit_letter
from stagepost.transaction.stage import Stage

# Text that is not UTF-8 is decoded first and refused as JSON, so that the error can name the place.
LENIENT = "surrogateescape"


@click.command()
@click.argument("letter", metavar="ID")
@click.option(
    "--set",
    "assignments",
    metavar="PATH=JSON",
    multiple=True,
    help="Set a value, such as messages.0.body.amount=12, without an editor. Repeatable.",
)
@click.option(
    "--file",
    metavar="FILE",
    type=click.File(encoding="utf-8", errors=LENIENT),
    help="Read the edited text from FILE; - is standard input.",
)
@click.option("--app", "app_name", metavar="MODULE:APP", help="Check that the app's stage can read the edited message.")
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
    """Send the message of a dead letter again with changes, as a new message with a new id.

    Opens $EDITOR with the message and its state. The new message has the old one as its cause, and keeps its flow, its
    call stack and its properties. Without a change, or if the editor ends with an error, nothing happens.
    """
    clock = SystemClock()
    ids = RandomIds(clock, Random())  # noqa: S311 - an id, no secret
    with readable_errors(), existing_store(database) as (store, access):
        kept = named_letter(access.session.dead_letters, letter)
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
                echo(f"your text is in {draft}: correct it, and give it with --file", err=True)
            raise
        if draft is not None:
            draft.unlink()
        if messages is None:
            fail("nothing was changed, so no message was sent")
        new_id = ids.mint()
        who = user_name()
        queue_commit = queue_commit_of_command(store, access, clock, f"cli:{who}")
        if not edit_letter(queue_commit, kept, envelope, messages, message_id=new_id, who=who):
            fail(f"dead letter {kept.id} is gone: another command replayed or edited it meanwhile")
    if as_json:
        edited = {"letter": kept.id, "flow_id": kept.letter.flow_id, "stage": kept.letter.stage}
        echo(json.dumps(edited | {"message_id": kept.letter.message_id, "new_message_id": new_id}))
    else:
        echo(f"message {kept.letter.message_id} was edited and sent to {kept.letter.stage} as {new_id}")


def _stage(app_name: str, address: str) -> Stage:
    stage = engine_of(load_app(app_name)).stages().get(address)
    if stage is None:
        raise DeclarationError(
            f"{app_name} does not declare {address}, where that letter died: the stage is another app's, or its module "
            "was not imported. Name its app, or leave --app out: then only the JSON is checked."
        )
    return stage


def _written_in_editor(document: str) -> tuple[str, Path]:
    """Open the editor. Return the edited text, and its file, which is the only copy and readable by its owner only."""
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
