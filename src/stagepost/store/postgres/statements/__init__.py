"""PostgreSQL's statements, compiled: the server numbers the parameters, and is given bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from stagepost.store.sql.statements import compiled, load

_NUMBER = re.compile(rb"\$(\d+)")


class Statement(NamedTuple):
    """``names`` are its parameters, in the order of their first appearance: ``$1``, ``$2``, …"""

    text: bytes
    names: tuple[str, ...]


@lru_cache(maxsize=1_000)
def for_rows(insert: Statement, count: int) -> Statement:
    """Return ``INSERT … VALUES`` of so many rows, whose parameters follow one another.

    An ``ON CONFLICT`` clause, which names no parameters, begins a line.
    """
    before, _, rest = insert.text.partition(b"VALUES ")
    row, on_conflict, action = rest.partition(b"\nON CONFLICT")
    width = len(insert.names)
    rows = [_shifted(row, at * width) for at in range(count)]
    return Statement(before + b"VALUES " + b", ".join(rows) + on_conflict + action, insert.names * count)


def _shifted(row: bytes, by: int) -> bytes:
    return _NUMBER.sub(lambda match: b"$%d" % (int(match[1]) + by), row)


def numbered(text: str) -> Statement:
    numbered_text, names = compiled(text, "$")
    return Statement(numbered_text.encode(), names)


SQL: Mapping[str, Statement] = {name: numbered(text) for name, text in load("postgres").items()}
