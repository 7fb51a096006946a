"""Which statements would begin, end, leave or outlive the stage's transaction: told by their text, before they run.

PostgreSQL runs several statements that come as one text, and has no authorizer that could be asked: so each of them is
looked at. What a function or a ``DO`` block does needs no look, for PostgreSQL itself refuses to commit there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

# Longer ones are made for one use, and would only fill the caches.
CACHED_CHARACTERS_MAX = 10_000
COMMENTS_IN_COMMENTS_MAX = 6


def _comment(depth: int) -> str:
    """PostgreSQL's comments may hold comments."""
    inner = f"|{_comment(depth - 1)}" if depth else ""
    return rf"/\*(?:[^*/]|\*(?!/)|/(?!\*){inner})*\*/"


# What may hold a semicolon, or a word, that is none: strings, quoted names, comments, dollar quotes.
QUOTED = (
    r"[eE]'(?:[^'\\]|\\.|'')*'"
    r"|'(?:[^']|'')*'"
    r'|"(?:[^"]|"")*"'
    r"|--[^\n\r]*"
    rf"|{_comment(COMMENTS_IN_COMMENTS_MAX)}"
    r"|(?P<tag>\$(?:[^\W\d]\w*)?\$).*?(?P=tag)"
)
# A name may hold dollar signs, which begin no dollar quote then.
NAME = r"[^\W\d][\w$]*"
_TOKEN = re.compile(f"(?:{QUOTED})|(?P<end>;)|(?P<word>{NAME})|(?P<other>\\S)", re.DOTALL)

_REFUSED = {
    "BEGIN", "COMMIT", "END", "ABORT", "START", "ROLLBACK", "PREPARE", "DEALLOCATE", "DISCARD", "LISTEN", "UNLISTEN",
    "RESET",
}  # fmt: skip
_SCOPES = {"LOCAL", "TRANSACTION", "CONSTRAINTS"}
_TEMPORARY = {"TEMP", "TEMPORARY"}
_BEFORE_TEMPORARY = {"OR", "REPLACE", "LOCAL", "GLOBAL"}
_SESSION_LOCKS = {
    "PG_ADVISORY_LOCK", "PG_ADVISORY_LOCK_SHARED", "PG_TRY_ADVISORY_LOCK", "PG_TRY_ADVISORY_LOCK_SHARED",
}  # fmt: skip

# The words of a statement, and how many of them come before its first other sign.
Words = tuple[list[str], int]


class Said(NamedTuple):
    """What a handler's text says, as far as it is the transaction's business.

    ``forbidden``             what in it is not the handler's to say; None where there is nothing
    ``returns_to_savepoint``  PostgreSQL takes it in a transaction in which a statement has failed
    ``sets_something``        it changes a setting until the transaction ends
    ``runs_code``             it is a block of code, or calls a procedure, which may do anything
    ``copies``                it is a COPY, which is a conversation and not a statement
    """

    forbidden: str | None
    returns_to_savepoint: bool
    sets_something: bool
    runs_code: bool
    copies: bool


def look_at(text: str) -> Said:
    """Before each statement of a handler: a worker says the same few again and again."""
    return _look_again(text) if len(text) <= CACHED_CHARACTERS_MAX else _look(text)


def _look(text: str) -> Said:
    statements = list(_statements(text))
    first = statements[0][0]
    return Said(
        next((what for words, leading in statements if (what := _forbidden(words, words[:leading])) is not None), None),
        first[:1] == ["ROLLBACK"] and "TO" in first[1:3],
        any(words[:1] == ["SET"] or "SET_CONFIG" in words for words, _ in statements),
        any(words[:1] in (["DO"], ["CALL"]) for words, _ in statements),
        any(words[:1] == ["COPY"] for words, _ in statements),
    )


_look_again = lru_cache(maxsize=1_000)(_look)


def _statements(text: str) -> Iterator[Words]:
    words: list[str] = []
    leading: int | None = None
    for token in _TOKEN.finditer(text):
        if token["end"]:
            yield words, len(words) if leading is None else leading
            words, leading = [], None
        elif token["word"]:
            words.append(token["word"].upper())
        elif token["other"] and leading is None:
            leading = len(words)
    yield words, len(words) if leading is None else leading


def _forbidden(words: list[str], leading: list[str]) -> str | None:
    if not _SESSION_LOCKS.isdisjoint(words):
        return "a lock of the session, which would outlive this run (pg_advisory_xact_lock would not),"
    if not leading:
        return None
    first, *others = leading
    if first == "ROLLBACK":
        to_savepoint = "TO" in others[:2]
        return None if to_savepoint else first
    if first == "SET":
        return _set(others, words)
    if _makes_temporary(first, others, words) and not _follow(words, "ON", "COMMIT", "DROP"):
        return "a temporary table, which would outlive this run without ON COMMIT DROP,"
    if first == "DECLARE" and _follow(words[: words.index("FOR")] if "FOR" in words else words, "WITH", "HOLD"):
        return "DECLARE … WITH HOLD, whose cursor would outlive this run,"
    return first if first in _REFUSED else None


def _set(others: list[str], words: list[str]) -> str | None:
    if not others or others[0] not in _SCOPES:
        return "SET, which would outlive this run, without LOCAL"
    if "TRANSACTION_READ_ONLY" in others or (others[0] == "TRANSACTION" and _follow(words, "READ", "ONLY")):
        return "SET TRANSACTION READ ONLY, in which Stagepost could not write either,"
    return None


def _makes_temporary(first: str, others: list[str], words: list[str]) -> bool:
    if first == "CREATE":
        return next((word in _TEMPORARY for word in others if word not in _BEFORE_TEMPORARY), False)
    if first in {"SELECT", "WITH"} and "INTO" in words:
        after = words[words.index("INTO") + 1 :]
        return bool(after) and after[0] in _TEMPORARY
    return False


def _follow(words: list[str], *wanted: str) -> bool:
    """Whether these words stand there one after the other."""
    return any(tuple(words[at : at + len(wanted)]) == wanted for at in range(len(words)))
