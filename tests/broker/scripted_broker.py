"""A broker that speaks STOMP as a test tells it to. It stores nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random

from stagepost.broker.activemq.frames import Frame, encode
from stagepost.broker.activemq.parser import FrameParser
from stagepost.flow.clock import SystemClock
from stagepost.ports.broker import BrokerConnection
from stagepost.ports.broker_registry import broker_driver_of
from tests.waiting import PATIENCE_SECONDS, wait_until

CONNECTED = {"version": "1.2", "server": "ActiveMQ/5.17.2", "heart-beat": "0,0"}
Answers = Sequence[Frame | bytes]
Script = Callable[[Frame], Answers | None]


class ScriptedBroker:
    """``script`` answers the frames for which it does not return None; the others get ``CONNECTED`` or a receipt.

    ``seen`` holds the frames of all clients, and ``beats`` counts their heart-beats.
    """

    def __init__(self, script: Script = lambda frame: None, *, connected: dict[str, str] | None = None) -> None:
        self.seen: list[Frame] = []
        self.beats = 0
        self._script = script
        self._connected = CONNECTED | (connected or {})
        self._clients: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = f"stomp://shop:s3cret@127.0.0.1:{port}"
        self._threads = [threading.Thread(target=self._serve, daemon=True)]
        self._threads[0].start()

    def connect(self, parameters: str = "") -> BrokerConnection:
        url = f"{self.url}?{parameters}"
        return broker_driver_of(url).broker(url, SystemClock(), Random(0)).connect(PATIENCE_SECONDS)

    def commands(self) -> list[str]:
        return [each.command for each in self.seen]

    def saw(self, command: str) -> Frame:
        """Return the first frame with that command, when it has come."""
        [found] = wait_until(lambda: [each for each in self.seen if each.command == command][:1], f"{command} comes")
        return found

    def push(self, *answers: Frame | bytes) -> None:
        """Send to the last client."""
        for each in answers:
            # The client may have ended the connection.
            with suppress(OSError):
                self._clients[-1].sendall(each if isinstance(each, bytes) else encode(each))

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for client in self._clients:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for client in self._clients:
            client.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._clients.append(client)
                thread = threading.Thread(target=self._hear, args=(client,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _hear(self, client: socket.socket) -> None:
        parser = FrameParser()
        with suppress(OSError):
            while data := client.recv(65_536):
                self.beats += data == b"\n"
                parser.feed(data)
                while (frame := parser.next_frame()) is not None:
                    self.seen.append(frame)
                    answers = self._script(frame)
                    self.push(*(self._by_default(frame) if answers is None else answers))

    def _by_default(self, frame: Frame) -> Answers:
        if frame.command == "CONNECT":
            return [Frame("CONNECTED", self._connected)]
        if "receipt" in frame.headers:
            return [receipt(frame)]
        return []


def receipt(frame: Frame) -> Frame:
    return Frame("RECEIPT", {"receipt-id": frame.headers["receipt"]})


def error(frame: Frame, text: str) -> Frame:
    """Return the error that answers a frame, with a stack in its body, as ActiveMQ writes it."""
    stack = f"org.apache.activemq.ProtocolException: {text}\n\tat org.apache.activemq.Broker.send(Broker.java:1)"
    receipts = {"receipt-id": frame.headers["receipt"]} if "receipt" in frame.headers else {}
    return Frame("ERROR", {"message": text, **receipts}, stack.encode())


def message(subscription: str, number: int, **headers: str) -> Frame:
    own = {"subscription": subscription, "message-id": f"ID:{number}", "ack": f"ack:{subscription}:{number}"}
    return Frame("MESSAGE", {**own, "destination": "/queue/orders", "message_id": f"m{number}", **headers}, b"body")
