"""A TCP proxy before a STOMP broker: it passes frames on, and does to some of them what a network does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

from stagepost.broker.activemq.frames import Frame, encode
from stagepost.broker.activemq.parser import FrameParser

CHUNK = 65_536
# ``half`` passes the first half of the frame on, and then cuts the connection.
Fate = Literal["pass", "swallow", "cut", "half"]
Judge = Callable[[Frame], Fate]


def passing(frame: Frame) -> Fate:
    return "pass"


def once(fate: Fate, command: str, is_it: Callable[[Frame], bool] = lambda frame: True) -> Judge:
    """Return a judge of the first frame of its kind."""
    found = threading.Event()

    def judge(frame: Frame) -> Fate:
        if frame.command != command or found.is_set() or not is_it(frame):
            return "pass"
        found.set()
        return fate

    return judge


class StompProxy:
    """``port`` leads through it. ``requests`` judges the client's frames, ``answers`` those of the broker."""

    def __init__(self, server_port: int) -> None:
        self.server_port = server_port
        self.requests: Judge = passing
        self.answers: Judge = passing
        self._links: list[Link] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, name="stomp-proxy", daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """End all connections of this moment, on both sides."""
        links, self._links = self._links, []
        for each in links:
            each.cut()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        self.cut()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.server_port))
            except OSError:
                client.close()
                continue
            self._links.append(Link(self, client, server))


class Link:
    """One connection through the proxy."""

    def __init__(self, proxy: StompProxy, client: socket.socket, server: socket.socket) -> None:
        self._ends = (client, server)
        for each in self._ends:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._proxy = proxy
        self._threads = [
            threading.Thread(target=self._pump, args=(source, target), daemon=True)
            for source, target in ((client, server), (server, client))
        ]
        for thread in self._threads:
            thread.start()

    def cut(self) -> None:
        self._shut()
        for each in self._threads:
            each.join()
        for end in self._ends:
            end.close()

    def _shut(self) -> None:
        for each in self._ends:
            # One end may be closed already.
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        parser = FrameParser()
        # An end that is gone ends the link.
        with suppress(OSError):
            while data := source.recv(CHUNK):
                parser.feed(data)
                if not data.strip(b"\r\n"):
                    target.sendall(data)
                while (frame := parser.next_frame()) is not None:
                    # A test changes the judges while connections are open.
                    fate = (self._proxy.requests if source is self._ends[0] else self._proxy.answers)(frame)
                    if fate == "swallow":
                        continue
                    whole = encode(frame)
                    target.sendall(whole if fate == "pass" else whole[: len(whole) // 2] if fate == "half" else b"")
                    if fate != "pass":
                        self._shut()
        self._shut()
