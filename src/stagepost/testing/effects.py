"""Compare the effects of a run that crashed with those of a run that did not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any
from uuid import UUID

# A text that a server or a library made: a UUID, or another long number in hex digits.
MADE_TEXT = re.compile(r"[0-9a-fA-F]{8}-?[0-9a-fA-F-]{4,}")


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect: a row, a text or another value, below the ``label`` of its table where there is one."""

    label: str
    fields: tuple[Any, ...]

    def __str__(self) -> str:
        shown = repr(self.fields[0] if len(self.fields) == 1 else self.fields)
        return f"{self.label}: {shown}" if self.label else shown

    def differs_by_id(self, other: Effect) -> bool:
        """Say whether both are alike except for one id that a server or a library made."""
        if self.label != other.label or len(self.fields) != len(other.fields) or len(self.fields) == 1:
            return False
        pairs = [pair for pair in zip(self.fields, other.fields, strict=True) if pair[0] != pair[1]]
        return len(pairs) == 1 and all(map(_is_made, pairs[0]))


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between two collections of effects.

    ``lost``     the effects that are missing, with their present and their expected number
    ``doubled``  the effects that are there too often, with both numbers
    ``again``    the effects that are there twice, under different ids: the present and the expected one
    ``renamed``  the effects that are there once, under another id: the present and the expected one
    ``new``      the effects that were never expected
    """

    lost: Sequence[tuple[Effect, int, int]]
    doubled: Sequence[tuple[Effect, int, int]]
    again: Sequence[tuple[Effect, Effect]]
    renamed: Sequence[tuple[Effect, Effect]]
    new: Sequence[Effect]


def difference(found: Any, expected: Any) -> Difference:
    """Compare two results of the same shape: rows in lists, in sets, or in a mapping or tuple of lists."""
    values: dict[str, Effect] = {}
    had, wanted = (Counter(_keys(value, values)) for value in (found, expected))
    missing, extra = wanted - had, had - wanted
    doubled = [key for key in extra if wanted[key]]
    again, renamed, new = [], [], []
    for key in (extra - Counter({each: extra[each] for each in doubled})).elements():
        effect = values[key]
        if (twin := _twin(effect, missing, values)) is not None:
            missing[twin] -= 1
            renamed.append((effect, values[twin]))
        elif (twin := _twin(effect, wanted, values)) is not None:
            again.append((effect, values[twin]))
        else:
            new.append(effect)
    return Difference(
        [(values[key], had[key], wanted[key]) for key in +missing],
        [(values[key], had[key], wanted[key]) for key in doubled],
        again,
        renamed,
        new,
    )


def _twin(effect: Effect, among: Counter[str], values: dict[str, Effect]) -> str | None:
    return next((key for key, count in among.items() if count > 0 and effect.differs_by_id(values[key])), None)


def _keys(value: Any, values: dict[str, Effect]) -> Iterator[str]:
    for effect in _effects(value, ""):
        key = f"{effect.label}: {effect.fields!r}"
        values[key] = effect
        yield key


def _effects(value: Any, label: str) -> Iterator[Effect]:
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from _effects(below, f"{label}.{key}" if label else str(key))
    elif isinstance(value, list | AbstractSet) or (isinstance(value, tuple) and any(map(_holds_effects, value))):
        for each in value:
            yield from _effects(each, label)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        yield Effect(label, tuple(value))
    else:
        yield Effect(label, (value,))


def _holds_effects(value: Any) -> bool:
    return isinstance(value, list | Mapping | AbstractSet)


def _is_made(value: Any) -> bool:
    if isinstance(value, str):
        return MADE_TEXT.fullmatch(value) is not None
    return isinstance(value, int | UUID) and not isinstance(value, bool)
