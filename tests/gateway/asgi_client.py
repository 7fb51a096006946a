"""A client that calls an ASGI app without a server, and decides how the body arrives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from stagepost.gateway import Gateway

CLIENT = ("127.0.0.1", 40_000)
JSON = {"Content-Type": "application/json"}


@dataclass
class Answer:
    """An answer; ``status`` is 0 where the app gave none."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["code"])


@dataclass
class Call:
    """One request. ``chunks`` are the parts in which its body arrives, and a ``leaving`` client sends no end."""

    method: str
    path: str
    headers: Mapping[str, str] | Sequence[tuple[str, str]]
    chunks: Sequence[bytes]
    is_leaving: bool = False
    client: tuple[str, int] = CLIENT
    root_path: str = ""
    never_ends: bool = False

    def scope(self) -> dict[str, Any]:
        path, _, query = self.path.partition("?")
        given = self.headers.items() if isinstance(self.headers, Mapping) else self.headers
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": self.root_path + unquote(path),
            "raw_path": (self.root_path + path).encode(),
            "root_path": self.root_path,
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in given],
            "client": self.client,
            "server": ("127.0.0.1", 80),
        }


class Client:
    """Sends requests to an app in one event loop. ``headers`` go with each."""

    def __init__(self, app: Gateway, runner: asyncio.Runner, headers: Mapping[str, str]) -> None:
        self._app = app
        self._runner = runner
        self.headers = dict(headers)

    def call(self, *calls: Call) -> list[Answer]:
        """Send the requests at the same time."""

        async def all_of_them() -> list[Answer]:
            return await asyncio.gather(*(self._serve(each) for each in calls))

        return self._runner.run(all_of_them())

    def request(self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> Answer:
        return self.call(Call(method, path, {**self.headers, **(headers or {})}, [body]))[0]

    def post(self, path: str, content: Any, headers: Mapping[str, str] | None = None) -> Answer:
        """Post JSON, or bytes as they are."""
        return self.call(self.posting(path, content, headers))[0]

    def posting(self, path: str, content: Any, headers: Mapping[str, str] | None = None) -> Call:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        return Call("POST", path, {**JSON, **self.headers, **(headers or {})}, [body])

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        return self.request("GET", path, headers)

    def status_of(self, route: str, theirs: str) -> Answer:
        return self.get(f"/{route}/messages/{quote(theirs, safe='')}")

    async def _serve(self, call: Call) -> Answer:
        parts = list(call.chunks)
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if parts:
                body = parts.pop(0)
                return {
                    "type": "http.request",
                    "body": body,
                    "more_body": bool(parts) or call.is_leaving or call.never_ends,
                }
            if call.never_ends:
                await asyncio.Event().wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(dict(message))

        serve: Callable[..., Awaitable[None]] = self._app
        await serve(call.scope(), receive, send)
        if not sent:
            return Answer(0, {}, b"")
        headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Answer(sent[0]["status"], headers, b"".join(each.get("body", b"") for each in sent[1:]))


@contextmanager
def client_of(app: Gateway, headers: Mapping[str, str] | None = None) -> Iterator[Client]:
    with asyncio.Runner() as runner:
        yield Client(app, runner, headers or {})
