"""The duplicate check as WSGI middleware, around any application."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import Any

from stagepost.gateway.receiver.delivery import (
    BODY_MAX,
    CONNECTION,
    ID_HEADER,
    Answer,
    Body,
    Delivery,
    missing_id,
    problem,
)

Environment = dict[str, Any]
# A long body is read in parts, so that it takes no memory.
PART_BYTES = 65_536

StartResponse = Callable[..., Any]
Application = Callable[[Environment, StartResponse], Iterable[bytes]]


class WsgiReceiver:
    """Does as ``AsgiReceiver`` does. The application finds the connection in ``environ["stagepost.connection"]``."""

    def __init__(
        self, app: Application, connect: Callable[[], Any], *, header: str = ID_HEADER, body_max: int = BODY_MAX
    ) -> None:
        self._app = app
        self._connect = connect
        self._header = header
        self._variable = f"HTTP_{header.upper().replace('-', '_')}"
        self._body_max = body_max

    def __call__(self, environ: Environment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] != "POST":
            return self._app(environ, start_response)
        message_id = environ.get(self._variable)
        if message_id is None:
            return _respond(start_response, missing_id(self._header))
        body = self._read(environ)
        if isinstance(body, Answer):
            return _respond(start_response, body)
        delivery = Delivery(self._connect, message_id, body)
        answer = delivery.open()
        if answer is not None:
            return _respond(start_response, answer)
        return self._work(environ, start_response, delivery, body.content)

    def _work(
        self, environ: Environment, start_response: StartResponse, delivery: Delivery, body: bytes
    ) -> Iterable[bytes]:
        caught: list[tuple[str, list[tuple[str, str]]]] = []
        written = bytearray()

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], object]:
            caught[:] = [(status, headers)]
            return written.extend

        given = {**environ, CONNECTION: delivery.connection, "wsgi.input": io.BytesIO(body)}
        try:
            parts = self._app(given, start)
            try:
                for part in parts:
                    written += part
            finally:
                close = getattr(parts, "close", None)
                if close is not None:
                    close()
        except BaseException:
            delivery.abandon()
            raise
        ((status, headers),) = caught
        kinds = {name.lower(): value for name, value in headers}
        other = delivery.close(int(status[:3]), kinds.get("content-type"), bytes(written))
        if other is not None:
            return _respond(start_response, other)
        start_response(status, headers)
        return [bytes(written)]

    def _read(self, environ: Environment) -> Body | Answer:
        """Return the body, or the answer to a request whose body is not whole."""
        length = environ.get("CONTENT_LENGTH") or "0"
        size = int(length) if length.isdecimal() else 0
        body = Body(self._body_max)
        while part := environ["wsgi.input"].read(min(PART_BYTES, size - body.size)):
            body.add(part)
        if body.size < size or "HTTP_TRANSFER_ENCODING" in environ:
            return problem(400, "the body is not whole, or has no Content-Length")
        return body


def _respond(start_response: StartResponse, answer: Answer) -> list[bytes]:
    headers = [*answer.headers, ("Content-Length", str(len(answer.body)))]
    start_response(f"{answer.status} {answer.reason}", headers)
    return [answer.body]
