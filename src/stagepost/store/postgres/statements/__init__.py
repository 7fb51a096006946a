"""One statement a file, loaded once. A name that does not exist is a KeyError when the store's module is imported.

The files name their parameters, ``:id``, as ``pgbench`` does, which can run them as they are; the server numbers them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from typing import NamedTuple

# A colon that is not one of a cast.
_NAME = re.compile(r"(?<!:):([a-z_]+)")
_NUMBER = re.compile(rb"\$(\d+)")


class Statement(NamedTuple):
    """``names`` are its parameters, in the order of their first appearance: ``$1``, ``$2``, …"""

    text: bytes
    names: tuple[str, ...]


@lru_cache(maxsize=1_000)
def for_rows(insert: Statement, count: int) -> Statement:
    """``INSERT … VALUES`` of so many rows, whose parameters follow one another."""
    before, _, row = insert.text.partition(b"VALUES ")
    width = len(insert.names)
    rows = [_shifted(row, at * width) for at in range(count)]
    return Statement(before + b"VALUES " + b", ".join(rows), insert.names * count)


def _shifted(row: bytes, by: int) -> bytes:
    return _NUMBER.sub(lambda match: b"$%d" % (int(match[1]) + by), row)


def sources() -> dict[str, str]:
    """The files by name, without the comments, which are for their readers."""
    found: dict[str, str] = {}
    for file in resources.files(__name__).iterdir():
        if file.name.endswith(".sql"):
            lines = file.read_text(encoding="utf-8").splitlines()
            kept = [line for line in lines if line.strip() and not line.lstrip().startswith("--")]
            found[file.name.removesuffix(".sql")] = "\n".join(kept)
    return found


def numbered(text: str) -> Statement:
    names = tuple(dict.fromkeys(_NAME.findall(text)))
    numbers = {name: number for number, name in enumerate(names, 1)}
    return Statement(_NAME.sub(lambda match: f"${numbers[match[1]]}", text).encode(), names)


SQL: Mapping[str, Statement] = {name: numbered(text) for name, text in sources().items()}
