"""Models and dataclasses of pydantic as messages, states and replies. Stagepost imports this where one is declared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, get_args

import msgspec
from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from stagepost.flow.custom_types import CustomField

ERRORS_MAX = 5


class PydanticCodec:
    """Implements ``flow.custom_types.CustomCodec``. JSON has the names of the aliases."""

    def dump(self, value: Any, declared: type) -> Any:
        # An error in place of a warning: a field that was set to another type would not be read back.
        dumped = _adapter(declared).dump_python(value, mode="json", by_alias=True, round_trip=True, warnings="error")
        return _in_order(value, dumped)

    def decode(self, data: bytes, declared: type) -> Any:
        return _validated(lambda: _adapter(declared).validate_json(data))

    def convert(self, fields: dict[str, Any], declared: type) -> Any:
        return _validated(lambda: _adapter(declared).validate_python(fields, strict=False))

    def check(self, declared: type) -> None:
        try:
            _adapter(declared).json_schema(mode="serialization")
        except PydanticUserError as error:
            raise TypeError(f"{error.message}. Give its fields types that JSON can hold, or a serializer") from error
        for each in _models(declared, set()):
            for name, info in _fields(each).items():
                if _written(name, info) not in _read(name, info, each):
                    raise TypeError(
                        f"{each.__qualname__}.{name} is written as {_written(name, info)!r} and read as "
                        f"{', '.join(_read(name, info, each)) or 'a part of another field'}. Give it one alias for both"
                    )

    def schemas(self, declared: type, ref_template: str) -> dict[str, Any]:
        schema = _adapter(declared).json_schema(ref_template=ref_template.replace("{name}", "{model}"))
        inner: dict[str, Any] = schema.pop("$defs", {})
        # A type that contains itself stands among the inner ones.
        return inner if declared.__name__ in inner else {**inner, declared.__name__: schema}

    def fields(self, declared: type) -> list[CustomField]:
        return [
            CustomField(_written(name, info), info.is_required(), type(None) in get_args(info.annotation))
            for name, info in _fields(declared).items()
        ]


CODEC = PydanticCodec()


@cache
def _adapter(declared: type) -> TypeAdapter[Any]:
    return TypeAdapter(declared)


def _validated(validate: Callable[[], Any]) -> Any:
    """Raise a validation error with the places and reasons alone, because dead letters show its text."""
    try:
        return validate()
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        reasons = [f"{'.'.join(map(str, each['loc'])) or 'value'}: {each['msg']}" for each in found[:ERRORS_MAX]]
        more = [f"and {len(found) - ERRORS_MAX} more"] if len(found) > ERRORS_MAX else []
        raise msgspec.ValidationError("; ".join([*reasons, *more])) from None


def _fields(declared: Any) -> dict[str, FieldInfo]:
    found: dict[str, FieldInfo] = getattr(declared, "__pydantic_fields__", {})
    return found


def _written(name: str, info: FieldInfo) -> str:
    return info.serialization_alias or name


def _read(name: str, info: FieldInfo, declared: Any) -> list[str]:
    """Return the names by which a field is read."""
    alias = info.validation_alias
    if alias is None:
        return [name]
    names = (
        [alias] if isinstance(alias, str) else [each for each in getattr(alias, "choices", []) if isinstance(each, str)]
    )
    config = getattr(declared, "model_config", None) or getattr(declared, "__pydantic_config__", {})
    by_name = config.get("populate_by_name") or config.get("validate_by_name")
    return [*names, name] if by_name else names


def _models(annotation: Any, seen: set[Any]) -> Iterator[Any]:
    """Yield the pydantic types in an annotation, those of their fields included, each once."""
    if isinstance(annotation, type) and _fields(annotation) and annotation not in seen:
        seen.add(annotation)
        yield annotation
        for info in _fields(annotation).values():
            yield from _models(info.annotation, seen)
    for each in get_args(annotation):
        yield from _models(each, seen)


def _in_order(value: Any, dumped: Any) -> Any:
    """Sort the lists that pydantic made of sets, because a set has another order in each process."""
    match value, dumped:
        case (set() | frozenset(), list()):
            return sorted(dumped, key=lambda each: msgspec.json.encode(each, order="sorted"))
        case (list() | tuple(), list()) if len(value) == len(dumped):
            return [_in_order(*each) for each in zip(value, dumped, strict=True)]
        case (dict(), dict()) if len(value) == len(dumped):
            parts = zip(value.values(), dumped.items(), strict=True)
            return {name: _in_order(part, each) for part, (name, each) in parts}
        case (_, dict()) if _fields(type(value)):
            parts_by_name = {
                _written(name, info): getattr(value, name, None) for name, info in _fields(type(value)).items()
            }
            return {name: _in_order(parts_by_name.get(name), each) for name, each in dumped.items()}
    return dumped
