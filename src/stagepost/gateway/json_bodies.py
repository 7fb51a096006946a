"""Parse JSON from strangers: strictly, and with a digest that does not depend on its layout."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from typing import Any, NoReturn

import msgspec

from stagepost.gateway.problems import Problem

# A JSON text writes U+0000 only so. An even number of backslashes before it is a text about an escape.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
# Integers beyond it are not exact as floats.
_EXACT_MAX = 2**53


@dataclass(frozen=True, slots=True)
class Body:
    """A JSON text.

    ``value``   its content
    ``raw``     the text itself
    ``digest``  of its canonical form
    ``depth``   how deep its arrays and objects are nested
    """

    value: Any
    raw: msgspec.Raw
    digest: str
    depth: int


def parse(data: bytes) -> Body:
    """Parse one JSON value. Raises ``Problem``: ``json-invalid``, or ``json-too-deep`` for Python's own parser.

    The digest is the SHA-256 of the canonical form: sorted keys, no blanks, UTF-8, and numbers by their value. Text
    that no database or peer can be trusted with is refused: repeated keys, U+0000, lone surrogates, NaN.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _invalid(f"the body is not UTF-8: {error}") from error
    inexact: list[str] = []
    value = _loads(text, lambda number: _number(number, inexact))
    exact = value
    if inexact:
        # No string has U+0000, so the marked numbers are like no other value.
        exact = _loads(text, lambda number: {"\0": str(_exact(number))})
    try:
        canonical = json.dumps(exact, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    except RecursionError:
        raise too_deep() from None
    if "\\u0000" in text and _NUL.search(json.dumps(value, ensure_ascii=False)):
        raise _invalid("a text of the body has the character U+0000, which no database stores")
    try:
        encoded = canonical.encode()
    except UnicodeEncodeError as error:
        raise _invalid(f"a text of the body has half a surrogate pair: {error.reason}") from error
    return Body(value, msgspec.Raw(data), hashlib.sha256(encoded).hexdigest(), _depth_of(value))


def digest_of_unparsable(data: bytes) -> str:
    """Return a digest that no parsed body has."""
    return f"unparsable:{hashlib.sha256(data).hexdigest()}"


def canonical_text(value: Any) -> str:
    """Return a JSON text without blanks."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _loads(text: str, parse_float: Callable[[str], Any]) -> Any:
    try:
        return json.loads(
            text, parse_float=parse_float, parse_constant=_refuse_constant, object_pairs_hook=_without_repeated_keys
        )
    except RecursionError:
        raise too_deep() from None
    except ValueError as error:
        # Python refuses whole numbers of more than 4300 digits with its own error.
        raise _invalid(f"the body is not valid JSON: {error}") from error


def _number(text: str, inexact: list[str]) -> float | int:
    number = float(text)
    if not math.isfinite(number):
        raise _invalid(f"the number {text:.40} is too large")
    exact = _exact(text)
    if exact != Decimal(repr(number)):
        inexact.append(text)
    elif number.is_integer() and abs(number) < _EXACT_MAX:
        return int(number)
    return number


def _exact(text: str) -> Decimal:
    try:
        return Decimal(text).normalize(Context(prec=len(text), Emax=MAX_EMAX, Emin=MIN_EMIN))
    except ArithmeticError as error:
        raise _invalid(f"the number {text:.40} has too large an exponent") from error


def _refuse_constant(name: str) -> NoReturn:
    raise _invalid(f"the body has {name}, which is not JSON")


def _without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]  # add returns None
        raise _invalid(f"an object has the key {repeated!r:.80} twice")
    return made


def _depth_of(value: Any) -> int:
    level, depth = [value], 0
    while level := [each for each in level if isinstance(each, (dict, list))]:
        depth += 1
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
    return depth


def too_deep() -> Problem:
    """Return the problem of a text that a parser gives up."""
    return Problem("json-too-deep", "the body's arrays and objects are nested too deep to be parsed")


def _invalid(detail: str) -> Problem:
    return Problem("json-invalid", detail)
