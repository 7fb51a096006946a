"""The guard and the business key of a stage, as they are declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_origin, get_type_hints

from stagepost.flow.codec import is_record
from stagepost.flow.errors import DeclarationError
from stagepost.transaction.stage import GUARDS, Guard

# The names of a message type's fields, or those of each type where a stage takes several.
Key = Sequence[str] | Mapping[type, Sequence[str]]
# One guard for all messages, or one for each type.
Guards = Guard | Mapping[type, Guard]


def check_guard(guard: object) -> Guards:
    """Check a guard before its types are known. Raises ``DeclarationError``."""
    if isinstance(guard, Mapping) and guard:
        return {_checked_type("guard", declared): _checked_guard(each) for declared, each in guard.items()}
    return _checked_guard(guard)


def guards_of(address: str, guards: Guards | None, types: Sequence[type]) -> dict[str, Guard]:
    """Return the guard by the names of the stage's types; nothing for the mode's default. Raises ``DeclarationError``.

    A mapping must name each type, because two types of one envelope share a transaction.
    """
    if guards is None:
        return {}
    if not isinstance(guards, Mapping):
        return {each.__name__: guards for each in types}
    for declared in guards:
        if declared not in types:
            raise DeclarationError(
                f"guard= of {address} names {declared.__name__}, which none of its handlers takes. Leave it out there."
            )
    for each in types:
        if each not in guards:
            raise DeclarationError(
                f"guard= of {address} does not name {each.__name__}, which it takes too. Give it one: 'none', "
                "'reactive' or 'proactive'."
            )
    return {declared.__name__: guard for declared, guard in guards.items()}


def _checked_guard(guard: object) -> Guard:
    for each in GUARDS:
        if guard == each:
            return each
    raise DeclarationError(f"guard={guard!r} is not a guard: the guards are 'none', 'reactive' and 'proactive'")


def _checked_type(what: str, declared: object) -> type:
    if not isinstance(declared, type) or not is_record(declared):
        raise DeclarationError(f"{what}= has {declared!r}, which is no message type")
    return declared


def check_key(key: object) -> Key:
    """Check a key before its types are known. Raises ``DeclarationError``."""
    if isinstance(key, Mapping):
        if not key:
            raise DeclarationError("key={} names no message type: write key={Order: ('id',)}, or leave key= out")
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


def check_guard_with_key(place: str, guard: Guards | None, key: Key | None) -> None:
    """Check that no type has a key and the guard ``none``. Raises ``DeclarationError``."""
    if key is None or guard is None:
        return
    guards = guard if isinstance(guard, Mapping) else {}
    keyed = key if isinstance(key, Mapping) else guards
    if guard == "none" or any(guards.get(each) == "none" for each in keyed):
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
        if _may_hold_float(fields[each], ()):
            raise DeclarationError(
                f"key= names {declared.__name__}.{each}, which may hold a float, whose equal values may be written "
                "differently. Make it a Decimal, an int or a str."
            )


def _may_hold_float(annotation: Any, within: tuple[type, ...]) -> bool:
    """Say whether a value of a type, or a value in it, may be a float."""
    found = get_origin(annotation) or annotation
    if found is Any or (isinstance(found, type) and issubclass(found, float)):
        return True
    inner = get_args(annotation)
    if isinstance(found, type) and is_record(found) and found not in within:
        within, inner = (*within, found), (*inner, *get_type_hints(found).values())
    return any(_may_hold_float(each, within) for each in inner)
