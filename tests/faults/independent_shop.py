"""A shop on SQLite whose stage starts flows independently, fails once, and counts what was done.

With ``INDEPENDENT_KILLS``, such as ``before 1, after 3``, the first process kills itself before its first commit, the
second one after its third, and so on. Commits to the second file count, and those of the relay. The processes that were
killed leave a file each in the folder ``INDEPENDENT_KILLED``.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from stagepost import App, Context, Redelivery
from stagepost.flow.clock import SECOND
from stagepost.recovery import suspicion
from stagepost.store.sqlite.session import SqliteSession
from stagepost.transaction import relay
from stagepost.worker import supervisor

app = App("shop")


@dataclass
class Order:
    id: str


@app.endpoint("pay", redelivery=Redelivery.fixed(every_seconds=0.05, times=3))
def pay(ctx: Context, order: Order) -> None:
    ctx.sql("INSERT INTO paid (id) VALUES (:id)", id=order.id)
    with ctx.initiate(independent=True) as out:
        out.send(note, order, flow_id=f"note:{order.id}")
    if ctx.attempt == 1:
        raise ValueError("the first attempt fails, and its independent start stays")


@app.endpoint("note")
def note(ctx: Context, order: Order) -> None:
    ctx.sql("INSERT INTO noted (id) VALUES (:id)", id=order.id)


def kill_at(where: str, marker: Path) -> None:
    side, number = where.split()
    numbers = count(1)
    commit: Callable[[SqliteSession], None] = SqliteSession.commit

    def killing(self: SqliteSession) -> None:
        is_counted = self._path.name.endswith("-apart") or threading.current_thread().name == "relay"
        is_due = is_counted and next(numbers) == int(number)
        if is_due and side == "before":
            die()
        commit(self)
        if is_due:
            die()

    def die() -> None:
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)

    patched: Any = SqliteSession
    patched.commit = killing


# A flow that a killed relay has leased is moved soon, and killed processes are replaced soon.
relay.LEASE = SECOND // 10
supervisor.RESTART_SECONDS_MAX = suspicion.PAUSE_SECONDS_FIRST = 0.1
if where := os.environ.get("INDEPENDENT_KILLS"):
    folder = Path(os.environ["INDEPENDENT_KILLED"])
    kills, killed = where.split(", "), len(list(folder.iterdir()))
    if killed < len(kills):
        kill_at(kills[killed], folder / str(killed))
