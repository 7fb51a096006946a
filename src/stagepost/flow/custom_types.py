"""Types of messages that another library encodes and decodes, such as pydantic's models."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol


class CustomField(NamedTuple):
    """A field of such a type, by its name in JSON."""

    name: str
    is_required: bool
    allows_none: bool


class CustomCodec(Protocol):
    """Encodes and decodes the types of one library. Equal values have equal bytes."""

    def dump(self, value: Any, declared: type) -> Any:
        """Return a value in the types that JSON has. Raises ``ValueError`` and ``TypeError``."""

    def decode(self, data: bytes, declared: type) -> Any:
        """Decode JSON, and validate the value. Raises ``msgspec.ValidationError``, without the value in its text."""

    def convert(self, fields: dict[str, Any], declared: type) -> Any:
        """Convert a row of a file, and validate the value. Raises ``msgspec.ValidationError``."""

    def check(self, declared: type) -> None:
        """Check at its declaration that values of the type can be written as JSON and read back. Raises
        ``TypeError``."""

    def schemas(self, declared: type, ref_template: str) -> dict[str, Any]:
        """Return the JSON schemas of the type and of the types in it, by name."""

    def fields(self, declared: type) -> list[CustomField]: ...
