"""The guard and the business key of a stage, as they are declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args, get_type_hints

from stagepost.flow.codec import is_record
from stagepost.flow.errors import DeclarationError
from stagepost.transaction.stage import Guard

# The names of a message type's fields, or those of each type where a stage takes several.
Key = Sequence[str] | Mapping[type, Sequence[str]]


def check_guard(guard: object) -> Guard:
    for each in get_args(Guard):
        if guard == each:
            found: Guard = each
            return found
    raise DeclarationError(f"guard={guard!r} is not a guard: the guards are 'none', 'reactive' and 'proactive'")


def check_key(key: object) -> Key:
    """Check a key before its types are known. Raises ``DeclarationError``."""
    if isinstance(key, Mapping):
        for declared, names in key.items():
            if not is_record(declared):
                raise DeclarationError(f"key= has {declared!r}, which is no message type: write key={{Order: ('id',)}}")
            _check_names(names)
            _check_fields(declared, names)
    else:
        _check_names(key)
    return key  # type: ignore[return-value]  # both branches checked its form


def keys_of(address: str, key: Key | None, types: Sequence[type]) -> dict[str, Sequence[str]]:
    """Return the key's fields by the names of the types that have one. Raises ``DeclarationError``."""
    if key is None:
        return {}
    if not isinstance(key, Mapping):
        if len(types) > 1:
            names = ", ".join(each.__name__ for each in types)
            raise DeclarationError(
                f"{address} takes {names}, and its key= does not name one: write key={{{types[0].__name__}: "
                f"{tuple(key)!r}}}."
            )
        _check_fields(types[0], key)
        return {types[0].__name__: key}
    for declared in key:
        if declared not in types:
            raise DeclarationError(
                f"key= of {address} names {declared.__name__}, which none of its handlers takes. Leave it out there."
            )
    return {declared.__name__: names for declared, names in key.items()}


def check_guard_with_key(place: str, guard: Guard | None, key: Key | None) -> None:
    if guard == "none" and key is not None:
        raise DeclarationError(
            f"{place} has guard='none' and a business key, which would then recognise nothing. Leave guard= out, or "
            "leave key= out."
        )


def _check_names(names: object) -> None:
    if isinstance(names, str) or not isinstance(names, Sequence) or not names:
        raise DeclarationError(f"key= takes the names of fields, such as ('account', 'invoice'), not {names!r}")
    for each in names:
        if not isinstance(each, str):
            raise DeclarationError(f"key= takes the names of fields, and {each!r} is none")
    if len(set(names)) < len(names):
        raise DeclarationError(f"key={names!r} names a field twice")


def _check_fields(declared: type, names: Sequence[str]) -> None:
    fields = get_type_hints(declared)
    for each in names:
        if each not in fields:
            raise DeclarationError(f"key= names the field {each!r}, and {declared.__name__} has {', '.join(fields)}")
        if fields[each] is float:
            raise DeclarationError(
                f"key= names {declared.__name__}.{each}, a float, whose equal values may be written differently. Make "
                "it a Decimal, an int or a str."
            )
