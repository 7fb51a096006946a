"""A transaction that is prepared, and waits to be told what becomes of it."""

from __future__ import annotations

from typing import NamedTuple


class InDoubt(NamedTuple):
    """``gid`` names it in the whole server; ``age_seconds``: since when it is prepared."""

    gid: str
    age_seconds: float
