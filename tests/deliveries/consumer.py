"""A consumer of deliveries on a raw socket, which answers, or fails to answer, as its script says."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self


@dataclass(frozen=True)
class Request:
    """A whole request. ``headers`` have lower-case names."""

    line: str
    headers: dict[str, str]
    body: bytes


# Acts on a connection whose request was read. Returns whether another request may follow on it.
Act = Callable[[socket.socket], bool]


def answer(status: int, body: bytes = b"", **headers: str) -> Act:
    def act(connection: socket.socket) -> bool:
        lines = [f"HTTP/1.1 {status} Because", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        return True

    return act


def closing_answer(connection: socket.socket) -> bool:
    """Answer, and end the connection, as the header says."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    return False


def reset(connection: socket.socket) -> bool:
    """Take the request, and break the connection off without an answer."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return False


def silence(connection: socket.socket) -> bool:
    """Take the request, and answer nothing until the gateway has had enough."""
    connection.recv(1)
    return False


def half(connection: socket.socket) -> bool:
    """Say 200, and break the body off."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf of it")
    return False


def nonsense(connection: socket.socket) -> bool:
    connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
    return False


def drip(connection: socket.socket) -> bool:
    """Send one byte of a header now and then, as long as the gateway reads."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    connection.settimeout(0.05)
    while True:
        try:
            connection.sendall(b"a")
            if not connection.recv(1):
                return False
        except TimeoutError:
            continue
        except OSError:
            return False


class Consumer:
    """Listens on loopback. Each request takes the next act of ``script``, or else ``otherwise``."""

    def __init__(self, *script: Act, otherwise: Act | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.script = list(script)
        self.otherwise = otherwise or answer(200)
        self.requests: list[Request] = []
        self.accepted = 0
        self._tls = tls
        self.on_request: Callable[[Request], None] = lambda request: None
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=50)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://localhost:{self.port}/take?token=canary"
        self._threads = [threading.Thread(target=self._listen)]
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for each in self._open:
                # A connection whose handshake failed is closed already.
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    @property
    def ids(self) -> list[str]:
        return [each.headers["message-id"] for each in self.requests]

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self.accepted += 1
                self._open.add(connection)
            thread = threading.Thread(target=self._serve, args=[connection])
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        served = connection
        try:
            if self._tls is not None:
                served = self._tls.wrap_socket(connection, server_side=True)
                with self._lock:
                    self._open ^= {connection, served}
            while (request := read_request(served)) is not None:
                with self._lock:
                    self.requests.append(request)
                    act = self.script.pop(0) if self.script else self.otherwise
                self.on_request(request)
                if not act(served):
                    return
        except OSError:
            pass
        finally:
            with self._lock:
                self._open -= {connection, served}
                served.close()
                connection.close()


def read_request(connection: socket.socket) -> Request | None:
    """Return the next request; None at the end of the connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65536)
        if not part:
            return None
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    line, *lines = head.decode().split("\r\n")
    pairs = (each.partition(": ") for each in lines)
    headers = {name.lower(): value for name, _, value in pairs}
    while len(body) < int(headers.get("content-length", "0")):
        body += connection.recv(65536)
    return Request(line, headers, body)
