"""HTTP/1.1 on one connection: stricter than h11, and without a switch to another protocol."""

from __future__ import annotations

import re
from typing import Any, cast

import h11
import msgspec
from hypercorn.events import Event, RawData
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.events import StreamClosed
from hypercorn.protocol.h11 import H11Protocol

from stagepost.gateway.problems import MEDIA_TYPE, Problem

# A bare line feed, and a line that continues the one before it. A proxy may take both for a part of a header's value,
# and would pass on a header that it removes from others.
AMBIGUOUS = re.compile(rb"(?<!\r)\n|\n[ \t]")
EMPTY_LINES = re.compile(rb"(?:\r\n)+")
END_OF_HEAD = re.compile(rb"\n\r?\n")
VERSIONS = (b"1.0", b"1.1")


class StrictConnection(h11.Connection):
    """Refuses a head that another program may read differently, and ignores each proposal of another protocol.

    It ignores empty lines before a request, as RFC 9112, 2.2, says.

    RFC 9110, 7.8, lets a server ignore it. Behind a proxy that passes ``Upgrade: h2c`` on, a client could send requests
    over the new protocol. The proxy would not see them, and they would come from its address.
    """

    def next_event(self) -> Any:
        if self.their_state is h11.MUST_CLOSE and self.trailing_data[0]:
            # h11 would refuse the bytes behind a client's last request, though that request may be accepted by then.
            return h11.NEED_DATA
        if self.their_state is h11.IDLE:
            empty = EMPTY_LINES.match(self.trailing_data[0])
            if empty is not None:
                self._receive_buffer.maybe_extract_at_most(empty.end())
            received, is_ended = self.trailing_data
            if received == b"\r" and not is_ended:
                return h11.NEED_DATA
            end = END_OF_HEAD.search(received)
            if AMBIGUOUS.search(received, 0, len(received) if end is None else end.end()):
                raise h11.RemoteProtocolError("a line of the head does not end as HTTP says")
        event = super().next_event()
        if not isinstance(event, h11.Request):
            return event
        if event.http_version not in VERSIONS:
            raise h11.RemoteProtocolError("the version is unknown", 505)
        headers = [each for each in event.headers if each[0] != b"upgrade"]
        if len(headers) == len(event.headers):
            return event
        return h11.Request(method=event.method, target=event.target, headers=headers, http_version=event.http_version)


class Http1Protocol(H11Protocol):
    """Hypercorn's HTTP/1.1, which answers bytes that are no request with a problem document."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.connection = StrictConnection(h11.SERVER, max_incomplete_event_size=self.config.h11_max_incomplete_size)

    async def handle(self, event: Event) -> None:
        if isinstance(event, RawData) and event.data and self.connection.their_state is h11.MUST_CLOSE:
            return  # The connection reads no further request, and these bytes must not fill the memory.
        await super().handle(event)

    async def stream_send(self, event: StreamEvent) -> None:
        if isinstance(event, StreamClosed) and self.stream is not None:
            # The app has answered. The rest of a body may fill the queue that it reads no more, and Hypercorn would
            # wait for room there without an end.
            queue = cast(Any, self.stream).app_put.__self__
            while not queue.empty():
                queue.get_nowait()
        await super().stream_send(event)

    async def _send_error_response(self, status_code: int) -> None:
        problem = self._problem(status_code)
        body = msgspec.json.encode(problem.document())
        headers = [
            (b"content-type", MEDIA_TYPE.encode()),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
            *self.config.response_headers("h11"),
        ]
        await self._send_h11_event(h11.Response(status_code=problem.status, headers=headers))
        await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())

    def _problem(self, status: int) -> Problem:
        match status:
            case 431:
                size = self.config.h11_max_incomplete_size
                return Problem("headers-too-large", f"the headers have more than {size} bytes")
            case 501:
                return Problem("coding-unsupported", "chunked is the only transfer coding")
            case 505:
                return Problem("version-unsupported", "the request is of another version of HTTP")
            case _:
                return Problem("request-malformed", "two programs may read these bytes in two ways, or not at all")
