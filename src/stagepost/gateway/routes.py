"""The routes of a gateway: each takes messages for one endpoint, or for a consumer outside.

A ``Route`` is a declaration. A ``BoundRoute`` is the route of a running gateway, with its types and schema resolved.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import jsonschema
import msgspec
import referencing
from jsonschema.exceptions import SchemaError

from stagepost.app.app import App
from stagepost.app.loading import load_attribute
from stagepost.flow.errors import DeclarationError
from stagepost.flow.target import Target
from stagepost.gateway.out.declaring import check_takes_refusals, deliver
from stagepost.gateway.out.delivery import read_delivery
from stagepost.gateway.posted import Posted
from stagepost.gateway.producer_ids import IdSource

# Paths of the gateway's own, which no route may take.
RESERVED = frozenset({"healthz", "readyz", "metrics", "docs", "openapi.json"})
NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
# The endpoints of routes with a table deliver.
DELIVERY_PREFIX = "gateway."


class Route(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A route: ``POST /{name}`` accepts messages for an endpoint, or for a consumer outside.

    ``name``       lower-case letters, digits, ``_``, ``-`` and ``.``; it is a part of every message id
    ``to``         the endpoint of the app that gets the messages
    ``deliver``    in place of ``to``: the settings of the delivery to a consumer outside
    ``id``         where the producer's id is: a header's name, ``cloudevents``, or a list of fields of the body
    ``type``       which of the endpoint's message types the route takes; needed only where there are several
    ``schema``     a JSON Schema (2020-12) that messages must match: a mapping, or the name of a file
    ``check``      a function of the message that refuses it by raising ``Rejected``; in TOML ``module:function``
    ``producers``  the producers that may use the route; None for all
    ``rate``       messages a second from each producer, with ``burst`` at once (default: one second's); None: no limit
    ``waiting_max``  the number of waiting messages at which further ones get 429; None for no limit
    ``body_max``   bytes of a new message; None for the gateway's limit. A batch has the gateway's limit as a whole
    """

    name: str
    to: str | None = None
    deliver: dict[str, Any] | None = None
    id: str | list[str] = "Message-Id"
    type: str | None = None
    schema: dict[str, Any] | str | None = None
    check: Any = None
    producers: list[str] | None = None
    rate: float | None = None
    burst: int | None = None
    waiting_max: int | None = None
    body_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundRoute:
    """A route whose names are resolved.

    ``target``     the endpoint, or the address of the deliveries
    ``type``       the type of its messages; ``Posted`` for deliveries
    ``validator``  the checker of its JSON Schema
    """

    route: Route
    target: Target[Any, Any]
    type: type
    ids: IdSource
    validator: jsonschema.Draft202012Validator | None
    check: Callable[[Any], Any] | None

    @property
    def name(self) -> str:
        return self.route.name

    @property
    def is_delivery(self) -> bool:
        return self.type is Posted


def bind(
    app: App, routes: Sequence[Route], producers: frozenset[str], folder: Path, deliveries: App | None = None
) -> dict[str, BoundRoute]:
    """Resolve the names of routes. Files and modules are looked for from ``folder``. Raises ``DeclarationError``.

    ``deliveries`` is an app that has the deliveries already; without it ``app`` gets them.
    """
    bound: dict[str, BoundRoute] = {}
    for each in routes:
        if each.name in bound:
            raise DeclarationError(f"route {each.name!r} is declared twice. Give one of them another name")
        bound[each.name] = _bind(app, each, producers, folder, deliveries)
    if not bound:
        raise DeclarationError("the gateway has no route, so no message could be accepted. Add a route")
    return bound


def _bind(app: App, route: Route, producers: frozenset[str], folder: Path, deliveries: App | None) -> BoundRoute:
    _check_name(route)
    _check_numbers(route)
    unknown = sorted(set(route.producers or ()) - producers)
    if unknown:
        known = ", ".join(sorted(producers))
        raise DeclarationError(f"route {route.name!r} names the producer {unknown[0]!r}; the gateway knows: {known}")
    target = _target(app, route, deliveries)
    return BoundRoute(
        route=route,
        target=target,
        type=_type(route, target),
        ids=IdSource(route.name, route.id),
        validator=_validator(route, folder),
        check=_check(route, folder),
    )


