"""``stagepost unsubscribe``"""

from __future__ import annotations

import json

import click

from stagepost.cli.exits import BAD_NEWS, readable_errors
from stagepost.cli.options import database_option, json_option, open_for_reading
from stagepost.cli.show import say


@click.command()
@click.argument("topic")
@click.argument("subscriber")
@database_option
@json_option
def unsubscribe(topic: str, subscriber: str, database: str | None, as_json: bool) -> None:
    """End a subscription: what is published to TOPIC from now on is not for SUBSCRIBER. What was stays.

    An app that still declares it subscribes again when it starts: take the declaration out first.
    """
    with readable_errors():
        _, access = open_for_reading(database)
        access.session.begin()
        is_ended = access.session.unsubscribe(topic, subscriber)
        access.session.commit()
        others = sorted(access.session.subscriptions([topic]))
        access.session.close()
    if as_json:
        say(json.dumps({"topic": topic, "subscriber": subscriber, "ended": is_ended}))
    elif is_ended:
        say(f"{subscriber} gets no more of what is published to {topic}")
    else:
        known = ", ".join(f"{each.subscriber} (of {each.app})" for each in others) or "nobody"
        say(f"{subscriber} does not subscribe to {topic}; who does: {known}", err=True)
    if not is_ended:
        raise click.exceptions.Exit(BAD_NEWS)
