"""The resources of a gateway: the routes, the status of their messages, health, and the documents about them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from stagepost.flow.clock import SECOND, Clock
from stagepost.gateway.acceptor import Acceptor, Answer, Item, Receipt
from stagepost.gateway.answers import SAFE_HEADERS, batch_response, json_response, members_of, not_allowed
from stagepost.gateway.limits import Limits, TokenBucket
from stagepost.gateway.lookups import Lookups, status_document
from stagepost.gateway.messages import read_batch, read_message
from stagepost.gateway.problems import Problem
from stagepost.gateway.producer_ids import check_theirs
from stagepost.gateway.producers import NAME, Authentication
from stagepost.gateway.requests import BATCH_TYPES, JSON_TYPES, media_type, read_body
from stagepost.gateway.routes import BoundRoute
from stagepost.gateway.steps import GatewayListener, GatewayStep

# The page needs no script, and loads nothing.
PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

# A server waits so long, at most, before it accepts connections.
WARM_UP_SECONDS = 5.0

Authenticate = Callable[[Request], Awaitable[str | None]]


class Resources:
    """Responds to requests. ``page`` and ``openapi`` are documents; None for a gateway that does not show them.

    ``authenticate``  the application's own authentication, in place of ``authentication``
    """

    def __init__(
        self,
        *,
        routes: Mapping[str, BoundRoute],
        authentication: Authentication | None,
        authenticate: Authenticate | None,
        acceptor: Acceptor,
        lookups: Lookups,
        limits: Limits,
        clock: Clock,
        listener: GatewayListener,
        openapi: dict[str, Any] | None,
        page: str | None,
    ) -> None:
        self._routes = routes
        self._authentication = authentication
        self._authenticate = authenticate
        self._acceptor = acceptor
        self._lookups = lookups
        self._limits = limits
        self._clock = clock
        self._listener = listener
        self.openapi = openapi
        self._page = page
        self._strangers = 0
        self._buckets: dict[tuple[str, str], TokenBucket] = {}

    async def respond(self, request: Request) -> Response:
        """Respond to a request. Raises ``Problem``, and ``Disconnected``."""
        name, _, rest = _path_of(request).removeprefix("/").partition("/")
        if not rest and name in ("healthz", "readyz", "docs", "openapi.json", ""):
            _check_method(request, "GET", "HEAD")
            return await self._document(name, request.scope.get("root_path", ""))
        route = self._routes.get(name)
        if route is None:
            raise Problem("route-unknown", f"there is no route {name!r:.80}")
        if rest == "":
            _check_method(request, "POST")
            return await self._post(request, route)
        if rest == "batch":
            _check_method(request, "POST")
            return await self._post_batch(request, route)
        what, _, theirs = rest.partition("/")
        if what != "messages" or not theirs:
            raise Problem("not-found", f"route {name} has no resource {rest!r:.80}")
        _check_method(request, "GET", "HEAD")
        return await self._status(request, route, theirs)

    async def warm_up(self) -> None:
        """Open the store. An outage is no reason not to start: requests are answered with 503 then."""
        with suppress(Problem):
            await self._acceptor.look_up([], asyncio.get_running_loop().time() + WARM_UP_SECONDS)

    async def _document(self, name: str, root: str) -> Response:
        match name:
            case "healthz":
                return json_response({"status": "alive"})
            case "readyz":
                is_ready, document = await self._lookups.readiness()
                return json_response(document, 200 if is_ready else 503, {} if is_ready else {"Retry-After": "5"})
            case "openapi.json" if self.openapi is not None:
                return json_response({**self.openapi, "servers": [{"url": root or "/"}]})
            case "docs" | "" if self._page is not None:
                return HTMLResponse(self._page, headers={**SAFE_HEADERS, "Content-Security-Policy": PAGE_POLICY})
        raise Problem("not-found", "this gateway does not show its documents")

    async def _post(self, request: Request, route: BoundRoute) -> Response:
        deadline = asyncio.get_running_loop().time() + self._limits.request_seconds
        kind = media_type(request.headers, JSON_TYPES)
        size_max = max(route.route.body_max or 0, self._limits.body_max)
        producer, theirs, data = await self._read(request, route, size_max)
        await self._admit(route, producer, 1, deadline)
        item = read_message(route, request.headers, kind, theirs, data, self._limits.json_depth_max)
        (answer,) = await self._acceptor.accept(route, producer, [item], deadline)
        if isinstance(answer, Problem):
            raise answer
        self._listener(GatewayStep.ANSWERED, [answer.message_id])
        return json_response(members_of(answer))

    async def _post_batch(self, request: Request, route: BoundRoute) -> Response:
        deadline = asyncio.get_running_loop().time() + self._limits.request_seconds
        kind = media_type(request.headers, BATCH_TYPES)
        producer, _, data = await self._read(request, route, self._limits.body_max, is_batch=True)
        read = read_batch(route, kind, data, self._limits.json_depth_max, self._limits.batch_max)
        items = [each for each in read if isinstance(each, Item)]
        await self._admit(route, producer, len(read), deadline)
        accepted = iter(await self._acceptor.accept(route, producer, items, deadline) if items else ())
        answers: list[Answer] = [next(accepted) if isinstance(each, Item) else each for each in read]
        self._listener(GatewayStep.ANSWERED, [each.message_id for each in answers if isinstance(each, Receipt)])
        return batch_response(answers)

    async def _status(self, request: Request, route: BoundRoute, theirs: str) -> Response:
        deadline = asyncio.get_running_loop().time() + self._limits.request_seconds
        producer = await self._identify(request, route, b"", "")
        acceptance = self._acceptor.acceptance(route, producer, Item(check_theirs(theirs), None, ""))
        found = await self._lookups.history(acceptance.key, deadline)
        # The history may be purged, or the message may wait in the outbox.
        if found is None and await self._acceptor.look_up([acceptance], deadline) == [None]:
            raise Problem(
                "message-unknown", f"producer {producer} has no accepted message with this id on {route.name}"
            )
        return json_response(status_document(theirs, acceptance.key, found))

    async def _read(
        self, request: Request, route: BoundRoute, size_max: int, *, is_batch: bool = False
    ) -> tuple[str, str | None, bytes]:
        """Return the producer, the id of the headers if the route's ids are there, and the body."""
        # A stranger's body is not read, except for a signature, which covers it. Half of the places stay free of those.
        known = await self._identify(request, route, None, "")
        self._strangers += known is None
        try:
            if known is None and self._strangers > max(1, self._limits.concurrency // 2):
                raise Problem("overloaded", "too many signed requests are at work")
            data = await read_body(request.receive, request.headers, self._limits, size_max)
        finally:
            self._strangers -= known is None
        self._listener(GatewayStep.READ, [])
        theirs = None if is_batch else route.ids.of_headers(request.headers)
        producer = known or await self._identify(request, route, data, theirs or "")
        assert producer is not None, "with the body each producer is proved"
        return producer, theirs, data

    async def _identify(self, request: Request, route: BoundRoute, data: bytes | None, theirs: str) -> Any:
        """Return the producer, which may use the route; None while ``data`` is needed to prove it."""
        if self._authenticate is not None:
            producer = await self._authenticate(request)
            if producer is None or not NAME.fullmatch(producer):
                raise Problem("credentials-invalid", "the application knows no producer for this request")
        else:
            assert self._authentication is not None, "a gateway has one of both"
            claimed = self._authentication.claim(request.headers, request.client.host if request.client else None)
            if data is None and not claimed.is_proved:
                return None
            self._authentication.check_signature(
                claimed, request.method, _target_of(request), theirs, data or b"", self._clock.now() // SECOND
            )
            producer = claimed.producer
        if route.route.producers is not None and producer not in route.route.producers:
            raise Problem("producer-not-allowed", f"producer {producer} may not use route {route.name}")
        return producer

    async def _admit(self, route: BoundRoute, producer: str, count: int, deadline: float) -> None:
        """Raise ``Problem`` if the producer sends too fast, or if too many messages wait."""
        settings = route.route
        if settings.rate is not None:
            bucket = self._buckets.get((route.name, producer))
            if bucket is None:
                burst = settings.burst or max(1.0, settings.rate)
                bucket = TokenBucket(settings.rate, burst, self._clock.monotonic)
                self._buckets[route.name, producer] = bucket
            seconds = bucket.take(count)
            if seconds:
                raise Problem(
                    "rate-limited", f"route {route.name} takes {settings.rate:g} messages a second", retry_after=seconds
                )
        if settings.waiting_max is not None:
            waiting = await self._lookups.waiting(route.target.address, deadline)
            if waiting >= settings.waiting_max:
                raise Problem("queue-full", f"{settings.waiting_max} messages wait on route {route.name}")


def _path_of(request: Request) -> str:
    path, root = request.scope["path"], request.scope.get("root_path", "").rstrip("/")
    return str(path).removeprefix(root)


def _target_of(request: Request) -> str:
    path: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    query: bytes = request.scope["query_string"]
    return (path + (b"?" + query if query else b"")).decode("latin-1")


def _check_method(request: Request, *allowed: str) -> None:
    if request.method not in allowed:
        raise not_allowed(request.method, ", ".join(allowed))
