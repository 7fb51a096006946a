"""A database URL: what it says, with the password left out, and with what a connection of ours needs."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from stagepost.flow.errors import DeclarationError

# A server that is gone without a word is noticed within half a minute, not after two hours.
DEFAULTS: dict[str, Any] = {
    "application_name": "stagepost",
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}

# Our texts are written and read as UTF-8, whatever the environment or the URL would have.
ENCODING = {"client_encoding": "UTF8"}


def parsed(url: str) -> dict[str, Any]:
    """The parameters of a connection. Raises ``DeclarationError``."""
    with suppress(psycopg.ProgrammingError):
        found = conninfo_to_dict(url)
        # A sign of the password that is not spelt with % ends it, and the rest is taken for host, port or database.
        has_rest = any("@" in str(found.get(name, "")) for name in ("host", "dbname"))
        if not has_rest and re.fullmatch(r"[\d,]*", str(found.get("port", ""))):
            return {**DEFAULTS, **found, **ENCODING}
    # The driver's error is no cause to be shown: its text repeats parts of the URL, and with them the password.
    raise DeclarationError(
        "the database URL begins with postgresql:// and cannot be read. Write "
        "postgresql://user:password@host:5432/database, with %-signs for what is not a letter or a digit."
    )
