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

# Words that stand before a bracket and are no function, or one that leaves nothing behind. Of all other functions it is
# not known what they do.
_HARMLESS_CALLS = {
    "ALL", "AND", "ANY", "AS", "AVG", "BY", "CHECK", "COALESCE", "CONFLICT", "COUNT", "ELSE", "EXCEPT", "EXISTS",
    "FILTER", "FROM", "GREATEST", "IN", "INTERSECT", "JOIN", "KEY", "LATERAL", "LEAST", "LENGTH", "LIMIT", "LOWER",
    "MAX", "MIN", "NOT", "NOW", "NULLIF", "ON", "OR", "OVER", "REFERENCES", "RETURNING", "ROUND", "SELECT", "SET",
    "SOME", "SUM", "THEN", "UNION", "UNIQUE", "UPPER", "USING", "VALUES", "WHEN", "WHERE", "WITHIN",
}  # fmt: skip


class Words(NamedTuple):
    """
    ``leading``  how many of the words come before the statement's first other sign
    ``calls``    whether a function may be called whose effects are not known
    """

    words: list[str]
    leading: int
    calls: bool


class StatementFacts(NamedTuple):
    """What a handler's text says, as far as it is the transaction's business.

    ``forbidden``             what in it is not the handler's to say; None where there is nothing
    ``returns_to_savepoint``  PostgreSQL takes it in a transaction in which a statement has failed
    ``sets_something``        it changes a setting until the transaction ends
    ``is_block``              it is a block of code, or calls a procedure
    ``runs_code``             that, or it calls a function: code which may do anything
    ``copies``                it is a COPY, which is a conversation and not a statement
    """

    forbidden: str | None
    returns_to_savepoint: bool
    sets_something: bool
    is_block: bool
    runs_code: bool
    copies: bool


def analyse(text: str) -> StatementFacts:
    """Before each statement of a handler: a worker says the same few again and again."""
    return _analyse_cached(text) if len(text) <= CACHED_CHARACTERS_MAX else _analyse(text)


def _analyse(text: str) -> StatementFacts:
    statements = list(_statements(text))
    first = statements[0].words
    firsts = {each.words[0] for each in statements if each.words}
    refused = (_forbidden(each.words, each.words[: each.leading]) for each in statements)
    is_block = not firsts.isdisjoint({"DO", "CALL"})
    return StatementFacts(
        forbidden=next((what for what in refused if what is not None), None),
        returns_to_savepoint=first[:1] == ["ROLLBACK"] and "TO" in first[1:3],
        sets_something="SET" in firsts or any("SET_CONFIG" in each.words for each in statements),
        is_block=is_block,
        runs_code=is_block or any(each.calls for each in statements),
        copies="COPY" in firsts,
    )


_analyse_cached = lru_cache(maxsize=1_000)(_analyse)


def _statements(text: str) -> Iterator[Words]:
    words: list[str] = []
    leading: int | None = None
    calls = False
    # The name that stands right before.
    name = ""
    for token in _TOKEN.finditer(text):
        if token["end"]:
            yield Words(words, len(words) if leading is None else leading, calls)
            words, leading, calls, name = [], None, False, ""
        elif token["word"]:
            words.append(token["word"].upper())
            name = words[-1]
        elif token["other"]:
            leading = len(words) if leading is None else leading
            # What follows INTO is a table with its columns.
            is_call = token["other"] == "(" and name and name not in _HARMLESS_CALLS and "INTO" not in words[-3:-1]
            calls = calls or bool(is_call)
            name = ""
        elif not token[0].startswith(("--", "/*")):
            name = token[0] if token[0].startswith('"') else ""
    yield Words(words, len(words) if leading is None else leading, calls)


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
