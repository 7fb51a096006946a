"""Which indexes a statement's file says that it uses."""

from __future__ import annotations

import re

from stagepost.store.sql.statements import sources

# Of the statements that are one file, for each selection of dead letters.
SELECTIONS = {
    "by_all": "the primary key",
    "by_id": "the primary key",
    "by_message": "stagepost_dead_letter_message",
    "by_flow": "stagepost_dead_letter_flow",
    "by_group": "stagepost_dead_letter_fingerprint",
    "by_time": "stagepost_dead_letter_dead_at",
}


def named_by(store: str, name: str) -> str:
    lines = sources(store)[name].splitlines()
    comments = " ".join(line.strip()[2:].strip() for line in lines if line.startswith("--"))
    (named,) = re.findall(r"Index: ([^.]*)\.", comments) or [""]
    return SELECTIONS[name[name.index("_by_") + 1 :]] if named == "that of the selection" else str(named)


def indexes_named_by(store: str, name: str) -> list[str]:
    return re.findall(r"stagepost_\w+", named_by(store, name))
