"""Find by its text, before it runs, a statement that would begin, end, leave or outlive the stage's transaction."""

from __future__ import annotations

import re
from functools import lru_cache

# The text between two words, and before the first: blanks, comments, a byte order mark, empty statements. It matches
# atomically, because backtracking over many comments would take exponential time.
_GAP = r"(?>[\s\ufeff;]++|--[^\n]*+(?:\n|$)|/\*(?>.*?(?:\*/|$)))*+"
_WORD = r"([a-z_]+)"
_STATEMENT = re.compile(f"{_GAP}{_WORD}{_GAP}(?:{_WORD})?{_GAP}(?:{_WORD})?", re.IGNORECASE | re.DOTALL)
_PRAGMA = re.compile(f"{_GAP}pragma{_GAP}(?:[a-z_]+{_GAP}\\.{_GAP})?{_WORD}{_GAP}([=(])?", re.IGNORECASE | re.DOTALL)

_REFUSED = {"BEGIN", "COMMIT", "END", "ATTACH", "DETACH", "VACUUM"}
# PRAGMAs that take an argument and only read. Every other PRAGMA with an argument changes the connection, for this run
# and all later ones.
LOOKING = {
    "foreign_key_check",
    "foreign_key_list",
    "index_info",
    "index_list",
    "index_xinfo",
    "integrity_check",
    "quick_check",
    "table_info",
    "table_list",
    "table_xinfo",
}


@lru_cache(maxsize=1_000)
def forbidden(statement: str) -> str | None:
    """Return the forbidden part of a handler's statement, for an error; None if all is allowed."""
    found = _STATEMENT.match(statement)
    if found is None:
        return None
    first, *others = ((word or "").upper() for word in found.groups())
    if first in _REFUSED:
        return first
    if first == "ROLLBACK":
        to_savepoint = others[0] == "TO" or (others[0] == "TRANSACTION" and others[1] == "TO")
        return None if to_savepoint else first
    if first == "PRAGMA":
        return _forbidden_pragma(statement)
    if first == "CREATE" and others[0] in ("TEMP", "TEMPORARY"):
        return "CREATE TEMP, whose table would outlive this run,"
    return None


def _forbidden_pragma(statement: str) -> str | None:
    found = _PRAGMA.match(statement)
    if found is None or found[2] is None:
        return None
    if found[2] == "(" and found[1].lower() in LOOKING:
        return None
    return f"PRAGMA {found[1]}, which would outlive this run,"
