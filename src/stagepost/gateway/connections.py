"""The open connections of a gateway process: at most so many, and none that keeps its place without a request."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

from hypercorn.asyncio.task_group import TaskGroup
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config
from hypercorn.events import Closed, Event, Updated
from hypercorn.typing import AppWrapper, ConnectionState, LifespanState
from hypercorn.utils import parse_socket_addr

from stagepost.flow.texts import one_line
from stagepost.gateway.http1 import Http1Protocol

# The log has at most one line in this time about connections at their limit.
REPORT_SECONDS = 60.0
# A connection keeps its place for so long without a request: the bytes may have arrived, and not be read yet.
UNDISTURBED_SECONDS = 1.0
# The time until a process without a free file descriptor accepts again.
EXHAUSTED_SECONDS = 1.0

logger = logging.getLogger(__name__)


class Connections:
    """Accepts connections, and serves at most ``maximum`` of them.

    A further one takes the place of the one that has waited longest for its handshake or for a whole head of a request,
    for a second at least. It waits if there is none. ``answer_seconds`` is the time for a client to take an answer.
    """

    def __init__(
        self, app: AppWrapper, config: Config, state: LifespanState, maximum: int, answer_seconds: float
    ) -> None:
        self.answer_seconds = answer_seconds
        self._loop = asyncio.get_running_loop()
        self._app = app
        self._config = config
        self._state = state
        self._maximum = maximum
        self._tls: ssl.SSLContext | None = config.create_ssl_context()
        self._context = WorkerContext(None)
        self._tasks: set[asyncio.Task[None]] = set()
        # Since when each connection waits for a request, and the way to end it. The oldest is the first.
        self._waiting: dict[asyncio.Task[None], tuple[float, Callable[[], object]]] = {}
        self._changed = asyncio.Event()
        self._reported_at = -REPORT_SECONDS

    async def accept(self, listening: socket.socket) -> None:
        """Accept connections until the task is cancelled. ``listening`` may be shared with other processes.

        A connection beyond the limit waits in ``listening``, from where a process with room may take it.
        """
        listening.setblocking(False)
        while True:
            await self._make_room(listening)
            try:
                client, _ = await self._loop.sock_accept(listening)
            except ConnectionError:
                continue
            except OSError as error:
                logger.error("connection not accepted: %s", error, extra={"event": "gateway-cannot-accept"})  # noqa: TRY400 - the stack tells nothing
                await asyncio.sleep(EXHAUSTED_SECONDS)
                continue
            task = self._loop.create_task(self._serve(client))
            self._tasks.add(task)
            self.note(task, task.cancel)
            task.add_done_callback(self._forget)

    async def finish(self, seconds: float) -> None:
        """Close the connections that wait for a request, and give those with one ``seconds`` to finish it."""
        await self._context.terminated.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        for each in self._tasks:
            each.cancel()

    def note(self, task: asyncio.Task[None], end: Callable[[], object] | None) -> None:
        """Note how to ``end`` a connection that waits for a request; None for one whose request is at work."""
        self._waiting.pop(task, None)
        if end is not None:
            self._waiting[task] = (self._loop.time(), end)
            self._changed.set()

    async def _serve(self, client: socket.socket) -> None:
        task = asyncio.current_task()
        assert task is not None, "a connection is served in a task of its own"
        reader = asyncio.StreamReader(loop=self._loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=self._loop)
        seconds = None if self._tls is None else self._config.ssl_handshake_timeout
        try:
            transport, _ = await self._loop.connect_accepted_socket(
                lambda: protocol, client, ssl=self._tls, ssl_handshake_timeout=seconds
            )
        except OSError:
            return  # The client left, or it does not speak TLS.
        self.note(task, transport.abort)
        writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
        arguments = (self._app, self._loop, self._config, self._context, self._state, reader, writer)
        await Connection(self, task, *arguments)

    def _is_full(self) -> bool:
        return len(self._tasks) >= self._maximum

    async def _arrival(self, listening: socket.socket) -> None:
        """Wait for a new connection, and do not accept it."""
        arrived = asyncio.Event()
        self._loop.add_reader(listening, arrived.set)
        try:
            await arrived.wait()
        finally:
            self._loop.remove_reader(listening)

    async def _make_room(self, listening: socket.socket) -> None:
        while self._is_full():
            # Another process may have taken the connection since the last look, and then none has to go.
            await self._arrival(listening)
            if not self._is_full():
                return
            self._report()
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._end_oldest()):
                    await self._changed.wait()

    def _end_oldest(self) -> float | None:
        """End the connection that waits longest, or return the seconds until it may be ended. None if none waits."""
        oldest = next(iter(self._waiting), None)
        if oldest is None:
            return None
        since, end = self._waiting[oldest]
        seconds = since + UNDISTURBED_SECONDS - self._loop.time()
        if seconds > 0:
            return seconds
        del self._waiting[oldest]
        end()
        return None

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._waiting.pop(task, None)
        self._changed.set()
        error = None if task.cancelled() else task.exception()
        if error is not None:
            text = one_line(repr(error), 400)
            logger.error("connection failed: %s", text, extra={"event": "gateway-connection-failed"})

    def _report(self) -> None:
        if self._loop.time() - self._reported_at >= REPORT_SECONDS:
            self._reported_at = self._loop.time()
            logger.warning(
                "connections are at their limit of %d, closing those that wait longest for a request, %d wait",
                self._maximum,
                len(self._waiting),
                extra={"event": "gateway-connections-full"},
            )


class Connection(TCPServer):
    """A connection in Hypercorn's hands."""

    def __init__(self, connections: Connections, task: asyncio.Task[None], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._connections = connections
        self._task = task
        self._is_read = False

    async def run(self) -> None:
        link = self.writer.get_extra_info("socket")
        try:
            client = parse_socket_addr(link.family, link.getpeername())
            server = parse_socket_addr(link.family, link.getsockname())
            is_tls = self.writer.get_extra_info("ssl_object") is not None
            async with TaskGroup(self.loop) as tasks:
                self._task_group = tasks
                state = ConnectionState(self.state)
                protocol = Http1Protocol(
                    self.app, self.config, self.context, tasks, state, is_tls, client, server, self.protocol_send
                )
                # Hypercorn's own wrapper would choose the protocol by the client's first bytes.
                self.protocol = cast(Any, protocol)
                await self.idle_task.restart(tasks, self._idle_timeout)
                await self._read_data()
                self._is_read = True
                await self.idle_task.stop()
        except OSError:
            pass  # The client left.
        finally:
            await self._close()

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, Updated) and event.idle and self._is_read:
            event = Closed()  # No request can follow. Hypercorn would wait for one.
        if isinstance(event, Updated):
            self._connections.note(self._task, self.writer.transport.abort if event.idle else None)
        with self._aborted_after_answer_seconds():
            await super().protocol_send(event)

    async def _close(self) -> None:
        with self._aborted_after_answer_seconds():
            await super()._close()

    @contextmanager
    def _aborted_after_answer_seconds(self) -> Iterator[None]:
        """Abort the connection of a client that does not take its answer. Hypercorn would wait for it."""
        abort = self.loop.call_later(self._connections.answer_seconds, self.writer.transport.abort)
        try:
            yield
        finally:
            abort.cancel()
