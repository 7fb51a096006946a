"""Run the chain once, with the service in its middle killed on the way, and count what arrived."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event, Thread

from examples.store_and_forward.producer import Producer

CURE = "the gateway"
OF_THE_PRODUCER = ("new-id-on-retry", "answer-ignored")
MISTAKES = (
    "client-retries",
    "re-insert-in-code",
    "commit-before-answer",
    "error-reply-commits",
    "acknowledge-on-receipt",
    "check-in-the-reader",
    *OF_THE_PRODUCER,
)
ORDERS = 60
# Longer than a reader waits for an answer.
REST_SECONDS = 1.5
# For a whole run on a busy machine.
DEADLINE_SECONDS = 240.0
LOOK_SECONDS = 0.05
# The service is killed when half of the orders are sent, and each time after so many further reads. The validator is
# away until so many kills.
KILLED_AFTER_READS = (15, 15)
KILLS_WITHOUT_VALIDATOR = 2

# Runs a process while the block lasts.
Run = Callable[[], AbstractContextManager[None]]

GATEWAY = """
bind = "127.0.0.1:{port}"
database = "sqlite:///{folder}/gateway.db"
anonymous = "shop"

[[route]]
name = "orders"

[route.deliver]
url = "http://127.0.0.1:{validator}/orders"
allow_private = ["127.0.0.1"]
timeout_seconds = 0.5
pause_after = 0
redelivery = {{ kind = "fixed", every_seconds = 0.2, times = 1000 }}
"""


@dataclass(frozen=True)
class Outcome:
    """The counts of one run.

    ``sent``       requests of the producer
    ``read``       how often a message was read from the queue, or from a thread's memory
    ``reached``    orders that reached the validator, of ``ORDERS``
    ``doubled``    further times that one of them did
    ``held``       threads that held a message at one time, where a thread is its only place
    ``displaced``  orders that reached the validator after a later one
    """

    sent: int
    read: int
    reached: int
    doubled: int
    held: int
    displaced: int

    @property
    def lost(self) -> int:
        return ORDERS - self.reached


def run(mistake: str | None, folder: Path, environment: Mapping[str, str]) -> Outcome:
    """Run the chain with one mistake, or with none. Raises ``TimeoutError`` if it does not come to rest."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    port, validator_port = free_ports(2)
    is_naive = mistake is not None and mistake not in OF_THE_PRODUCER
    if is_naive:
        settings = {"mistake": mistake, "file": str(folder / "naive.db"), "port": port, "validator": validator_port}
        service = ["-m", "examples.store_and_forward.naive", json.dumps(settings)]
    else:
        configuration = folder / "gateway.toml"
        configuration.write_text(GATEWAY.format(folder=folder, port=port, validator=validator_port), encoding="utf-8")
        service = ["-m", "stagepost", "gateway", str(configuration), "--log-level", "error"]
    words = ["-m", "examples.store_and_forward.validator", str(folder / "validator.db"), str(validator_port)]
    validator = partial(process, words, validator_port, environment, deadline, folder)
    running = partial(process, service, port, environment, deadline, folder)
    producer = Producer(port, has_new_ids=mistake == "new-id-on-retry", is_deaf=mistake == "answer-ignored")
    sent = send_through(running, validator, producer, deadline, folder, is_naive=is_naive)
    taken = [number for (number,) in rows(folder / "validator.db", "SELECT number FROM taken ORDER BY place")]
    counts = Counter(taken)
    return Outcome(
        sent=sent,
        read=reads(folder, is_naive=is_naive),
        reached=len(counts),
        doubled=sum(counts.values()) - len(counts),
        held=next((value for (value,) in counter(folder, "held")), 0) if is_naive else 0,
        displaced=sum(1 for place, number in enumerate(taken) if any(each > number for each in taken[:place])),
    )


def send_through(
    service: Run, validator: Run, producer: Producer, deadline: float, folder: Path, *, is_naive: bool
) -> int:
    """Let the producer send. Kill the service with SIGKILL, in the middle of the orders and of its reads, and go on."""
    halves = Event()
    sent: list[int] = []
    thread = Thread(target=lambda: sent.append(producer.send(ORDERS, halves, deadline)))
    with ExitStack() as rest:
        with service():
            thread.start()
            halves.wait(DEADLINE_SECONDS)
        for kills, count in enumerate(KILLED_AFTER_READS, start=1):
            if kills == KILLS_WITHOUT_VALIDATOR:
                rest.enter_context(validator())
            wanted = reads(folder, is_naive=is_naive) + count
            with service():
                # A lost message is never read.
                while reads(folder, is_naive=is_naive) < wanted and not (
                    not thread.is_alive() and is_at_rest(folder, is_naive=is_naive)
                ):
                    time.sleep(LOOK_SECONDS)
        with service():
            thread.join()
            wait_until(lambda: is_at_rest(folder, is_naive=is_naive), deadline, "the queue is empty")
    if not sent:
        raise TimeoutError("the producer could not send all orders")
    return sent[0]


def is_at_rest(folder: Path, *, is_naive: bool) -> bool:
    """Say whether nothing waits and nothing runs. A thread that holds a message shows by what it reads."""
    before = reads(folder, is_naive=is_naive)
    if is_naive:
        waiting = rows(folder / "naive.db", "SELECT count(*) FROM queue")[0][0]
    else:
        tables = ("stagepost_ready", "stagepost_delayed", "stagepost_suspect")
        waiting = sum(rows(folder / "gateway.db", f"SELECT count(*) FROM {each}")[0][0] for each in tables)
    time.sleep(REST_SECONDS if not waiting else LOOK_SECONDS)
    return not waiting and before == reads(folder, is_naive=is_naive)


def reads(folder: Path, *, is_naive: bool) -> int:
    if is_naive:
        return next((int(value) for (value,) in counter(folder, "read")), 0)
    statement = "SELECT count(*) FROM stagepost_journal WHERE waypoint = 'received'"
    return int(rows(folder / "gateway.db", statement)[0][0])


def counter(folder: Path, name: str) -> list[tuple[int]]:
    return rows(folder / "naive.db", "SELECT value FROM counter WHERE name = ?", name)


def rows(file: Path, statement: str, *parameters: object) -> list[tuple[int]]:
    with closing(sqlite3.connect(file, timeout=60)) as connection:
        return connection.execute(statement, parameters).fetchall()


@contextmanager
def process(
    words: Sequence[str], port: int, environment: Mapping[str, str], deadline: float, folder: Path
) -> Iterator[None]:
    """Run a service, wait until it listens, and end it and all of its processes with SIGKILL."""
    with (folder / "log").open("ab") as log:
        running = subprocess.Popen(
            [sys.executable, *words], env=dict(environment), start_new_session=True, stderr=log, stdout=log
        )
    try:
        wait_until(lambda: running.poll() is not None or listens(port), deadline, f"{words[1]} listens")
        if running.poll() is not None:
            log_text = (folder / "log").read_text(encoding="utf-8", errors="replace")[-2_000:]
            raise RuntimeError(f"{' '.join(words[:3])} ended with {running.returncode}:\n{log_text}")
        yield
    finally:
        for each in (running.pid, *descendants(running.pid)):
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        running.wait()
        wait_until(lambda: not listens(port), deadline, f"{words[1]} has ended")


def descendants(pid: int) -> list[int]:
    """Return the processes below a process, as Linux shows them."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text(encoding="ascii").split()):
            found += [child, *descendants(child)]
    return found


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(is_true: Callable[[], bool], deadline: float, what: str) -> None:
    while not is_true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not in time: {what}")
        time.sleep(LOOK_SECONDS)


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
