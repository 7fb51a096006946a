"""A TCP proxy before a PostgreSQL server, which does to connections what a network does: now and then, the worst.

It reads along, so that it knows what is asked for and answered, and in which transaction: by a text that one of its
statements holds.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from psycopg.conninfo import conninfo_to_dict

CHUNK = 65536
# Closed with this, a socket says "reset" to its peer, where it would say goodbye.
RESET = struct.pack("ii", 1, 0)
COMMIT = "COMMIT"

Loss = Literal["of the question", "of the answer"]
Awaited = Literal["an answer", "the end"]
# That of a statement that was done: a command, one without a word, and one of which there is more to come.
ANSWERS = (b"C", b"I", b"s")


@dataclass
class Trap:
    """For one statement with ``word`` in it, of a transaction with ``text`` in it: it never arrives, or is done and
    never answered; either way the connection is cut. ``COMMIT`` is that alone, and not of what was prepared."""

    text: str
    loss: Loss
    word: str
    is_last: bool
    sprung: threading.Event = field(default_factory=threading.Event)

    def is_for(self, statement: str, asked: list[str]) -> bool:
        is_it = statement == COMMIT if self.word == COMMIT else self.word in statement
        return is_it and any(self.text in each for each in asked)


class Proxy:
    """``url`` leads through it. Close it at the end."""

    def __init__(self, url: str) -> None:
        server = conninfo_to_dict(url)
        self._server = (str(server["host"]), int(str(server["port"])))
        self._traps: list[Trap] = []
        self._links: set[Link] = set()
        self._delay_seconds = 0.0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._is_refusing = False
        self._is_open = self._do(self._new_event())
        self._listener = self._do(asyncio.start_server(self._serve, "127.0.0.1", 0))
        port = self._listener.sockets[0].getsockname()[1]
        rest = url.rpartition("/")[2]
        # What is encrypted could not be read along.
        self.url = f"postgresql://{server['user']}@127.0.0.1:{port}/{rest}?sslmode=disable&gssencmode=disable"

    def trap(self, text: str, loss: Loss, *, word: str = COMMIT, is_last: bool = False) -> Trap:
        """``is_last``: whoever wants in after it was sprung is sent away, until ``let_in``."""
        trap = Trap(text, loss, word, is_last)
        self._call(lambda: self._traps.append(trap))
        return trap

    def cut(self, *, is_reset: bool = True) -> int:
        """Every connection there is at this moment; returns how many."""

        links = list(self._links)

        def cut() -> None:
            for each in links:
                each.cut(is_reset=is_reset)

        self._call(cut)
        return len(links)

    def lose_clients(self) -> None:
        """Every connection there is, on the client's side alone: the server is not told."""

        links = list(self._links)

        def lose() -> None:
            for each in links:
                each.lose_client()

        self._call(lose)

    @contextmanager
    def black_hole(self) -> Iterator[None]:
        """Nothing comes through, and nobody is told: neither those who are connected nor those who want to be."""
        self._call(self._is_open.clear)
        try:
            yield
        finally:
            self._call(self._is_open.set)

    def shut_out(self) -> None:
        """Whoever wants in is sent away, as by a server that is not there."""
        self._is_refusing = True

    def let_in(self) -> None:
        self._is_refusing = False

    @contextmanager
    def delayed(self, seconds: float) -> Iterator[None]:
        """Each answer comes later by that."""
        self._delay_seconds = seconds
        try:
            yield
        finally:
            self._delay_seconds = 0.0

    def close(self) -> None:
        self._call(self._listener.close)
        self.cut()
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def pass_on(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        await self._is_open.wait()
        writer.write(data)
        await writer.drain()

    async def answer(self, kind: bytes, writer: asyncio.StreamWriter, data: bytes) -> None:
        # Once a round trip, with that which ends it.
        if self._delay_seconds and kind == b"Z":
            await asyncio.sleep(self._delay_seconds)
        await self.pass_on(writer, data)

    def trap_for(self, statement: str, asked: list[str]) -> Trap | None:
        """The trap for that statement, the last of those, if there is one; it is used up."""
        found = next((trap for trap in self._traps if trap.is_for(statement, asked)), None)
        if found is not None:
            self._traps.remove(found)
        return found

    def give_back(self, trap: Trap) -> None:
        """What it was for has failed, or was never done."""
        self._traps.append(trap)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._is_open.wait()
        try:
            if self._is_refusing:
                raise ConnectionRefusedError
            server_reader, server_writer = await asyncio.open_connection(*self._server)
        except OSError:
            writer.transport.abort()
            return
        link = Link(self, writer, server_writer)
        self._links.add(link)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(link.ask(reader))
                both.create_task(link.answer(server_reader))
        except* OSError:
            # One end is gone, so the other one goes too.
            pass
        finally:
            link.give_back_all()
            if not link.is_ghost:
                self._links.discard(link)
                link.cut(is_reset=False)

    async def _end(self) -> None:
        tasks = [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._listener.wait_closed()

    async def _new_event(self) -> asyncio.Event:
        event = asyncio.Event()
        event.set()
        return event

    def _do(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _call(self, function: Callable[[], Any]) -> Any:
        async def call() -> Any:
            return function()

        return self._do(call())


class Link:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._texts: dict[bytes, str] = {}
        self._asked: list[str] = []
        # In the order of the questions; of what was trapped, the trap.
        self._awaited: deque[Trap | Awaited] = deque()
        # The server still has a client here, that has gone.
        self.is_ghost = False

    async def ask(self, reader: asyncio.StreamReader) -> None:
        # The first one has no kind: who wants in, or which statement is to be broken off.
        _, _, whole = await read(reader, kind_size=0)
        await self._proxy.pass_on(self._server, whole)
        while True:
            kind, body, whole = await read(reader)
            self._await(kind, self._read_along(kind, body))
            await self._proxy.pass_on(self._server, whole)

    async def answer(self, reader: asyncio.StreamReader) -> None:
        while True:
            kind, body, whole = await read(reader)
            self._hear(kind, body)
            await self._proxy.answer(kind, self._client, whole)

    def cut(self, *, is_reset: bool) -> None:
        for writer in (self._client, self._server):
            if is_reset:
                connection = writer.get_extra_info("socket")
                with suppress(OSError):
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort()

    def lose_client(self) -> None:
        self.is_ghost = True
        self._client.transport.abort()

    def give_back_all(self) -> None:
        """It ended before it came to any of those traps."""
        while self._awaited:
            self._give_back_the_unanswered()

    def _await(self, kind: bytes, statement: str) -> None:
        """Cuts the connection where it is the question that is to be lost."""
        if statement:
            trap = self._proxy.trap_for(statement, self._asked)
            if trap is not None and trap.loss == "of the question":
                self._spring(trap)
            self._awaited.append(trap or "an answer")
        if kind in (b"S", b"Q"):
            self._awaited.append("the end")

    def _hear(self, kind: bytes, body: bytes) -> None:
        """Cuts the connection where it is the answer that is to be lost."""
        if kind == b"Z":
            self._give_back_the_unanswered()
        elif kind in ANSWERS and self._awaited and self._awaited[0] != "the end":
            awaited = self._awaited.popleft()
            if isinstance(awaited, Trap):
                if body == b"ROLLBACK\0":
                    self._proxy.give_back(awaited)
                else:
                    self._spring(awaited)

    def _give_back_the_unanswered(self) -> None:
        """Of a round trip that is over: something before it had failed."""
        while self._awaited and (awaited := self._awaited.popleft()) != "the end":
            if isinstance(awaited, Trap):
                self._proxy.give_back(awaited)

    def _read_along(self, kind: bytes, body: bytes) -> str:
        """The statement that is asked for, if one is."""
        if kind == b"P":
            name, parsed, _ = body.split(b"\0", 2)
            self._texts[name] = parsed.decode()
            return ""
        if kind == b"B":
            text = self._texts[body.split(b"\0", 2)[1]]
        elif kind == b"Q":
            text = body.rstrip(b"\0").decode()
        else:
            return ""
        if text == "BEGIN":
            self._asked = []
        self._asked.append(text)
        return text

    def _spring(self, trap: Trap) -> None:
        if trap.is_last:
            self._proxy.shut_out()
        self.cut(is_reset=True)
        trap.sprung.set()
        raise ConnectionResetError("cut by the proxy")


async def read(reader: asyncio.StreamReader, kind_size: int = 1) -> tuple[bytes, bytes, bytes]:
    """Kind, body, and all of one message. Raises ``ConnectionResetError`` at the end."""
    try:
        head = await reader.readexactly(kind_size + 4)
        (size,) = struct.unpack("!i", head[kind_size:])
        body = await reader.readexactly(size - 4)
    except asyncio.IncompleteReadError as error:
        raise ConnectionResetError("the other end is gone") from error
    return head[:kind_size], body, head + body
