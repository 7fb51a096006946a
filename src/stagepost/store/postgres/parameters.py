"""Number the parameters ``:name`` of a handler's SQL for the server, which gets their values separately."""

from __future__ import annotations

import re
from functools import lru_cache

from stagepost.store.postgres.boundary import CACHED_CHARACTERS_MAX, QUOTED
from stagepost.store.postgres.statements import Statement

# Quoted text stays unchanged. ``::`` is a cast, and ``[1:2]`` is a slice of an array.
_PARAMETER = re.compile(f"(?:{QUOTED})|::|(?<![\\w\\]]):(?P<name>[A-Za-z_][A-Za-z_0-9]*)", re.DOTALL)


def numbered(text: str) -> Statement:
    return _numbered_cached(text) if len(text) <= CACHED_CHARACTERS_MAX else _numbered(text)


def _numbered(text: str) -> Statement:
    numbers: dict[str, int] = {}

    def number(match: re.Match[str]) -> str:
        name = match["name"]
        return match[0] if name is None else f"${numbers.setdefault(name, len(numbers) + 1)}"

    replaced = _PARAMETER.sub(number, text)
    return Statement(replaced.encode(), tuple(numbers))


_numbered_cached = lru_cache(maxsize=1_000)(_numbered)
