"""A flaky HTTP consumer of receipts, on a free port of the loopback interface.

It takes each message once, with Stagepost's receiver in its own SQLite file, and logs each request there. At first it
meets some orders with an error, half an answer, or an answer that comes too late. The last two have taken the receipt.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from stagepost.gateway.receiver import AtWork, make_table, receive

# The delivery waits for an answer for this time.
PATIENCE_SECONDS = 1.0
# Of a hundred orders these have their first request answered so.
ERRORS, HALVES, LATE = range(1, 6), range(6, 11), range(11, 12)
SCHEMA = """
CREATE TABLE IF NOT EXISTS taken (order_id INTEGER);
CREATE TABLE IF NOT EXISTS request (order_id INTEGER, answer TEXT);
CREATE INDEX IF NOT EXISTS request_order ON request (order_id);
"""


class Consumer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, file: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.file = file
        self.lock = threading.Lock()
        with closing(sqlite3.connect(file)) as connection, connection:
            make_table(connection)
            connection.executescript(SCHEMA)

    def take(self, message_id: str, order_id: int, body: bytes) -> str:
        """Take the receipt, unless it was taken before or the request fails. Return how the request is answered."""
        # The lock lets the requests of other receipts wait, so that SQLite need not refuse them.
        with self.lock, closing(sqlite3.connect(self.file, timeout=60)) as connection:
            answer = self.mood(connection, order_id)
            if answer != "error" and not receive(connection, message_id, body).is_new:
                answer = "copy"
            elif answer != "error":
                connection.execute("INSERT INTO taken VALUES (?)", (order_id,))
            connection.execute("INSERT INTO request VALUES (?, ?)", (order_id, answer))
            connection.commit()
            return answer

    def mood(self, connection: sqlite3.Connection, order_id: int) -> str:
        if connection.execute("SELECT 1 FROM request WHERE order_id = ?", (order_id,)).fetchone():
            return "taken"
        moods = {"error": ERRORS, "half": HALVES, "late": LATE}
        return next((mood for mood, orders in moods.items() if order_id % 100 in orders), "taken")


class Handler(BaseHTTPRequestHandler):
    server: Consumer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            answer = self.server.take(self.headers["Message-Id"], json.loads(body)["order_id"], body)
        except AtWork:
            answer = "error"
        if answer == "late":
            time.sleep(2 * PATIENCE_SECONDS)
        try:
            self.send_response(503 if answer == "error" else 200)
            self.send_header("Content-Length", "100" if answer == "half" else "2")
            self.end_headers()
            self.wfile.write(b"{}")
        except OSError:
            # The delivery has left.
            self.close_connection = True

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class names it
        """Log nothing: the database is the log."""
