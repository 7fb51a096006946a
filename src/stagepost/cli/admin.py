"""``stagepost migrate | resume | unsubscribe | reassign``: the commands that change one setting of a store."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from stagepost.app.app import engine_of
from stagepost.cli.exits import BAD_NEWS, fail, readable_errors
from stagepost.cli.options import app_option, database_option, existing_store, find_app, json_option
from stagepost.cli.show import echo
from stagepost.flow.urls import shown_url
from stagepost.ports.registry import driver_of
from stagepost.runtime import declarations
from stagepost.runtime.settings import read_settings
from stagepost.transaction.queue_commit import committing


@click.command()
@click.option(
    "--start-over",
    is_flag=True,
    help="Begin a new second file of an SQLite store, where it is missing or of another backup. That forgets the calls "
    "to the outside, which messages that still wait may make again, and independently started flows that wait there.",
)
@database_option
@json_option
def migrate(start_over: bool, database: str | None, as_json: bool) -> None:
    """Create Stagepost's tables in the database, or migrate them to this version. Stop its workers before."""
    with readable_errors():
        url = read_settings(database=database).database
        applied = driver_of(url).migrate(url)
        apart = driver_of(url).open_existing(url, "--database").apart
        if start_over:
            apart.start_over()
        applied_apart = apart.migrate()
    place = shown_url(url)
    if as_json:
        echo(json.dumps({"database": place, "applied": applied, "applied_apart": applied_apart}))
        return
    echo(f"{place}: {_describe(applied)}")
    if applied_apart:
        echo(f"{place}, its second file: {_describe(applied_apart)}")


def _describe(applied: Sequence[int]) -> str:
    return f"applied {', '.join(f'{number:04d}' for number in applied)}" if applied else "nothing to do"


@click.command()
@click.argument("stage", metavar="STAGE")
@database_option
def resume(stage: str, database: str | None) -> None:
    """End the pause of a stage at once, without waiting for a probe that succeeds.

    A stage that still fails pauses again after as many messages as before.
    """
    with readable_errors(), existing_store(database) as (_, access):
        session = access.session
        paused = [each.stage for each in session.circuits.paused()]
        if stage in paused:
            with committing(session):
                session.circuits.forget(stage)
    if stage not in paused:
        fail(f"{stage} is not paused; paused are: {', '.join(paused) or 'none'}")
    echo(f"{stage} is no longer paused")


@click.command()
@click.argument("topic")
@click.argument("subscriber")
@database_option
@json_option
def unsubscribe(topic: str, subscriber: str, database: str | None, as_json: bool) -> None:
    """End a subscription: SUBSCRIBER gets no copies of later publications to TOPIC. Copies that exist stay.

    An app that still declares the subscription makes it again at its next start, so remove the declaration first.
    """
    with readable_errors(), existing_store(database) as (_, access):
        with committing(access.session):
            is_ended = access.session.subscriptions.remove(topic, subscriber)
        others = sorted(access.session.subscriptions.listed([topic]))
    if as_json:
        echo(json.dumps({"topic": topic, "subscriber": subscriber, "ended": is_ended}))
    elif is_ended:
        echo(f"{subscriber} gets no more copies of publications to {topic}")
    else:
        known = ", ".join(f"{each.subscriber} (of {each.app})" for each in others) or "none"
        echo(f"{subscriber} does not subscribe to {topic}; its subscribers: {known}", err=True)
    if not is_ended:
        raise click.exceptions.Exit(BAD_NEWS)


@click.command()
@click.argument("endpoints", metavar="ENDPOINT…", nargs=-1, required=True)
@app_option
@database_option
@json_option
def reassign(endpoints: tuple[str, ...], app_name: str | None, database: str | None, as_json: bool) -> None:
    """Give endpoints that an app of another name declared to this app, which declares them now.

    Use this command after an app was renamed, or an endpoint moved to another app. First stop the processes of the old
    name. The command releases the messages that they held.
    """
    with readable_errors():
        app, _ = find_app(app_name, database)
        engine = engine_of(app)
        before = declarations.reassign(engine, endpoints)
    owners = {endpoint: sorted({each.app for each in before if each.endpoint == endpoint}) for endpoint in endpoints}
    if as_json:
        echo(json.dumps({"database": engine.store.url, "app": app.name, "endpoints": owners}))
        return
    for endpoint, apps in owners.items():
        echo(f"{endpoint}: now declared by {app.name}, before by {' and '.join(apps) or 'no other app'}")
