"""``stagepost migrate | resume | unsubscribe | reassign``: the commands that change one setting of a store."""

from __future__ import annotations

import json

import click

from stagepost.app.settings import read_settings
from stagepost.cli.exits import BAD_NEWS, readable_errors
from stagepost.cli.options import app_option, database_option, find_app, json_option, open_for_reading
from stagepost.cli.show import say
from stagepost.flow.urls import shown_url
from stagepost.ports.registry import driver_of
from stagepost.runtime import declarations


@click.command()
@database_option
@json_option
def migrate(database: str | None, as_json: bool) -> None:
    """Create Stagepost's tables in the database, or migrate them to this version. Stop its workers before."""
    with readable_errors():
        url = read_settings(database=database).database
        applied = driver_of(url).migrate(url)
    place = shown_url(url)
    if as_json:
        say(json.dumps({"database": place, "applied": applied}))
    elif applied:
        say(f"{place}: applied {', '.join(f'{number:04d}' for number in applied)}")
    else:
        say(f"{place}: nothing to do")


@click.command()
@click.argument("stage", metavar="STAGE")
@database_option
def resume(stage: str, database: str | None) -> None:
    """End the pause of a stage at once, without waiting for a probe that succeeds.

    A stage that still fails pauses again after as many messages as before.
    """
    with readable_errors():
        _, access = open_for_reading(database)
        session = access.session
        paused = [each.stage for each in session.circuits.paused()]
        if stage in paused:
            session.begin()
            session.circuits.forget(stage)
            session.commit()
        session.close()
    if stage not in paused:
        say(f"{stage} is not paused; paused are: {', '.join(paused) or 'none'}", err=True)
        raise click.exceptions.Exit(BAD_NEWS)
    say(f"{stage} is no longer paused")


@click.command()
@click.argument("topic")
@click.argument("subscriber")
@database_option
@json_option
def unsubscribe(topic: str, subscriber: str, database: str | None, as_json: bool) -> None:
    """End a subscription: SUBSCRIBER gets no copies of later publications to TOPIC. Copies that exist stay.

    An app that still declares the subscription makes it again at its next start, so remove the declaration first.
    """
    with readable_errors():
        _, access = open_for_reading(database)
        access.session.begin()
        is_ended = access.session.subscriptions.remove(topic, subscriber)
        access.session.commit()
        others = sorted(access.session.subscriptions.listed([topic]))
        access.session.close()
    if as_json:
        say(json.dumps({"topic": topic, "subscriber": subscriber, "ended": is_ended}))
    elif is_ended:
        say(f"{subscriber} gets no more copies of publications to {topic}")
    else:
        known = ", ".join(f"{each.subscriber} (of {each.app})" for each in others) or "none"
        say(f"{subscriber} does not subscribe to {topic}; its subscribers: {known}", err=True)
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
    name. The command gives back the messages that they held.
    """
    with readable_errors():
        app, _ = find_app(app_name, database)
        before = declarations.reassign(app, endpoints)
    owners = {endpoint: sorted({each.app for each in before if each.endpoint == endpoint}) for endpoint in endpoints}
    if as_json:
        say(json.dumps({"database": app.store.url, "app": app.name, "endpoints": owners}))
        return
    for endpoint, apps in owners.items():
        say(f"{endpoint}: now declared by {app.name}, before by {' and '.join(apps) or 'no other app'}")
