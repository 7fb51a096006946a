"""The OpenAPI document of a gateway, generated from its routes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stagepost.flow.schemas import json_schemas
from stagepost.gateway.limits import Limits
from stagepost.gateway.problems import KINDS, MEDIA_TYPE
from stagepost.gateway.requests import JSON_TYPES, NDJSON_TYPES
from stagepost.gateway.routes import BoundRoute

VERSION = "3.1.0"
SCHEMAS = "#/components/schemas/"

RECEIPT = {
    "type": "object",
    "required": ["status", "id", "message_id", "digest"],
    "properties": {
        "status": {"enum": ["accepted", "duplicate"]},
        "id": {"type": "string", "description": "The producer's own id."},
        "message_id": {"type": "string", "format": "uuid", "description": "The id that trace and logs show."},
        "digest": {"type": "string", "description": "SHA-256 of the body's canonical JSON, in hex."},
    },
}
PROBLEM = {
    "type": "object",
    "description": "A problem document (RFC 9457).",
    "required": ["type", "title", "status", "code", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string", "description": f"One of {', '.join(sorted(KINDS))}, or a code of the service."},
        "detail": {"type": "string"},
        "field": {"type": "string"},
        "remedy": {"type": "string"},
    },
}
BATCH_RESULT = {
    "type": "object",
    "required": ["results"],
    "properties": {
        "results": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["index", "status", "code_http"],
                "properties": {
                    "index": {"type": "integer"},
                    "status": {"enum": ["accepted", "duplicate", "refused"]},
                    "code_http": {"type": "integer", "description": "The status of the message if it came alone."},
                },
            },
        }
    },
}
STATUS = {
    "type": "object",
    "required": ["id", "message_id", "status", "received", "waypoints"],
    "properties": {
        "id": {"type": "string"},
        "message_id": {"type": "string"},
        "status": {"type": "string"},
        "received": {"type": "integer", "description": "How often the message was read from the queue."},
        "waypoints": {"type": "array", "items": {"type": "object"}},
    },
}


def openapi_document(routes: Mapping[str, BoundRoute], title: str, limits: Limits) -> dict[str, Any]:
    """Return the document: a path for each route, for its batches and for the status of its messages."""
    typed = [each.type for each in routes.values() if not each.is_delivery]
    types = json_schemas(typed, f"{SCHEMAS}{{name}}")
    paths: dict[str, Any] = {}
    for each in routes.values():
        schema = _schema_of(each)
        paths[f"/{each.name}"] = {"post": _post(each, schema)}
        paths[f"/{each.name}/batch"] = {"post": _post_batch(each, schema, limits)}
        paths[f"/{each.name}/messages/{{id}}"] = {"get": _get_status(each)}
    paths["/healthz"] = {"get": _health("The process is alive.", "healthz", {"200": "alive"})}
    paths["/readyz"] = {
        "get": _health("The store answers.", "readyz", {"200": "ready", "503": "the store does not answer"})
    }
    return {
        "openapi": VERSION,
        "info": {"title": title, "version": "1"},
        "paths": paths,
        "components": {
            "schemas": {
                **types,
                "Receipt": RECEIPT,
                "Problem": PROBLEM,
                "BatchResult": BATCH_RESULT,
                "MessageStatus": STATUS,
            },
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
    }


def _schema_of(route: BoundRoute) -> dict[str, Any]:
    """Return the schema of one message: the type's and the route's own."""
    parts: list[dict[str, Any]] = []
    if not route.is_delivery:
        parts.append({"$ref": f"{SCHEMAS}{route.type.__name__}"})
    if route.validator is not None:
        parts.append(dict(route.validator.schema))
    if not parts:
        return {}
    return parts[0] if len(parts) == 1 else {"allOf": parts}


def _post(route: BoundRoute, schema: dict[str, Any]) -> dict[str, Any]:
    media = [JSON_TYPES[0]] if not route.ids.is_event else list(JSON_TYPES)
    contents = {name: {"schema": schema if name == JSON_TYPES[0] else {"type": "object"}} for name in media}
    return {
        "operationId": f"post_{route.name}",
        "summary": f"Accept a message for {route.route.to or 'a consumer outside'}",
        "description": _describe_id(route),
        "parameters": _id_parameters(route),
        "requestBody": {"required": True, "content": contents},
        "responses": {
            "200": _content("The message is on the disk, now or since an earlier request.", "Receipt"),
            **_problems(400, 401, 403, 408, 409, 413, 415, 422, 429, 431, 500, 503),
            **_own_problems(route),
        },
    }


def _post_batch(route: BoundRoute, schema: dict[str, Any], limits: Limits) -> dict[str, Any]:
    element: dict[str, Any] = schema
    if route.ids.is_event:
        element = {"type": "object"}
    elif route.ids.header is not None:
        element = {
            "type": "object",
            "required": ["id", "message"],
            "properties": {"id": {"type": "string"}, "message": schema},
            "additionalProperties": False,
        }
    array = {"type": "array", "items": element, "minItems": 1, "maxItems": limits.batch_max}
    return {
        "operationId": f"post_{route.name}_batch",
        "summary": "Accept several messages, each by itself",
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": array},
                NDJSON_TYPES[0]: {"schema": {"type": "string", "description": "One message a line."}},
            },
        },
        "responses": {
            "200": _content("Each message is accepted or a duplicate.", "BatchResult"),
            "207": _content("Some messages are refused: see their own status.", "BatchResult"),
            **_problems(400, 401, 403, 408, 413, 415, 429, 431, 500, 503),
        },
    }


def _get_status(route: BoundRoute) -> dict[str, Any]:
    parameter = {
        "name": "id",
        "in": "path",
        "required": True,
        "description": "The producer's own id. For an id of several parts: their canonical JSON array.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 200},
    }
    return {
        "operationId": f"status_{route.name}",
        "summary": "Look up a message of the producer's own",
        "parameters": [parameter],
        "responses": {
            "200": _content("The message was accepted.", "MessageStatus"),
            **_problems(400, 401, 403, 404, 431, 500, 503),
        },
    }


def _id_parameters(route: BoundRoute) -> list[dict[str, Any]]:
    names: Sequence[str] = []
    if route.ids.is_event:
        names = ("ce-id", "ce-source", "ce-type", "ce-specversion")
    elif route.ids.header is not None:
        names = (route.ids.header,)
    schema = {"type": "string", "minLength": 1, "maxLength": 200}
    return [
        {
            "name": name,
            "in": "header",
            # A structured CloudEvent has them in its body.
            "required": not route.ids.is_event,
            "schema": {"const": "1.0"} if name == "ce-specversion" else schema,
        }
        for name in names
    ]


def _describe_id(route: BoundRoute) -> str:
    if route.ids.is_event:
        place = "the event's source and id"
    elif route.ids.header is not None:
        place = f"the header {route.ids.header}"
    else:
        place = f"the fields {', '.join(route.ids.fields)}"
    return f"The id is {place}. The producer makes it, and all retries keep it."


def _content(description: str, schema: str) -> dict[str, Any]:
    return {
        "description": description,
        "content": {"application/json": {"schema": {"$ref": f"{SCHEMAS}{schema}"}}},
    }


def _problems(*statuses: int) -> dict[str, Any]:
    return {str(status): _problem(status) for status in statuses}


def _own_problems(route: BoundRoute) -> dict[str, Any]:
    """Return the further statuses that the route's check may answer with."""
    return _problems(402, 404, 410) if route.check is not None else {}


def _problem(status: int) -> dict[str, Any]:
    codes = ", ".join(sorted(code for code, kind in KINDS.items() if kind.status == status))
    return {
        "description": codes or "a code of the service",
        "content": {MEDIA_TYPE: {"schema": {"$ref": f"{SCHEMAS}Problem"}}},
    }


def _health(summary: str, name: str, answers: Mapping[str, str]) -> dict[str, Any]:
    return {
        "operationId": name,
        "summary": summary,
        "security": [],
        "responses": {
            status: {"description": text, "content": {"application/json": {"schema": {"type": "object"}}}}
            for status, text in answers.items()
        },
    }
