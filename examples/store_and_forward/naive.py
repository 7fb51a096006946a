"""Door, queue and reader as they are often written, with one of these mistakes in each run.

``acknowledge-on-receipt``   the door answers before it has stored the message
``client-retries``           the door forwards from a thread that retries, and stores nothing
``check-in-the-reader``      the door stores each request; the reader looks whether it has seen the id
``commit-before-answer``     the reader removes the message from the queue, then calls the validator
``error-reply-commits``      the reader takes the validator's error for a reply, and removes the message
``re-insert-in-code``        the reader removes the message, and inserts it again after a failure

The mistakes are not exaggerated: each transaction commits to the disk, and each error is handled, in the wrong place.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue

from examples.store_and_forward.validator import PATIENCE_SECONDS

READERS = 4
RETRIES_MAX = 20
PAUSE_SECONDS = 0.1
# A reader takes one of the first so many, so that one failing message holds up no other.
AHEAD = 10

Row = tuple[int, str, str]


class Service:
    """``mistake`` is one of this module's. ``file`` has the queue, the ids that were seen, and the counters."""

    def __init__(self, mistake: str, file: Path, validator_port: int) -> None:
        self.mistake = mistake
        self._file = file
        self._validator_port = validator_port
        self._held = 0
        self._lock = threading.Lock()
        self.received: Queue[tuple[str, str]] = Queue()
        with self.transaction() as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            for table in (
                "queue (place INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT, body TEXT)",
                "seen (id TEXT PRIMARY KEY)",
                "counter (name TEXT PRIMARY KEY, value INTEGER)",
            ):
                connection.execute(f"CREATE TABLE IF NOT EXISTS {table}")

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self._file, timeout=60)
        try:
            with connection:
                yield connection
        finally:
            connection.close()

    def begin(self) -> None:
        loops = [self.read] * READERS if self.mistake != "client-retries" else []
        for loop in [*loops, self.store_received]:
            threading.Thread(target=loop, daemon=True).start()

    # The door

    def accept(self, message_id: str, body: str) -> None:
        if self.mistake == "client-retries":
            threading.Thread(target=self.forward, args=(message_id, body), daemon=True).start()
        elif self.mistake == "acknowledge-on-receipt":
            self.received.put((message_id, body))
        else:
            self.store(message_id, body)

    def store(self, message_id: str, body: str) -> None:
        with self.transaction() as connection:
            connection.execute("INSERT INTO queue (id, body) VALUES (?, ?)", (message_id, body))

    def store_received(self) -> None:
        while True:
            message_id, body = self.received.get()
            time.sleep(PAUSE_SECONDS)
            self.store(message_id, body)

    def forward(self, message_id: str, body: str) -> None:
        self.hold(1)
        try:
            for _ in range(RETRIES_MAX):
                self.count("read")
                if self.call(message_id, body):
                    return
                time.sleep(PAUSE_SECONDS)
        finally:
            self.hold(-1)

    # The reader

    def read(self) -> None:
        while True:
            with self.transaction() as connection:
                row: Row | None = connection.execute(
                    "SELECT place, id, body FROM (SELECT * FROM queue ORDER BY place LIMIT ?) ORDER BY random()",
                    (AHEAD,),
                ).fetchone()
            if row is None:
                time.sleep(PAUSE_SECONDS / 10)
            elif self.mistake in ("commit-before-answer", "re-insert-in-code"):
                self.remove_and_call(row)
            elif self.mistake == "check-in-the-reader":
                self.check_and_call(row)
            else:
                self.call_and_remove(row)

    def remove_and_call(self, row: Row) -> None:
        place, message_id, body = row
        if not self.remove(place):
            return
        self.count("read")
        if not self.call(message_id, body) and self.mistake == "re-insert-in-code":
            time.sleep(PAUSE_SECONDS)
            self.store(message_id, body)

    def check_and_call(self, row: Row) -> None:
        place, message_id, body = row
        with self.transaction() as connection:
            is_seen = connection.execute("SELECT 1 FROM seen WHERE id = ?", (message_id,)).fetchone()
        self.count("read")
        # The validator gets the id that the queue made: "we check the ids ourselves".
        if not is_seen and not self.call(f"row-{place}", body):
            time.sleep(PAUSE_SECONDS)
            return
        with self.transaction() as connection:
            connection.execute("INSERT OR IGNORE INTO seen VALUES (?)", (message_id,))
            connection.execute("DELETE FROM queue WHERE place = ?", (place,))

    def call_and_remove(self, row: Row) -> None:
        place, message_id, body = row
        self.count("read")
        is_taken = self.call(message_id, body)
        # "error-reply-commits": whatever came back is the reply, and the reply is handled.
        if is_taken or self.mistake == "error-reply-commits":
            self.remove(place)
        else:
            time.sleep(PAUSE_SECONDS)

    def remove(self, place: int) -> bool:
        with self.transaction() as connection:
            return connection.execute("DELETE FROM queue WHERE place = ?", (place,)).rowcount == 1

    def call(self, message_id: str, body: str) -> bool:
        connection = HTTPConnection("127.0.0.1", self._validator_port, timeout=PATIENCE_SECONDS)
        headers = {"Content-Type": "application/json", "Message-Id": message_id}
        try:
            connection.request("POST", "/orders", body, headers)
            answer = connection.getresponse()
            answer.read()
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()
        return answer.status == 200

    # The counters

    def count(self, name: str) -> None:
        with self.transaction() as connection:
            connection.execute(
                "INSERT INTO counter VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET value = value + 1", (name,)
            )

    def hold(self, change: int) -> None:
        """Note the greatest number of threads that held a message."""
        with self._lock, self.transaction() as connection:
            self._held += change
            connection.execute(
                "INSERT INTO counter VALUES ('held', ?1) ON CONFLICT (name) DO UPDATE SET value = max(value, ?1)",
                (self._held,),
            )


class Door(BaseHTTPRequestHandler):
    service: Service

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.service.accept(self.headers["Message-Id"], body)
        with suppress(OSError):
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class names it
        """Log nothing: the database is the log."""


def main() -> None:
    settings = json.loads(sys.argv[1])
    Door.service = Service(settings["mistake"], Path(settings["file"]), settings["validator"])
    Door.service.begin()
    server = ThreadingHTTPServer(("127.0.0.1", settings["port"]), Door)
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main()
