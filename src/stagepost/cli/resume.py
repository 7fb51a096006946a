"""``stagepost resume``"""

from __future__ import annotations

import click

from stagepost.cli.exits import BAD_NEWS, readable_errors
from stagepost.cli.options import database_option, open_for_reading
from stagepost.cli.show import say


@click.command()
@click.argument("stage", metavar="STAGE")
@database_option
def resume(stage: str, database: str | None) -> None:
    """End the pause of a stage at once, without waiting for a probe that succeeds.

    If it still fails, it pauses again after as many messages as before.
    """
    with readable_errors():
        _, access = open_for_reading(database)
        session = access.session
        paused = [each.stage for each in session.streaks.paused()]
        if stage in paused:
            session.begin()
            session.streaks.forget(stage)
            session.commit()
        session.close()
    if stage not in paused:
        say(f"{stage} is not paused; paused are: {', '.join(paused) or 'none'}", err=True)
        raise click.exceptions.Exit(BAD_NEWS)
    say(f"{stage} is paused no more")
