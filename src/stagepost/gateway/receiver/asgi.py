"""The duplicate check as ASGI middleware, around any application."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from stagepost.gateway.receiver.delivery import BODY_MAX, CONNECTION, ID_HEADER, Answer, Body, Delivery, missing_id

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class AsgiReceiver:
    """Calls ``app`` once for each message id that a POST brings, in a transaction that commits before the answer.

    ``connect``  returns a new connection to the consumer's database. The application finds it in
                 ``scope["stagepost.connection"]``, and neither commits nor rolls back. An ``sqlite3`` connection needs
                 ``check_same_thread=False``, because threads share it, one after the other
    ``header``   the header with the id
    ``body_max`` the bytes of a new message; a longer one gets 413. A copy of a handled message gets its answer again

    A success commits, and its answer is kept for later copies. Any other answer, or an error, rolls back. Requests
    without a body to protect (all but POST) pass through.
    """

    def __init__(
        self, app: Application, connect: Callable[[], Any], *, header: str = ID_HEADER, body_max: int = BODY_MAX
    ) -> None:
        self._app = app
        self._connect = connect
        self._header = header.lower().encode()
        self._body_max = body_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        ids = [value for name, value in scope["headers"] if name.lower() == self._header]
        if len(ids) != 1:
            await _send(send, missing_id(self._header.decode()))
            return
        body = await self._read(receive)
        if body is None:
            return
        delivery = Delivery(self._connect, ids[0].decode("latin-1"), body)
        answer = await asyncio.to_thread(delivery.open)
        if answer is None:
            answer = await self._work(scope, delivery, body.content)
        await _send(send, answer)

    async def _work(self, scope: Scope, delivery: Delivery, body: bytes) -> Answer:
        caught = Caught()
        try:
            await self._app({**scope, CONNECTION: delivery.connection}, once(body), caught.send)
        except BaseException:
            # Also when the server cancels the request: the work is not committed then.
            delivery.abandon()
            raise
        answer = caught.answer
        kinds = {name.lower(): value for name, value in answer.headers}
        other = await asyncio.to_thread(delivery.close, answer.status, kinds.get("content-type"), answer.body)
        return other or answer

    async def _read(self, receive: Receive) -> Body | None:
        """Return the body. None if the connection ended before it."""
        body = Body(self._body_max)
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return None
            body.add(message.get("body", b""))
            if not message.get("more_body", False):
                return body


class Caught:
    """Catches the answer of the application, which may leave only after the commit."""

    def __init__(self) -> None:
        self._status = 500
        self._headers: list[tuple[str, str]] = []
        self._body = bytearray()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = [
                (name.decode("latin-1"), value.decode("latin-1")) for name, value in message.get("headers", ())
            ]
        elif message["type"] == "http.response.body":
            self._body += message.get("body", b"")

    @property
    def answer(self) -> Answer:
        return Answer(self._status, bytes(self._body), self._headers)


def once(body: bytes) -> Receive:
    """Return the ``receive`` of a request whose body was read."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return messages.pop() if messages else {"type": "http.disconnect"}

    return receive


async def _send(send: Send, answer: Answer) -> None:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
    if not any(name.lower() == b"content-length" for name, _ in headers):
        headers.append((b"content-length", str(len(answer.body)).encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
