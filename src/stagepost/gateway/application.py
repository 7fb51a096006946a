"""The gateway as an ASGI app: find the resource, authenticate, read, accept, answer."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Sequence
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from stagepost.app.app import App, engine_of
from stagepost.flow.errors import DeclarationError
from stagepost.flow.ids import node_name
from stagepost.flow.texts import one_line
from stagepost.gateway.acceptor import Acceptor
from stagepost.gateway.answers import problem_response
from stagepost.gateway.group_commit import GroupCommit
from stagepost.gateway.limits import Limits
from stagepost.gateway.lookups import COUNT_MAX, Lookups
from stagepost.gateway.openapi import openapi_document
from stagepost.gateway.page import page_of
from stagepost.gateway.problems import Problem
from stagepost.gateway.producers import Authentication, Producer, Proxy
from stagepost.gateway.requests import Disconnected, check_headers
from stagepost.gateway.resources import Authenticate, Resources
from stagepost.gateway.routes import Route, bind
from stagepost.gateway.steps import GatewayListener, unobserved_gateway

logger = logging.getLogger(__name__)


class Gateway:
    """An ASGI app that accepts messages over HTTP: see ``asgi``."""

    def __init__(self, resources: Resources, limits: Limits) -> None:
        self.resources = resources
        self._limits = limits
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self._serve(scope, receive, send)
            case "lifespan":
                await self._live(receive, send)
            case _:
                # A websocket of a mounted gateway: the server answers its handshake with 403.
                await send({"type": "websocket.close", "code": 1000})

    async def _live(self, receive: Receive, send: Send) -> None:
        """Answer the server's lifespan protocol. The store is opened before the first request, if it answers."""
        while True:
            message: Message = await receive()
            if message["type"] == "lifespan.startup":
                await self.resources.warm_up()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        # An overloaded process is alive, and must not be killed for it.
        is_health = scope["path"].removeprefix(scope.get("root_path", "").rstrip("/")) == "/healthz"
        if self._running >= self._limits.concurrency and not is_health:
            problem = Problem("overloaded", f"{self._running} requests are at work")
            await problem_response(problem)(scope, receive, send)
            return
        self._running += 1
        try:
            response = await self._respond(Request(scope, receive))
        except Disconnected:
            # The server has closed the connection, so an answer would go nowhere.
            logger.info(
                "client left before the end of its request to %s",
                one_line(scope["path"], 200),
                extra={"event": "gateway-client-left"},
            )
            return
        finally:
            self._running -= 1
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        try:
            check_headers(request, self._limits)
        except Problem as problem:
            # The next bytes of this connection may be a part of this request.
            return problem_response(problem, ends_connection=request.scope["http_version"] not in ("2", "3"))
        try:
            return await self.resources.respond(request)
        except Problem as problem:
            return problem_response(problem)
        except Disconnected:
            raise
        except Exception as error:  # noqa: BLE001 - the log has the error, and the client a problem
            logger.error(  # noqa: TRY400 - the stack goes into its own field
                "gateway has a defect: %s: %s",
                type(error).__name__,
                one_line(str(error)),
                extra={"event": "gateway-defect", "stack": traceback.format_exc()},
            )
            return problem_response(Problem("defect", "the gateway failed, and its log has the reason"))


def asgi(
    app: App,
    *,
    routes: Sequence[Route],
    deliveries: App | None = None,
    producers: Sequence[Producer] = (),
    proxy: Proxy | None = None,
    anonymous: str | None = None,
    authenticate: Authenticate | None = None,
    limits: Limits | None = None,
    title: str = "Stagepost gateway",
    has_documents: bool = True,
    folder: Path | None = None,
    listener: GatewayListener = unobserved_gateway,
) -> Gateway:
    """Return an ASGI app that accepts messages for the endpoints of ``app``: see docs/gateway.md.

    ``routes``        where messages may be posted
    ``deliveries``    an app that has the deliveries of the routes already; by default ``app`` gets them
    ``producers``     who may post, with their credentials
    ``proxy``         the proxies that check client certificates
    ``anonymous``     the producer of requests without credentials; for a loopback address only
    ``authenticate``  the application's own authentication: it returns the producer's name, or None to refuse
    ``limits``        sizes, times and concurrency
    ``has_documents``  False hides ``/openapi.json`` and ``/docs``
    ``folder``        from which names of schemas and checks are resolved; default: the working folder

    A message is accepted once its commit is on the disk, and only then is it answered with 200. Use the app in one
    event loop. Raises ``DeclarationError``.
    """
    engine = engine_of(app)
    limits = limits or Limits()
    if authenticate is not None and (producers or anonymous or proxy):
        raise DeclarationError(
            "the gateway has an authenticate of its own, so leave out producers, proxy and anonymous"
        )
    authentication = None if authenticate is not None else Authentication(producers, proxy, anonymous)
    names = frozenset() if authentication is None else authentication.names
    bound = bind(app, routes, names, folder or Path.cwd(), deliveries)
    commits = GroupCommit(engine.flow_starter.write_each, listener, limits.group_max)
    acceptor = Acceptor(engine.flow_starter, commits, engine.clock, node_name("gateway"), listener)
    count_max = max([COUNT_MAX, *(each.waiting_max or 0 for each in routes)])
    lookups = Lookups(engine, {name: each.target.address for name, each in bound.items()}, count_max)
    openapi = openapi_document(bound, title, limits) if has_documents else None
    resources = Resources(
        routes=bound,
        authentication=authentication,
        authenticate=authenticate,
        acceptor=acceptor,
        lookups=lookups,
        limits=limits,
        clock=engine.clock,
        listener=listener,
        openapi=openapi,
        page=None if openapi is None else page_of(openapi),
    )
    return Gateway(resources, limits)
