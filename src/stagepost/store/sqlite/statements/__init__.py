"""SQLite's statements, compiled."""

from __future__ import annotations

from collections.abc import Mapping

from stagepost.store.sql.statements import TRANSLATIONS, Statement, compiled, load


def translated(text: str) -> Statement:
    for pattern, words in TRANSLATIONS:
        text = pattern.sub(words, text)
    return compiled(text, "?")


SQL: Mapping[str, Statement] = {name: translated(text) for name, text in load("sqlite").items()}
