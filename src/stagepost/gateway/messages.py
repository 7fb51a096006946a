"""Read the messages of a request's body: one message, one CloudEvent, or a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from starlette.datastructures import Headers

from stagepost.gateway.acceptor import Item
from stagepost.gateway.json_bodies import Body, digest_of_unparsable, parse, too_deep
from stagepost.gateway.problems import Problem
from stagepost.gateway.producer_ids import event_id
from stagepost.gateway.requests import NDJSON_TYPES, too_large
from stagepost.gateway.routes import BoundRoute

EVENT_TYPE = "application/cloudevents+json"
EVENT_PREFIX = "ce-"
EVENT_VERSION = "1.0"

# The members of a CloudEvent that are no attributes.
_DATA = ("data", "data_base64")

_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_elements = msgspec.json.Decoder(list[msgspec.Raw])


def read_message(
    route: BoundRoute, headers: Headers, kind: str, theirs: str | None, data: bytes, depth_max: int
) -> Item:
    """Read the one message of a body. ``theirs`` is the id of the headers; None if the body has it.

    Raises ``Problem`` where the message has no id. A message with an id may have a problem, which the item has.
    """
    try:
        body = parse(data)
    except Problem as problem:
        if theirs is None:
            raise
        return Item(theirs, None, digest_of_unparsable(data), problem)
    if kind == EVENT_TYPE:
        if not route.ids.is_event:
            raise Problem("content-type-unsupported", f"route {route.name} takes no structured CloudEvents")
        return _event(route, body, depth_max)
    attributes: tuple[tuple[str, str], ...] = ()
    if route.ids.is_event:
        if theirs is None:
            raise Problem("id-missing", "the request has no header ce-id", field="ce-id")
        given = ((name, value) for name, value in headers.items() if name.startswith(EVENT_PREFIX))
        attributes = tuple((name.removeprefix(EVENT_PREFIX), value) for name, value in given)
        _check_version(dict(attributes))
    beyond = _beyond_limits(route, body, depth_max)
    return Item(theirs or route.ids.of_fields(body.value), body, body.digest, beyond, attributes)


def read_batch(route: BoundRoute, kind: str, data: bytes, depth_max: int, batch_max: int) -> list[Item | Problem]:
    """Read the messages of a batch: a JSON array, or one JSON value a line. Raises ``Problem`` for the whole batch.

    If the route's ids are fields of the body, an element is a message. With ``cloudevents`` it is a structured event.
    Else it is an object with ``id`` and ``message``.
    """
    texts = list(_elements_of(kind, data))
    if not texts:
        raise Problem("batch-invalid", "the batch has no message")
    if len(texts) > batch_max:
        raise Problem("batch-too-large", f"the batch has {len(texts)} messages, and {batch_max} are allowed")
    items: list[Item | Problem] = []
    for text in texts:
        try:
            items.append(_element(route, text, depth_max))
        except Problem as problem:
            items.append(problem)
    return items


def _elements_of(kind: str, data: bytes) -> Iterator[bytes]:
    if kind in NDJSON_TYPES:
        yield from (line for line in data.split(b"\n") if line.strip())
        return
    if not isinstance(parse(data).value, list):
        raise Problem("batch-invalid", "the body is not a JSON array")
    yield from (bytes(each) for each in _decoded(_elements, data))


def _element(route: BoundRoute, text: bytes, depth_max: int) -> Item:
    body = parse(text)
    if route.ids.is_event:
        return _event(route, body, depth_max)
    if route.ids.header is None:
        return Item(route.ids.of_fields(body.value), body, body.digest, _beyond_limits(route, body, depth_max))
    if not isinstance(body.value, dict) or body.value.keys() != {"id", "message"}:
        raise Problem("batch-invalid", "an element of the batch must be an object with id and message")
    theirs = route.ids.of_element(body.value["id"])
    inner = parse(bytes(_decoded(_members, text)["message"]))
    return Item(theirs, inner, inner.digest, _beyond_limits(route, inner, depth_max))


def _beyond_limits(route: BoundRoute, body: Body, depth_max: int) -> Problem | None:
    """Return the problem of a body that is too large or too deep for a new message."""
    size_max = route.route.body_max
    if size_max is not None and len(bytes(body.raw)) > size_max:
        return too_large(size_max)
    if body.depth > depth_max:
        return Problem("json-too-deep", f"the body's arrays and objects are nested more than {depth_max} deep")
    return None


def _event(route: BoundRoute, event: Body, depth_max: int) -> Item:
    """Read a structured CloudEvent. Its data is the message."""
    members = event.value
    if not isinstance(members, dict):
        raise Problem("event-invalid", "the event is not a JSON object")
    theirs = event_id(members)
    _check_version(members)
    if "data" not in members or not _is_json(members.get("datacontenttype")):
        problem = Problem("event-invalid", "the event has no JSON data", field="data")
        return Item(theirs, None, event.digest, problem)
    data = parse(bytes(_decoded(_members, event.raw)["data"]))
    attributes = tuple(
        (name, value if isinstance(value, str) else msgspec.json.encode(value).decode())
        for name, value in members.items()
        if name not in _DATA
    )
    return Item(theirs, data, data.digest, _beyond_limits(route, event, depth_max), attributes)


def _check_version(attributes: Mapping[str, Any]) -> None:
    for name in ("specversion", "type"):
        value = attributes.get(name)
        if not isinstance(value, str) or not value or (name == "specversion" and value != EVENT_VERSION):
            raise Problem("event-invalid", f"the event needs {name}, with specversion 1.0", field=name)


def _is_json(content_type: Any) -> bool:
    if content_type is None:
        return True
    name = str(content_type).partition(";")[0].strip().lower()
    return name == "application/json" or name.endswith("+json")


def _decoded(decoder: msgspec.json.Decoder[Any], data: bytes | msgspec.Raw) -> Any:
    try:
        return decoder.decode(data)
    except RecursionError:
        raise too_deep() from None
    except msgspec.DecodeError as error:
        raise Problem("json-invalid", f"the body is not valid JSON: {error}") from error
