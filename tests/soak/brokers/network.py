"""A network between the processes of a campaign and their broker. It spoils one connection at a time.

It knows no protocol. A chunk of bytes that is lost, or halved, cuts a frame in the middle, or loses an answer.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import Any, Literal

CHUNK = 65_536
# Closed with this, a socket says "reset" to its peer, where it would say goodbye.
RESET = struct.pack("ii", 1, 0)

# ``cut``         both ends are told at once
# ``request cut`` half of the client's next bytes pass, then both ends are told
# ``answer cut``  half of the broker's next bytes pass, then both ends are told
# ``answer lost`` the broker's next bytes are lost, then both ends are told
# ``half-open``   the broker is told, and delivers again; the client is told after some seconds
# ``silence``     nothing passes for some seconds, and nobody is told
Spoiling = Literal["cut", "request cut", "answer cut", "answer lost", "half-open", "silence"]
SPOILINGS: tuple[Spoiling, ...] = ("cut", "request cut", "answer cut", "answer lost", "half-open", "silence")
SILENT_SECONDS = 3.0


class Network:
    """``ports`` lead to the broker's ports, one each. Close it at the end."""

    def __init__(self, broker_ports: list[int]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()
        self._links: list[Link] = []
        self._listeners = [self._do(self._listen(each)) for each in broker_ports]
        self.ports = [int(each.sockets[0].getsockname()[1]) for each in self._listeners]

    def spoil(self, spoiling: Spoiling, random: Random) -> bool:
        """Spoil a connection. Return False where there is none."""

        def spoil() -> bool:
            if not self._links:
                return False
            random.choice(self._links).spoiling = spoiling
            return True

        return bool(self._call(spoil))

    @contextmanager
    def black_hole(self) -> Iterator[None]:
        """Let nothing through during the block, and tell nobody."""
        self._call(lambda: self._let_pass(False))
        try:
            yield
        finally:
            self._call(lambda: self._let_pass(True))

    def close(self) -> None:
        for each in self._listeners:
            self._call(each.close)
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _let_pass(self, passes: bool) -> None:
        for each in self._links:
            if passes:
                each.passes.set()
            else:
                each.passes.clear()

    async def _listen(self, broker_port: int) -> asyncio.Server:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                server_reader, server_writer = await asyncio.open_connection("127.0.0.1", broker_port)
            except OSError:
                writer.transport.abort()
                return
            link = Link(writer, server_writer)
            self._links.append(link)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(link.pump(reader, server_writer, is_request=True))
                    both.create_task(link.pump(server_reader, writer, is_request=False))
            finally:
                self._links.remove(link)
                link.end()

        return await asyncio.start_server(serve, "127.0.0.1", 0)

    async def _end(self) -> None:
        tasks = [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _call(self, call: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return call()

        return self._do(run())


class Link:
    """One connection through the network. ``spoiling`` happens to the next bytes."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._client = client
        self._server = server
        self.spoiling: Spoiling | None = None
        self.passes = asyncio.Event()
        self.passes.set()

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_request: bool) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                await self.passes.wait()
                spoiling = self.spoiling
                if spoiling == "cut":
                    break
                if spoiling == ("request cut" if is_request else "answer cut"):
                    writer.write(data[: len(data) // 2])
                    await writer.drain()
                    break
                if spoiling == "answer lost" and not is_request:
                    break
                if spoiling == "half-open":
                    _reset(self._server)
                    await asyncio.sleep(SILENT_SECONDS)
                    break
                if spoiling == "silence":
                    self.spoiling = None
                    await asyncio.sleep(SILENT_SECONDS)
                writer.write(data)
                await writer.drain()
            if self.spoiling == "half-open":
                # The other direction ends when the broker's side does.
                await asyncio.sleep(SILENT_SECONDS)
        self.end()

    def end(self) -> None:
        _reset(self._client)
        _reset(self._server)


def _reset(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()
