"""What ``calls`` calls: a card processor over HTTP, and a mail server. Each keeps its books in a file, as it goes.

    python -m tests.faults.called http|smtp FOLDER

``FOLDER/dies`` holds how many requests are left that the server takes into its books and does not answer, because it
dies of SIGKILL. ``FOLDER/delay`` holds the seconds after which a capture takes effect.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from aiosmtpd.smtp import SMTP

FOLDER = Path(sys.argv[2]) if len(sys.argv) > 2 else Path()
lock = threading.Lock()


def note(book: str, line: str) -> None:
    with (FOLDER / book).open("a") as file:
        file.write(f"{line}\n")
        file.flush()
        os.fsync(file.fileno())


def lines(book: str) -> list[str]:
    file = FOLDER / book
    return file.read_text().splitlines() if file.exists() else []


def die_if_told() -> None:
    file = FOLDER / "dies"
    left = int(file.read_text() or 0) if file.exists() else 0
    if left:
        file.write_text(str(left - 1))
        os.kill(os.getpid(), signal.SIGKILL)


class Cards(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        delay = FOLDER / "delay"
        if delay.exists():
            seconds = float(delay.read_text())
            delay.unlink()
            (FOLDER / "delaying").touch()
            time.sleep(seconds)
        with lock:
            number = len(lines("captures")) + 1
            note("captures", f"c{number} {self.path.strip('/')} {self.headers['Idempotency-Key']}")
            die_if_told()
        self.answer(200, f"c{number}")

    def do_GET(self) -> None:
        with lock:
            note("queries", self.path.strip("/"))
            found = [each.split()[0] for each in lines("captures") if each.split()[2] == self.path.strip("/")]
        self.answer(200 if found else 404, found[0] if found else "")

    def do_DELETE(self) -> None:
        with lock:
            note("voids", self.path.strip("/"))
        self.answer(200, "")

    def answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *arguments: Any) -> None:
        """Log nothing."""


class Mails:
    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802 - aiosmtpd names it
        subject = next(line for line in envelope.content.decode().splitlines() if line.startswith("Subject: "))
        note("mails", subject.removeprefix("Subject: "))
        die_if_told()
        return "250 OK"


async def serve_mails() -> None:
    server = await asyncio.get_running_loop().create_server(lambda: SMTP(Mails(), hostname="localhost"), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    announce("smtp", f"{host}:{port}")
    await server.serve_forever()


def announce(name: str, place: str) -> None:
    (FOLDER / f"{name}.new").write_text(place)
    (FOLDER / f"{name}.new").rename(FOLDER / name)


if __name__ == "__main__":
    if sys.argv[1] == "http":
        cards = ThreadingHTTPServer(("127.0.0.1", 0), Cards)
        announce("http", f"http://127.0.0.1:{cards.server_port}")
        cards.serve_forever()
    else:
        asyncio.run(serve_mails())
