"""The statements: one a file, loaded and compiled once, for both databases.

A file is written in PostgreSQL's SQL and names its parameters, ``:id``. ``TRANSLATIONS`` is all that SQLite needs to be
told otherwise. Where the two databases differ in more, a file of the same name below ``store/sqlite/statements`` or
``store/postgres/statements`` takes its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import NamedTuple

# A colon that is not one of a cast.
_NAME = re.compile(r"(?<!:):([a-z_]+)")
_COMMENT = re.compile(r"^ *--.*\n", re.MULTILINE)

# Statements that differ in one clause are one file, which names the clause in braces: ``list_letters`` becomes
# ``list_letters_by_id`` and its like.
CLAUSES: Mapping[str, Mapping[str, str]] = {
    "selection": {
        "by_all": "true",
        "by_id": "id = :value",
        "by_message": "message_id = :value",
        "by_flow": "flow_id = :value",
        "by_group": "fingerprint = :value",
        "by_time": "dead_at >= :since AND dead_at < :until",
    },
    "direction": {"oldest": "ASC", "newest": "DESC"},
}

# Of PostgreSQL's SQL to SQLite's: JSON in place of arrays, no casts, and neither row locks nor a column
# that tells claims of one moment apart, for there is one writer.
TRANSLATIONS = (
    (re.compile(r"unnest\((:\w+)::\w+\[\]\) AS (\w+) \(value\)"), r"json_each(\1) AS \2"),
    (re.compile(r"= ANY \((:\w+)::\w+\[\]\)"), r"IN (SELECT value FROM json_each(\1))"),
    (re.compile(r"::\w+"), ""),
    (re.compile(r"\s+FOR UPDATE( SKIP LOCKED)?"), ""),
    (re.compile(r"IS NOT DISTINCT FROM"), "IS"),
    (re.compile(r", claimed_in = pg_current_xact_id\(\)"), ""),
)


class Statement(NamedTuple):
    """``names`` are its parameters, in the order of their first appearance: number 1, 2, …"""

    text: str
    names: tuple[str, ...]


def compiled(text: str, sign: str) -> Statement:
    """Number the parameters, each behind the database's sign."""
    names = tuple(dict.fromkeys(_NAME.findall(text)))
    return Statement(_NAME.sub(lambda match: f"{sign}{names.index(match[1]) + 1}", text), names)


def load(store: str) -> dict[str, str]:
    """Return a store's statements by name, without the comments, which are for readers of the files."""
    return {name: _COMMENT.sub("", text).strip() for name, text in sources(store).items()}


def sources(store: str) -> dict[str, str]:
    """Return a store's statements by name, its own in place of the shared ones, as they are written."""
    return dict(_files("sql")) | dict(_files(store))


def _files(store: str) -> Iterator[tuple[str, str]]:
    for file in resources.files(f"stagepost.store.{store}").joinpath("statements").iterdir():
        if file.name.endswith(".sql"):
            yield from _variants(file.name.removesuffix(".sql"), file.read_text(encoding="utf-8"))


def _variants(name: str, text: str) -> Iterator[tuple[str, str]]:
    found = re.search(r"\{(\w+)\}", text)
    if found is None:
        yield name, text
    else:
        for variant, words in CLAUSES[found[1]].items():
            yield f"{name}_{variant}", text.replace(found[0], words)
