"""The end of the chain: a consumer that logs each message it takes, and that is as unreliable as consumers are.

It starts when the service was killed twice. It takes each message id once, in its own transaction:
``stagepost.gateway.receiver``. So a message is doubled only if it comes under two ids.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import threading
import time
from collections import Counter
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from stagepost.gateway.receiver import AtWork, make_table, receive

# The reader waits for an answer for this time.
PATIENCE_SECONDS = 0.5
WORK_SECONDS = 0.05
# A message whose number ends with one of these digits meets this at its first attempts.
MOODS = {1: "refuses", 4: "answers late", 7: "answers half", 9: "answers late"}
ATTEMPTS_IN_MOOD = 2


class Validator(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, file: Path, port: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.file = file
        self._attempts: Counter[int] = Counter()
        self._lock = threading.Lock()
        with closing(sqlite3.connect(file)) as connection, connection:
            make_table(connection)
            connection.execute("CREATE TABLE IF NOT EXISTS taken (place INTEGER PRIMARY KEY, number INTEGER)")

    def mood(self, number: int) -> str | None:
        with self._lock:
            self._attempts[number] += 1
            return MOODS.get(number % 10) if self._attempts[number] <= ATTEMPTS_IN_MOOD else None

    def take(self, message_id: str, number: int, body: bytes) -> None:
        with closing(sqlite3.connect(self.file, timeout=60)) as connection:
            if receive(connection, message_id, body).is_new:
                connection.execute("INSERT INTO taken (number) VALUES (?)", (number,))
            connection.commit()


class Handler(BaseHTTPRequestHandler):
    server: Validator

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        number = json.loads(body)["number"]
        mood = self.server.mood(number)
        if mood == "refuses":
            self.answer(503)
            return
        time.sleep(WORK_SECONDS)
        try:
            self.server.take(self.headers["Message-Id"], number, body)
        except AtWork:
            self.answer(425)
            return
        if mood == "answers late":
            time.sleep(2 * PATIENCE_SECONDS)
        self.answer(200, length=100 if mood == "answers half" else 2)

    def answer(self, status: int, length: int = 2) -> None:
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(b"{}")
        except OSError:
            # The reader has left.
            self.close_connection = True

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class names it
        """Log nothing: the database is the log."""


if __name__ == "__main__":
    Validator(Path(sys.argv[1]), int(sys.argv[2])).serve_forever()
