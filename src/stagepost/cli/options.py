"""What several commands take."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

from stagepost.app.app import App
from stagepost.app.loading import load_app
from stagepost.app.settings import APP_VARIABLE, FILE, read_settings
from stagepost.app.stores import Access, Store, StoreSession, access, access_to_both, open_existing_store
from stagepost.flow.clock import SystemClock
from stagepost.flow.errors import DeclarationError


class _Seconds(click.FloatRange):
    """From 0 up; neither infinite nor no number, which ``float`` would take too."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds: float = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value} is not a number of seconds", param, ctx)
        return seconds


SECONDS = _Seconds(min=0)
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
    """The app, on the database that the command line names, and its name. Raises ``DeclarationError``."""
    name = read_settings(app=app_name).app
    if name is None:
        raise DeclarationError(
            f'which app? Say it as MODULE:APP, such as myapp:app, or set {APP_VARIABLE}, or write app = "myapp:app" in '
            f"{FILE}."
        )
    app = load_app(name)
    if database is not None:
        app.database = database
    return app, name


def open_for_reading(database: str | None) -> tuple[Store, Access]:
    """The store that the command line names, which must exist: a typo must not make an empty one."""
    settings = read_settings(database=database)
    if database is not None or settings.transport is None:
        store = open_existing_store(settings.database, settings.database_source)
        return store, access(store.session(), SystemClock())
    # Messages and their history are with the transport: most who look need no other.
    store = open_existing_store(settings.transport, settings.transport_source)

    def open_work() -> StoreSession:
        return open_existing_store(settings.database, settings.database_source).session()

    return store, access_to_both(store.session(), open_work, SystemClock())
