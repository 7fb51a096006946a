"""The check of a handler's statements before they run: which would begin, end, leave or outlive the transaction.

The check reads the text, because PostgreSQL has no authorizer as SQLite has. A text may hold several statements, and
each is checked. The code of a function or a ``DO`` block is not, because PostgreSQL itself refuses to commit there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

# A longer text is usually generated for one use, and would only fill the caches.
CACHED_CHARACTERS_MAX = 10_000
COMMENTS_IN_COMMENTS_MAX = 6


def _comment(depth: int) -> str:
    """Return the pattern of a comment that nests ``depth`` deep: PostgreSQL's comments may contain comments."""
    inner = f"|{_comment(depth - 1)}" if depth else ""
    return rf"/\*(?:[^*/]|\*(?!/)|/(?!\*){inner})*\*/"


# A semicolon or a word does not count inside a string, a quoted name, a comment or a dollar quote.
QUOTED = (
    r"[eE]'(?:[^'\\]|\\.|'')*'"
    r"|'(?:[^']|'')*'"
    r'|"(?:[^"]|"")*"'
    r"|--[^\n\r]*"
    rf"|{_comment(COMMENTS_IN_COMMENTS_MAX)}"
    r"|(?P<tag>\$(?:[^\W\d]\w*)?\$).*?(?P=tag)"
)
# A dollar sign inside a name begins no dollar quote.
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

# These words may stand before a bracket. Each is a keyword, or a function without side effects. The side effects of all
# other functions are not known.
_HARMLESS_CALLS = {
    "ALL", "AND", "ANY", "AS", "AVG", "BY", "CHECK", "COALESCE", "CONFLICT", "COUNT", "ELSE", "EXCEPT", "EXISTS",
    "FILTER", "FROM", "GREATEST", "IN", "INTERSECT", "JOIN", "KEY", "LATERAL", "LEAST", "LENGTH", "LIMIT", "LOWER",
    "MAX", "MIN", "NOT", "NOW", "NULLIF", "ON", "OR", "OVER", "REFERENCES", "RETURNING", "ROUND", "SELECT", "SET",
    "SOME", "SUM", "THEN", "UNION", "UNIQUE", "UPPER", "USING", "VALUES", "WHEN", "WHERE", "WITHIN",
}  # fmt: skip


class Words(NamedTuple):
    """The words of one statement, outside strings, quoted names and comments, in capitals.

    ``leading``  the number of words before the statement's first other token
    ``calls``    it may call a function whose side effects are not known
    """

    words: list[str]
    leading: int
    calls: bool


class StatementFacts(NamedTuple):
    """The facts about a handler's text that matter to the transaction.

    ``forbidden``             the part that a handler may not run, for the error's text; None if all may run
    ``returns_to_savepoint``  PostgreSQL accepts it in a failed transaction
    ``sets_something``        it changes a setting until the transaction ends
    ``is_block``              it is a DO block, or calls a procedure
    ``runs_code``             it is such a block, or calls a function that may do anything
    ``copies``                it is a COPY, which needs several exchanges with the server
    """

    forbidden: str | None
    returns_to_savepoint: bool
    sets_something: bool
    is_block: bool
    runs_code: bool
    copies: bool


def analyse(text: str) -> StatementFacts:
    """Analyse a handler's text. The facts are cached, because a worker runs the same few statements repeatedly."""
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
    # The name directly before the token.
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
            # INTO is followed by a table and its columns, which is no call.
            is_call = token["other"] == "(" and name and name not in _HARMLESS_CALLS and "INTO" not in words[-3:-1]
            calls = calls or bool(is_call)
            name = ""
        elif not token[0].startswith(("--", "/*")):
            name = token[0] if token[0].startswith('"') else ""
    yield Words(words, len(words) if leading is None else leading, calls)


def _forbidden(words: list[str], leading: list[str]) -> str | None:
    if not _SESSION_LOCKS.isdisjoint(words):
        return "a session lock, which would outlive this run (pg_advisory_xact_lock would not),"
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
        return "SET TRANSACTION READ ONLY, after which Stagepost could not write,"
    return None


def _makes_temporary(first: str, others: list[str], words: list[str]) -> bool:
    if first == "CREATE":
        return next((word in _TEMPORARY for word in others if word not in _BEFORE_TEMPORARY), False)
    if first in {"SELECT", "WITH"} and "INTO" in words:
        after = words[words.index("INTO") + 1 :]
        return bool(after) and after[0] in _TEMPORARY
    return False


def _follow(words: list[str], *wanted: str) -> bool:
    """Tell whether the wanted words follow each other in ``words``."""
    return any(tuple(words[at : at + len(wanted)]) == wanted for at in range(len(words)))
