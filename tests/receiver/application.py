"""A consumer behind a receiver, as an ASGI and as a WSGI application.

``python -m tests.receiver.application KIND URL PORT WHEN`` serves it. ``WHEN`` is where its process dies: ``work``,
``before`` or ``after`` the commit, or ``never``.
"""

from __future__ import annotations

import asyncio
import json
import socketserver
import sys
from collections.abc import Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from hypercorn.asyncio import serve
from hypercorn.config import Config

from stagepost.gateway.receiver import CONNECTION, AsgiReceiver, WsgiReceiver
from tests.receiver.books import connector, die, write


def handle(connection: Any, body: bytes, when: str = "") -> tuple[int, bytes]:
    """Do the work of an order. Its status decides the answer."""
    order = json.loads(body)
    write(connection, order["id"])
    die("work", when)
    if order.get("fails"):
        raise ValueError("it fails")
    return int(order.get("status", 200)), b'{"receipt": "%s"}' % order["id"].encode()


def asgi_application(url: str, when: str = "") -> AsgiReceiver:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return
        body = (await receive())["body"] if scope["method"] == "POST" else b'{"id": "looked"}'
        connection = scope.get(CONNECTION)
        status, answer = (200, b"alive") if connection is None else handle(connection, body, when)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer[:5], "more_body": True})
        await send({"type": "http.response.body", "body": answer[5:]})

    return AsgiReceiver(app, connector(url, when))


def wsgi_application(url: str, when: str = "") -> WsgiReceiver:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        connection = environ.get(CONNECTION)
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        status, answer = (200, b"alive") if connection is None else handle(connection, body, when)
        start_response(
            f"{status} Because", [("Content-Type", "application/json"), ("Content-Length", str(len(answer)))]
        )
        return [answer[:5], answer[5:]]

    return WsgiReceiver(app, connector(url, when))


class QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it
        pass


class ThreadingServer(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True


def main(kind: str, url: str, port: str, when: str) -> None:
    if kind == "wsgi":
        app = wsgi_application(url, when)
        with make_server("127.0.0.1", int(port), app, ThreadingServer, QuietHandler) as server:
            server.serve_forever()
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    asyncio.run(serve(asgi_application(url, when), config))  # type: ignore[arg-type]  # its own types of ASGI


if __name__ == "__main__":
    main(*sys.argv[1:])
