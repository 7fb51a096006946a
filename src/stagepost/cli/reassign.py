"""``stagepost reassign``"""

from __future__ import annotations

import json

import click

from stagepost.cli.exits import readable_errors
from stagepost.cli.options import app_option, database_option, find_app, json_option
from stagepost.liveness import declarations


@click.command()
@click.argument("endpoints", metavar="ENDPOINT…", nargs=-1, required=True)
@app_option
@database_option
@json_option
def reassign(endpoints: tuple[str, ...], app_name: str | None, database: str | None, as_json: bool) -> None:
    """Give endpoints that an app of another name declared to this app, which declares them now.

    For an app that was renamed, and for an endpoint that moved to another app. Stop the processes that run it under the
    old name before; what these held is given back.
    """
    with readable_errors():
        app, _ = find_app(app_name, database)
        before = declarations.reassign(app, endpoints)
    owners = {endpoint: sorted({each.app for each in before if each.endpoint == endpoint}) for endpoint in endpoints}
    if as_json:
        click.echo(json.dumps({"database": app.store.url, "app": app.name, "endpoints": owners}))
        return
    for endpoint, apps in owners.items():
        click.echo(f"{endpoint}: now of {app.name}, before of {' and '.join(apps) or 'no other app'}")
