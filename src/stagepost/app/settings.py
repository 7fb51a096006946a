"""Where the database is, and which app the commands mean: arguments before the environment before ``stagepost.toml``.

This is the only place that reads the environment.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path

from stagepost.flow.errors import DeclarationError

FILE = "stagepost.toml"
DATABASE_VARIABLE = "STAGEPOST_DATABASE"
APP_VARIABLE = "STAGEPOST_APP"
HANDED_DOWN_VARIABLE = "STAGEPOST_HANDED_DOWN_DATABASE"
DEFAULT_DATABASE = "sqlite:///stagepost.db"


@dataclass(frozen=True, slots=True)
class Settings:
    """``database`` is a URL; ``app`` is ``module:attribute``. Each says in ``sources`` where it was found."""

    database: str
    app: str | None
    database_source: str


def read_settings(database: str | None = None, app: str | None = None) -> Settings:
    """Raises ``DeclarationError`` for a file that cannot be read, or that holds what it should not."""
    file = _read_file()
    chosen, source = _first(
        (database, "the arguments"),
        (os.environ.get(DATABASE_VARIABLE), DATABASE_VARIABLE),
        (file.get("database"), FILE),
        (DEFAULT_DATABASE, "the default"),
    )
    named, _ = _first((app, ""), (os.environ.get(APP_VARIABLE), ""), (file.get("app"), ""))
    assert chosen is not None
    return Settings(chosen, named, source)


def _first(*candidates: tuple[str | None, str]) -> tuple[str | None, str]:
    return next(((value, source) for value, source in candidates if value), (None, ""))


def _read_file() -> dict[str, str]:
    path = Path(FILE)
    try:
        text = path.read_text()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise DeclarationError(f"{path.resolve()} cannot be read: {error}") from error
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DeclarationError(f"{path.resolve()} is not valid TOML: {error}") from error
    for key, value in content.items():
        if key not in ("database", "app"):
            raise DeclarationError(f"{path.resolve()} has {key!r}; it may hold 'database' and 'app'.")
        if not isinstance(value, str):
            raise DeclarationError(f"{path.resolve()}: {key!r} must be a text, not {value!r}")
    return content


def handed_down() -> str:
    """The database that the process which started this one works on. Raises ``DeclarationError``."""
    try:
        return os.environ[HANDED_DOWN_VARIABLE]
    except KeyError:
        raise DeclarationError(f"{HANDED_DOWN_VARIABLE} is not set: 'stagepost worker' starts this process") from None


def handing_down(database: str) -> dict[str, str]:
    """The environment of a process that is to work on this database.

    Not its command line, which everybody on the machine can read: a URL may hold a password.
    """
    return os.environ | {HANDED_DOWN_VARIABLE: database}


def is_postgres(url: str) -> bool:
    return url.startswith(("postgresql://", "postgres://"))


def sqlite_path(url: str) -> Path:
    """The file of ``sqlite:///relative.db`` or ``sqlite:////absolute.db``. Raises ``DeclarationError``."""
    prefix = "sqlite:///"
    name = url.removeprefix(prefix)
    if not url.startswith(prefix) or not name or name.startswith(":"):
        raise DeclarationError(
            f"{url!r} is not a database URL Stagepost knows. Write sqlite:///payments.db for a file in the working "
            "folder, sqlite:////var/lib/payments.db for an absolute path, or postgresql://user@host/database."
        )
    return Path(name)
