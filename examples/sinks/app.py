"""Keep an archive in a database of its own, by a sink that owns a transaction there.

The stage and the archive commit one after the other, and a process may die in between. ``COMMITS_IN`` is the order:

``success``        the archive commits second. A process that dies in between loses the archive's line.
``before_commit``  the archive commits first. A process that dies in between repeats the archive's line.

``python -m examples.sinks.count`` kills workers at that moment, and counts both.
"""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from stagepost import App, Context, IncomingEnvelope, OutgoingEnvelope, Sink

FOLDER = Path(os.environ.get("ARCHIVE_FOLDER", "."))
COMMITS_IN = os.environ.get("ARCHIVE_COMMITS_IN", "success")


@dataclass
class Order:
    number: int


class Archive(Sink):
    """Writes a line about each envelope. ``dispose`` rolls an uncommitted line back."""

    def initialize(self, incoming: IncomingEnvelope) -> None:
        self.connection = sqlite3.connect(FOLDER / "archive.db")
        self.connection.execute("INSERT INTO line (flow_id) VALUES (?)", (incoming.flow_id,))

    def before_commit(self, outgoing: Sequence[OutgoingEnvelope]) -> None:
        if COMMITS_IN == "before_commit":
            self.connection.commit()

    def success(self) -> None:
        if COMMITS_IN == "success":
            self.connection.commit()

    def dispose(self) -> None:
        self.connection.close()


class KillSwitch(Sink):
    """Kills its process once for each flow that has a file in ``FOLDER``, between the two commits."""

    def __init__(self, commits_in: str) -> None:
        self.is_set = commits_in == COMMITS_IN

    def initialize(self, incoming: IncomingEnvelope) -> None:
        self.file = FOLDER / f"kill-{incoming.flow_id}"

    def before_commit(self, outgoing: Sequence[OutgoingEnvelope]) -> None:
        if COMMITS_IN == "before_commit":
            self.kill()

    def success(self) -> None:
        if COMMITS_IN == "success":
            self.kill()

    def kill(self) -> None:
        if self.is_set and self.file.exists():
            self.file.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


# Both calls reach the sinks in reverse order. The first switch is the outermost: it comes after the archive's commit in
# before_commit. The last one is the innermost: it comes before the archive's commit in success.
SINKS: Sequence[Callable[[], Sink]] = (lambda: KillSwitch("before_commit"), Archive, lambda: KillSwitch("success"))


def make_app(database: str | None = None) -> App:
    app = App("archive", database=database)
    for each in SINKS:
        app.sink(owns_transaction=each is Archive)(each)

    @app.endpoint("orders.book")
    def book(ctx: Context, order: Order) -> None:
        ctx.sql("INSERT INTO booking (flow_id) VALUES (:flow_id)", flow_id=ctx.flow_id)

    return app


def prepare(folder: Path) -> None:
    """Create the tables of the bookings and of the archive. Neither has a unique key, so a repeated line shows."""
    for file, statement in (
        ("bookings.db", "CREATE TABLE booking (flow_id TEXT)"),
        ("archive.db", "CREATE TABLE line (flow_id TEXT)"),
    ):
        with closing(sqlite3.connect(folder / file)) as connection:
            connection.execute(statement)


app = make_app()
