"""Options and arguments that several commands share, and the apps, stores and letters that they name."""

from __future__ import annotations

import getpass
import math
import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from stagepost.app.app import App
from stagepost.app.loading import load_app
from stagepost.app.settings import APP_VARIABLE, FILE, read_settings
from stagepost.app.stores import Access
from stagepost.flow.clock import SystemClock
from stagepost.flow.errors import DeclarationError
from stagepost.ports.dead_letters import DeadLetters, KeptLetter, Selection
from stagepost.ports.registry import driver_of
from stagepost.ports.session import Session
from stagepost.ports.store import Store


class _Seconds(click.FloatRange):
    """A finite number from 0 up. ``float`` alone would accept ``inf`` and ``nan``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds: float = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value} is not a number of seconds", param, ctx)
        return seconds


SECONDS = _Seconds(min=0)
# A number with more digits may need more than 64 bits.
NUMBER_DIGITS_MAX = 18
F = TypeVar("F", bound=Callable[..., Any])


def database_option(command: F) -> F:
    return click.option(
        "--database",
        metavar="URL",
        help="The store, such as sqlite:///payments.db. Default: STAGEPOST_DATABASE, stagepost.toml, sqlite:///stagepost.db.",
    )(command)


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(command)


def app_option(command: F) -> F:
    return click.option(
        "--app", "app_name", metavar="MODULE:APP", help=f"The app, such as myapp:app. Default: {APP_VARIABLE}, {FILE}."
    )(command)


def app_argument(command: F) -> F:
    return click.argument("app_name", metavar="[MODULE:APP]", required=False)(command)


def log_level_option(default: str) -> Callable[[F], F]:
    levels = click.Choice(["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], case_sensitive=False)
    return click.option("--log-level", type=levels, default=default, show_default=True)


def find_app(app_name: str | None, database: str | None) -> tuple[App, str]:
    """Return the app, on the database of the command line, and its name. Raises ``DeclarationError`` without a name."""
    name = read_settings(app=app_name).app
    if name is None:
        raise DeclarationError(
            f"no app is named. Name it as MODULE:APP, such as myapp:app, or set {APP_VARIABLE}, or write "
            f'app = "myapp:app" in {FILE}.'
        )
    app = load_app(name)
    if database is not None:
        app.database = database
    return app, name


def open_for_reading(database: str | None) -> tuple[Store, Access]:
    """Open the store that the command line names. It must exist, because a typo must not make an empty one."""
    settings = read_settings(database=database)
    if database is not None or settings.queue is None:
        store = driver_of(settings.database).open_existing(settings.database, settings.database_source)
        return store, Access(store.session(), SystemClock())
    # Messages and their history are in the queue's database, and most commands need no other.
    store = driver_of(settings.queue).open_existing(settings.queue, settings.queue_source)

    def open_work() -> Session:
        return driver_of(settings.database).open_existing(settings.database, settings.database_source).session()

    return store, Access(store.session(), SystemClock(), open_work)


def _meanings(letter: str) -> list[Selection]:
    """Return the meanings of a name, the likeliest first, because the id of a message or a flow may be all digits."""
    is_number = letter.isdecimal() and len(letter) <= NUMBER_DIGITS_MAX
    by_number = [Selection("id", int(letter))] if is_number else []
    return [*by_number, Selection("message", letter), Selection("flow", letter)]


def find_letter(dead_letters: DeadLetters, letter: str) -> tuple[Selection, KeptLetter] | None:
    """Return the meaning of a name, and the first letter that it selects."""
    return next(((each, kept) for each in _meanings(letter) for kept in dead_letters.select(each)), None)


def user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # In a container, the user's number may have no name.
        return f"user {os.getuid()}"
