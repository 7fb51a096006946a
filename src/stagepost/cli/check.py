"""``stagepost check``"""

from __future__ import annotations

import json

import click

from stagepost.app.app import engine_of
from stagepost.app.checking import advice_on
from stagepost.cli.exits import BAD_NEWS, readable_errors
from stagepost.cli.options import app_argument, find_app, json_option
from stagepost.cli.show import echo


@click.command()
@app_argument
@json_option
def check(app_name: str | None, as_json: bool) -> None:
    """Check the declarations of an app, and where its handlers call effects. It opens no database.

    \b
    Exit codes: 0 nothing was found, 1 a handler could do better, 2 a declaration cannot work.
    """
    with readable_errors():
        app, name = find_app(app_name, None)
        engine = engine_of(app)
        engine.modes()
        advice = list(advice_on(engine.stages()))
    if as_json:
        echo(json.dumps({"app": name, "stages": len(engine.stages()), "advice": advice}))
    else:
        for each in advice:
            echo(each)
        if not advice:
            echo(f"{name}: {len(engine.stages())} stages, nothing found")
    if advice:
        raise click.exceptions.Exit(BAD_NEWS)
