"""A TCP proxy before a RabbitMQ server, which reads frames and does to them what a network does."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

Method = tuple[int, int]
Side = Literal["client", "server"]

PUBLISH: Method = (60, 40)
DELIVER: Method = (60, 60)
ACK: Method = (60, 80)
PROTOCOL_HEADER_BYTES = 8
# Closed with this, a socket says "reset" to its peer, where it would say goodbye.
RESET = struct.pack("ii", 1, 0)


class AmqpProxy:
    """``url`` leads through it. Close it at the end."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._swallowed: set[Method] = set()
        self._halved: tuple[Side, Method, int] | None = None
        self.sprung = threading.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="amqp proxy", daemon=True)
        self._thread.start()
        self._is_open = self._do(self._new_event())
        self._listener = self._do(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = int(self._listener.sockets[0].getsockname()[1])

    def url(self, parameters: str = "") -> str:
        return f"amqp://127.0.0.1:{self.port}/{parameters and '?' + parameters}"

    def cut(self) -> None:
        """Reset every connection there is."""
        self._call(self._cut)

    def cut_within(self, method: Method, towards: Side, tag: int = 0) -> None:
        """Pass the first half of the next frame of the method on, and reset the connections.

        With ``tag`` it is the next ``ACK`` of that delivery tag or a higher one.
        """
        self.sprung.clear()
        self._halved = (towards, method, tag)

    @contextmanager
    def swallowing(self, *methods: Method) -> Iterator[None]:
        """Drop the server's frames of these methods during the block. Heart-beats come through."""
        self._swallowed = set(methods)
        try:
            yield
        finally:
            self._swallowed = set()

    @contextmanager
    def black_hole(self) -> Iterator[None]:
        """Let nothing through during the block, and tell nobody."""
        self._call(self._is_open.clear)
        try:
            yield
        finally:
            self._call(self._is_open.set)

    def close(self) -> None:
        self._call(self._listener.close)
        self.cut()
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._port)
            self._writers |= {writer, server_writer}
            server_writer.write(await reader.readexactly(PROTOCOL_HEADER_BYTES))
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pass_on(reader, server_writer, "server", writer))
                both.create_task(self._pass_on(server_reader, writer, "client", server_writer))

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, towards: Side, other: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readexactly(7)
                kind, _, size = struct.unpack(">BHI", head)
                rest = await reader.readexactly(size + 1)
                method = struct.unpack_from(">HH", rest) if kind == 1 else (0, 0)
                await self._is_open.wait()
                if towards == "client" and method in self._swallowed:
                    continue
                tag = struct.unpack_from(">Q", rest, 4)[0] if method == ACK else 0
                if self._halved and self._halved[:2] == (towards, method) and tag >= self._halved[2]:
                    self._halved = None
                    writer.write((head + rest)[: (len(head) + len(rest)) // 2])
                    await writer.drain()
                    self._cut()
                    self.sprung.set()
                    return
                writer.write(head + rest)
                await writer.drain()
        for each in (writer, other):
            each.transport.abort()

    def _cut(self) -> None:
        for each in self._writers:
            with suppress(OSError):
                each.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            each.transport.abort()
        self._writers.clear()

    async def _new_event(self) -> asyncio.Event:
        event = asyncio.Event()
        event.set()
        return event

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._listener.wait_closed()

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _call(self, call: Callable[[], Any]) -> None:
        async def run() -> None:
            call()

        self._do(run())
