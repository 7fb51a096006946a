"""Read the producer's own id of a message: from a header, from a CloudEvent, or from fields of the body.

The gateway never makes an id. The producer makes it, and its retries keep it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers

from stagepost.flow import ids
from stagepost.flow.errors import DeclarationError, InvalidId
from stagepost.gateway.json_bodies import canonical_text
from stagepost.gateway.problems import Problem

CLOUDEVENTS = "cloudevents"


class IdSource:
    """The place of a route's ids. ``declared`` is a header's name, ``cloudevents``, or a list of fields."""

    def __init__(self, route: str, declared: str | list[str]) -> None:
        self.fields = tuple(declared) if isinstance(declared, list) else ()
        self.is_event = declared == CLOUDEVENTS
        self.header = declared if isinstance(declared, str) and not self.is_event else None
        if self.header is not None and not _is_header_name(self.header):
            raise DeclarationError(f"id of route {route!r} is {declared!r}, which is no header's name")
        if isinstance(declared, list) and not (self.fields and all(self.fields)):
            raise DeclarationError(f"id of route {route!r} names no field of the body")

    def of_headers(self, headers: Headers) -> str | None:
        """Return the id that the headers have; None for ids that are in the body. Raises ``Problem``."""
        if self.is_event:
            if "ce-id" not in headers and "ce-source" not in headers:
                # A structured event has both in its body.
                return None
            parts = [self._one(headers, name) for name in ("ce-source", "ce-id")]
            return _checked(canonical_text(parts), "id-invalid", "ce-id")
        if self.header is None:
            return None
        value = self._one(headers, self.header)
        if len(value) > 1 and value[0] == value[-1] == '"':
            # The structured header that the draft of Idempotency-Key wants.
            value = value[1:-1]
        return _checked(value, "id-invalid", self.header)

    def of_fields(self, message: Any) -> str:
        """Return the canonical JSON array of the id's fields. Raises ``Problem``."""
        return _checked(
            canonical_text([_found(message, path) for path in self.fields]), "id-field-invalid", self.fields[0]
        )

    def of_element(self, value: Any) -> str:
        """Return the id of an element of a batch. Raises ``Problem``."""
        if not isinstance(value, str):
            raise Problem("id-invalid", "the id of an element must be a text", field="id")
        return _checked(value, "id-invalid", "id")

    def _one(self, headers: Headers, name: str) -> str:
        values = headers.getlist(name)
        if not values:
            raise Problem("id-missing", f"the request has no header {name}", field=name)
        if len(values) > 1:
            raise Problem("header-repeated", f"the request has the header {name} {len(values)} times", field=name)
        return values[0]


def event_id(event: Mapping[str, Any]) -> str:
    """Return the id of a structured CloudEvent. Raises ``Problem``."""
    parts: list[str] = []
    for name in ("source", "id"):
        value = event.get(name)
        if value is None:
            raise Problem("id-missing", f"the event has no {name}", field=name)
        if not isinstance(value, str) or not value:
            raise Problem("id-invalid", f"{name} of the event must be a text that is not empty", field=name)
        parts.append(value)
    return _checked(canonical_text(parts), "id-invalid", "id")


def check_theirs(theirs: str) -> str:
    """Check an id that a producer asks about. Raises ``Problem``."""
    return _checked(theirs, "id-invalid", "id")


def _found(message: Any, path: str) -> str | int:
    value = message
    for name in path.split("."):
        if not isinstance(value, Mapping) or value.get(name) is None:
            raise Problem("id-field-missing", f"the message has no field {path!r}, which its id is made of", field=path)
        value = value[name]
    if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
        raise Problem(
            "id-field-invalid", f"the field {path!r} must be a text or a whole number, and not empty", field=path
        )
    return value


def _checked(value: str, code: str, field: str) -> str:
    try:
        return ids.check_id("the id", value)
    except InvalidId as error:
        raise Problem(code, str(error), field=field) from error


def _is_header_name(name: str) -> bool:
    return bool(name) and name.isascii() and all(each.isalnum() or each in "-_." for each in name)