def _check_name(route: Route) -> None:
    if not NAME.fullmatch(route.name) or route.name in RESERVED:
        raise DeclarationError(
            f"{route.name!r} cannot be a route's name: use lower-case letters, digits, '_', '-' and '.', and none of "
            f"{', '.join(sorted(RESERVED))}"
        )


def _check_numbers(route: Route) -> None:
    numbers = {"rate": route.rate, "burst": route.burst, "waiting_max": route.waiting_max, "body_max": route.body_max}
    for name, value in numbers.items():
        if value is not None and not 0 < value < float("inf"):
            raise DeclarationError(f"{name} of route {route.name!r} must be a number above 0, not {value!r}")
    if route.burst is not None and route.rate is None:
        raise DeclarationError(f"route {route.name!r} has a burst, but no rate. Add the rate, in messages a second")


def _target(app: App, route: Route, deliveries: App | None) -> Target[Any, Any]:
    if (route.to is None) == (route.deliver is None):
        raise DeclarationError(
            f"route {route.name!r} needs either to, an endpoint, or a table deliver, a consumer outside"
        )
    if route.to is None:
        if route.type is not None:
            raise DeclarationError(f"route {route.name!r} has a type, but delivers any JSON. Give it a schema instead")
        report_to = (route.deliver or {}).get("report_to")
        if report_to is not None:
            check_takes_refusals(app.target(str(report_to)), route.name)
        return delivery_of(app, route) if deliveries is None else deliveries.target(address_of_delivery(route))
    return app.target(route.to)


def delivery_of(app: App, route: Route) -> Target[Any, Any]:
    """Declare the delivery of a route that has one. Raises ``DeclarationError``."""
    _check_name(route)
    delivery = read_delivery(f"deliver of route {route.name!r}", route.deliver or {})
    return deliver(app, address_of_delivery(route), delivery)


def address_of_delivery(route: Route) -> str:
    return f"{DELIVERY_PREFIX}{route.name}"


def _type(route: Route, target: Target[Any, Any]) -> type:
    found = target.type_named(route.type)
    if found is None:
        types = ", ".join(each.__name__ for each in target.message_types)
        raise DeclarationError(
            f"{target.address} takes messages of the types {types}, and route {route.name!r} names "
            f"{route.type!r}. Give type = one of them"
        )
    return found


def _validator(route: Route, folder: Path) -> jsonschema.Draft202012Validator | None:
    if route.schema is None:
        return None
    schema = route.schema if isinstance(route.schema, dict) else _read_schema(route.name, folder / route.schema)
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise DeclarationError(f"the schema of route {route.name!r} is not valid: {error.message}") from error
    for each in _subschemas(schema):
        _check_subschema(route.name, each)
    # An empty registry: the default one would fetch a reference over the network.
    return jsonschema.Draft202012Validator(
        schema, registry=referencing.Registry(), format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )


def _read_schema(name: str, path: Path) -> dict[str, Any]:
    try:
        schema = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DeclarationError(f"the schema of route {name!r} cannot be read from {path}: {error}") from error
    if not isinstance(schema, dict):
        raise DeclarationError(f"the schema of route {name!r} in {path} is not a JSON object")
    return schema


def _subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            yield each
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each


def _check_subschema(name: str, schema: dict[str, Any]) -> None:
    for keyword in ("$ref", "$dynamicRef"):
        reference = schema.get(keyword)
        if isinstance(reference, str) and not reference.startswith("#"):
            raise DeclarationError(
                f"the schema of route {name!r} refers to {reference!r}. The gateway fetches nothing: write the "
                "referred schema under $defs"
            )
    if schema.get("uniqueItems") is True and "maxItems" not in schema:
        raise DeclarationError(
            f"the schema of route {name!r} has uniqueItems without maxItems. The time to compare all items grows with "
            "the square of their number, so one message could hold up the gateway: add maxItems"
        )


def _check(route: Route, folder: Path) -> Callable[[Any], Any] | None:
    check: Any = load_attribute(route.check, folder) if isinstance(route.check, str) else route.check
    if check is None:
        return None
    if not callable(check):
        raise DeclarationError(f"the check of route {route.name!r} is {check!r}, which cannot be called")
    return cast(Callable[[Any], Any], check)
