"""``stagepost migrate``"""

from __future__ import annotations

import json

import click

from stagepost.app.settings import read_settings
from stagepost.app.stores import migrate_store
from stagepost.cli.exits import readable_errors
from stagepost.cli.options import database_option, json_option
from stagepost.cli.show import say
from stagepost.flow.urls import shown_url


@click.command()
@database_option
@json_option
def migrate(database: str | None, as_json: bool) -> None:
    """Make Stagepost's tables in the database, or bring them to this version. Stop its workers before."""
    with readable_errors():
        url = read_settings(database=database).database
        applied = migrate_store(url)
    place = shown_url(url)
    if as_json:
        say(json.dumps({"database": place, "applied": applied}))
    elif applied:
        say(f"{place}: applied {', '.join(f'{number:04d}' for number in applied)}")
    else:
        say(f"{place}: nothing to do")
