"""The settings: arguments take precedence over the environment, which takes precedence over ``stagepost.toml``.

No other module reads the environment.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from stagepost.flow.errors import DeclarationError

FILE = "stagepost.toml"
DATABASE_VARIABLE = "STAGEPOST_DATABASE"
QUEUE_VARIABLE = "STAGEPOST_QUEUE"
BROKER_VARIABLE = "STAGEPOST_BROKER"
APP_VARIABLE = "STAGEPOST_APP"
ARCHIVE_VARIABLE = "STAGEPOST_ARCHIVE"
ALLOW_VARIABLE = "STAGEPOST_ALLOW"
TEST_POSTGRES_VARIABLE = "STAGEPOST_TEST_POSTGRES"
HANDED_DOWN_VARIABLE = "STAGEPOST_HANDED_DOWN_DATABASE"
HANDED_DOWN_QUEUE_VARIABLE = "STAGEPOST_HANDED_DOWN_QUEUE"
HANDED_DOWN_BROKER_VARIABLE = "STAGEPOST_HANDED_DOWN_BROKER"
HANDED_DOWN_GATEWAY_VARIABLE = "STAGEPOST_HANDED_DOWN_GATEWAY"
DEFAULT_DATABASE = "sqlite:///stagepost.db"

# Settings of a server that void a promise. An app or the environment may allow them.
ALLOWABLE = ("fsync_off", "full_page_writes_off", "unlogged_tables")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings in use.

    ``database``, ``queue``  URLs; the queue's is None where the queue is in the database
    ``broker``               the URL of the message broker; None for none
    ``app``                  ``module:attribute``
    ``…_source``             where the setting was found
    """

    database: str
    app: str | None
    database_source: str
    queue: str | None
    queue_source: str
    broker: str | None
    broker_source: str


@dataclass(frozen=True, slots=True)
class Place:
    """URLs with which any process finds an app's databases and its broker.

    The queue's is None where the queue is in the database, the broker's where there is no broker.
    """

    database: str
    queue: str | None
    broker: str | None = None


def read_settings(
    database: str | None = None, app: str | None = None, queue: str | None = None, broker: str | None = None
) -> Settings:
    """Read the settings. Raises ``DeclarationError`` for a file that cannot be read, or that has an unknown setting."""
    file = _read_file()
    chosen, source = _first(
        (database, "the arguments"),
        (os.environ.get(DATABASE_VARIABLE), DATABASE_VARIABLE),
        (file.get("database"), FILE),
        (DEFAULT_DATABASE, "the default"),
    )
    named, _ = _first((app, ""), (os.environ.get(APP_VARIABLE), ""), (file.get("app"), ""))
    carrying, carrying_source = _first(
        (queue, "the arguments"),
        (os.environ.get(QUEUE_VARIABLE), QUEUE_VARIABLE),
        (file.get("queue"), FILE),
    )
    at_edge, at_edge_source = _first(
        (broker, "the arguments"),
        (os.environ.get(BROKER_VARIABLE), BROKER_VARIABLE),
        (file.get("broker"), FILE),
    )
    assert chosen is not None
    return Settings(chosen, named, source, carrying, carrying_source, at_edge, at_edge_source)


def archive_of(named: str | None) -> Path | None:
    """Return the folder of the archive that a command names, or that the settings name; None for no archive."""
    folder, _ = _first((named, ""), (os.environ.get(ARCHIVE_VARIABLE), ""), (_read_file().get("archive"), ""))
    return None if folder is None else Path(folder)


def _first(*candidates: tuple[str | None, str]) -> tuple[str | None, str]:
    return next(((value, source) for value, source in candidates if value), (None, ""))


def _read_file() -> dict[str, str]:
    path = Path(FILE)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise DeclarationError(f"{path.resolve()} cannot be read: {error}") from error
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DeclarationError(f"{path.resolve()} is not valid TOML: {error}") from error
    for key, value in content.items():
        if key not in ("database", "queue", "broker", "app", "archive"):
            raise DeclarationError(
                f"{path.resolve()} has {key!r}; it may hold 'database', 'queue', 'broker', 'app' and 'archive'."
            )
        if not isinstance(value, str):
            raise DeclarationError(f"{path.resolve()}: {key!r} must be a text, not {value!r}")
    return content


def allowed_risks() -> frozenset[str]:
    """Return the risks that the environment allows. Raises ``DeclarationError``."""
    names = os.environ.get(ALLOW_VARIABLE, "").split(",")
    return check_allowed(ALLOW_VARIABLE, [each.strip() for each in names if each.strip()])


def check_allowed(where: str, names: Collection[str]) -> frozenset[str]:
    unknown = [names] if isinstance(names, str) else [each for each in names if each not in ALLOWABLE]
    if unknown:
        raise DeclarationError(f"{where} may hold {', '.join(ALLOWABLE)}, and not {unknown[0]!r}")
    return frozenset(names)


def postgres_for_tests() -> str | None:
    """Return the URL of the server on which users' tests make their databases; None if the environment has none."""
    return os.environ.get(TEST_POSTGRES_VARIABLE) or None


def handed_down() -> Place:
    """Return the databases and the broker of the process that started this one. Raises ``DeclarationError``."""
    try:
        database = os.environ[HANDED_DOWN_VARIABLE]
    except KeyError:
        raise DeclarationError(f"{HANDED_DOWN_VARIABLE} is not set: 'stagepost worker' starts this process") from None
    queue, broker = (os.environ.get(each) or None for each in (HANDED_DOWN_QUEUE_VARIABLE, HANDED_DOWN_BROKER_VARIABLE))
    return Place(database, queue, broker)


def handed_down_gateway() -> Path:
    """Return the configuration of the gateway that started this process. Raises ``DeclarationError``."""
    try:
        return Path(os.environ[HANDED_DOWN_GATEWAY_VARIABLE])
    except KeyError:
        raise DeclarationError(
            f"{HANDED_DOWN_GATEWAY_VARIABLE} is not set: 'stagepost gateway' starts this process"
        ) from None


def handing_down(place: Place, gateway: Path | None = None) -> dict[str, str]:
    """Return the environment for a child process that is to work there, for a gateway if one is given.

    Every user of the machine can read a command line, and a URL may hold a password.
    """
    return os.environ | {
        HANDED_DOWN_VARIABLE: place.database,
        HANDED_DOWN_QUEUE_VARIABLE: place.queue or "",
        HANDED_DOWN_BROKER_VARIABLE: place.broker or "",
        **({} if gateway is None else {HANDED_DOWN_GATEWAY_VARIABLE: str(gateway)}),
    }


def read_secret(variable: str) -> str | None:
    """Return the text of an environment variable that a configuration names; None where it is not set or empty."""
    return os.environ.get(variable) or None
