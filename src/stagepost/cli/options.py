"""The options and arguments that commands share, and the apps, stores and dead letters that these name."""

from __future__ import annotations

import getpass
import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, TypeVar

import click

from stagepost.app.app import App
from stagepost.app.loading import load_app
from stagepost.cli.exits import fail, readable_errors
from stagepost.flow.clock import SystemClock
from stagepost.flow.errors import DeclarationError
from stagepost.flow.urls import has_password
from stagepost.ports.dead_letters import DeadLetters, KeptLetter, Selection
from stagepost.ports.registry import driver_of
from stagepost.ports.store import Store, outbox_apart
from stagepost.runtime.access import Access
from stagepost.runtime.settings import APP_VARIABLE, DATABASE_VARIABLE, FILE, read_settings


class FiniteNumber(click.FloatRange):
    """A number of the range that is finite. ``click.FloatRange`` accepts ``inf`` and ``nan``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


# A number with more digits may need more than 64 bits.
NUMBER_DIGITS_MAX = 18
F = TypeVar("F", bound=Callable[..., Any])


def _without_password(context: click.Context, parameter: click.Parameter, url: str | None) -> str | None:
    with readable_errors():
        if url is not None and has_password(url):
            raise DeclarationError(
                "--database contains a password, and every user of this machine can read a command line. Give the URL "
                f"in the variable {DATABASE_VARIABLE} or as database in {FILE}, or keep the password in a password "
                "file (PGPASSFILE)."
            )
    return url


database_option = click.option(
    "--database",
    metavar="URL",
    callback=_without_password,
    help="The store, such as sqlite:///payments.db. Default: STAGEPOST_DATABASE, stagepost.toml, sqlite:///stagepost.db.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
app_option = click.option(
    "--app", "app_name", metavar="MODULE:APP", help=f"The app, such as myapp:app. Default: {APP_VARIABLE}, {FILE}."
)
app_argument = click.argument("app_name", metavar="[MODULE:APP]", required=False)


def log_level_option(default: str) -> Callable[[F], F]:
    levels = click.Choice(["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], case_sensitive=False)
    return click.option("--log-level", type=levels, default=default, show_default=True)


def find_app(app_name: str | None, database: str | None) -> tuple[App, str]:
    """Return the app, on the database of the command line, and its name.

    Raises ``DeclarationError`` if no app is named.
    """
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


@contextmanager
def existing_store(database: str | None) -> Iterator[tuple[Store, Access]]:
    """Open the store that the command line names. Close its sessions after the block.

    Raises ``DeclarationError`` if the store does not exist, because a typo must not make an empty one.
    """
    settings = read_settings(database=database)

    def open_work() -> Store:
        return driver_of(settings.database).open_existing(settings.database, settings.database_source)

    if database is not None or settings.queue is None:
        store = open_work()
        access = Access(store.session(), SystemClock(), open_apart=partial(outbox_apart, store))
    else:
        # Messages and their history are in the queue's database, and most commands need no other.
        store = driver_of(settings.queue).open_existing(settings.queue, settings.queue_source)
        access = Access(
            store.session(), SystemClock(), lambda: open_work().session(), lambda: outbox_apart(open_work())
        )
    with closing(access):
        yield store, access


def meanings_of(letter: str) -> list[Selection]:
    """Return the possible meanings, the likeliest first. The id of a message or a flow may also be all digits."""
    is_number = letter.isdecimal() and len(letter) <= NUMBER_DIGITS_MAX
    by_number = [Selection("id", int(letter))] if is_number else []
    return [*by_number, Selection("message", letter), Selection("flow", letter)]


def find_letter(dead_letters: DeadLetters, meanings: Iterable[Selection]) -> tuple[Selection, KeptLetter] | None:
    """Return the first of the meanings that selects a dead letter, and that letter."""
    return next(((each, kept) for each in meanings for kept in dead_letters.select(each)), None)


def named_letter(dead_letters: DeadLetters, name: str) -> KeptLetter:
    """Return the dead letter of that name, or end the command if there is none."""
    found = find_letter(dead_letters, meanings_of(name))
    if found is None:
        fail(f"there is no dead letter {name!r}")
    return found[1]


def user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # In a container, the user's number may have no name.
        return f"user {os.getuid()}"
