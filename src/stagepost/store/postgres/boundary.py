"""Which statements would begin, end, leave or outlive the stage's transaction: told by their text, before they run.

PostgreSQL runs several statements that come as one text, and has no authorizer that could be asked: so each of them is
looked at. What a function or a ``DO`` block does needs no look, for PostgreSQL itself refuses to commit there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

# What may hold a semicolon, or a word, that is none: strings, quoted names, comments, dollar quotes.
QUOTED = (
    r"[eE]'(?:[^'\\]|\\.|'')*'"
    r"|'(?:[^']|'')*'"
    r'|"(?:[^"]|"")*"'
    r"|--[^\n]*"
    r"|/\*.*?\*/"
    r"|(?P<tag>\$(?:[A-Za-z_][A-Za-z_0-9]*)?\$).*?(?P=tag)"
)
_TOKEN = re.compile(f"(?:{QUOTED})|(?P<end>;)|(?P<word>[A-Za-z_][A-Za-z_0-9]*)|(?P<other>\\S)", re.DOTALL)

_REFUSED = {"BEGIN", "COMMIT", "END", "ABORT", "START", "ROLLBACK", "PREPARE", "DISCARD", "LISTEN", "UNLISTEN", "RESET"}
_SCOPES = {"LOCAL", "TRANSACTION", "CONSTRAINTS"}
WORDS_LOOKED_AT = 5


@lru_cache(maxsize=1_000)
def forbidden(text: str) -> str | None:
    """What in a handler's statement is not the handler's to say; None where there is nothing."""
    for words in _statements(text):
        what = _forbidden(words)
        if what is not None:
            return what
    return None


def _statements(text: str) -> Iterator[list[str]]:
    """The first words of each statement; a sign that is no word ends them."""
    words: list[str] = []
    is_over = False
    for token in _TOKEN.finditer(text):
        if token["end"]:
            yield words
            words, is_over = [], False
        elif token["word"] and not is_over and len(words) < WORDS_LOOKED_AT:
            words.append(token["word"].upper())
        elif token["other"]:
            is_over = True
    yield words


def _forbidden(words: list[str]) -> str | None:
    if not words:
        return None
    first, *others = words
    second = others[0] if others else ""
    if first == "ROLLBACK":
        to_savepoint = "TO" in others[:2]
        return None if to_savepoint else first
    if first == "SET":
        return None if second in _SCOPES else "SET, which would outlive this run, without LOCAL"
    if first == "CREATE" and (second in {"TEMP", "TEMPORARY"} or "TEMP" in others[:2] or "TEMPORARY" in others[:2]):
        return "CREATE TEMP, whose table would outlive this run,"
    if first == "DECLARE" and "HOLD" in others:
        return "DECLARE … WITH HOLD, whose cursor would outlive this run,"
    return first if first in _REFUSED else None
