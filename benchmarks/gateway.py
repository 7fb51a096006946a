"""Measure accepted requests a second, against the same server doing one bare insert and commit for each request.

The load comes from wrk. Both sides run on Hypercorn, on SQLite and on PostgreSQL, with one connection and with many,
in one process and in two. The last part kills gateway processes under full load and looks for lost messages.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.machine import BUSY_MAX, watched
from stagepost.testing.postgres import PostgresServer

SECONDS = 5
ROUNDS = 3
MANY = 64
# One by one, and with group commit.
GOAL_ONE = 0.7
GOAL_MANY = 1.0
KILLS = 5

# Each thread of wrk has its own name, and each request its own id. With LOG the script notes the answered ids.
SCRIPT = """
local thread_number = 0
function setup(thread) thread_number = thread_number + 1; thread:set("name", tostring(thread_number)) end
local count = 0
function request()
  count = count + 1
  return wrk.format("POST", "/orders", {["Content-Type"] = "application/json",
    ["Message-Id"] = os.getenv("RUN") .. "-" .. name .. "-" .. count},
    '{"account": "a-' .. (count % 100) .. '", "invoice": ' .. count .. ', "amount": 12.5}')
end
local log
function init() if os.getenv("LOG") then log = io.open(os.getenv("LOG") .. "." .. name, "w") end end
function response(status, headers, body)
  if log and status == 200 then log:write(body, "\\n"); log:flush() end
end
"""


@dataclass(frozen=True, slots=True)
class Load:
    """The figures of one run of wrk. ``p50`` and ``p99`` are in milliseconds."""

    rate: float
    p50: float
    p99: float
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One comparison: the runs of both sides alternate."""

    name: str
    ours: Sequence[Load]
    bare: Sequence[Load]
    goal: float | None

    @property
    def ratio(self) -> float:
        return statistics.median(a.rate / b.rate for a, b in zip(self.ours, self.bare, strict=True))

    @property
    def is_reached(self) -> bool:
        failed = sum(each.failed for each in self.ours)
        return failed == 0 and (self.goal is None or self.ratio >= self.goal)

    def lines(self) -> list[str]:
        goal = "" if self.goal is None else f", goal {self.goal:g}: {'reached' if self.is_reached else 'MISSED'}"
        return [
            f"  {self.name}",
            f"    gateway  {_shown(self.ours)}",
            f"    bare     {_shown(self.bare)}",
            f"    ratio    {self.ratio:.2f}{goal}",
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    cases: Sequence[Case]
    answered: int
    lost: int
    kills: int
    others: float

    @property
    def is_valid(self) -> bool:
        return self.others <= BUSY_MAX

    @property
    def is_reached(self) -> bool:
        return self.lost == 0 and all(each.is_reached for each in self.cases)

    def lines(self) -> list[str]:
        note = (
            "" if self.is_valid else f" (other processes used {self.others:.0%} of a core: the figures are not valid)"
        )
        return [
            f"The gateway: accepted requests a second, each on the disk before its 200{note}",
            *(line for case in self.cases for line in case.lines()),
            f"  kill -9 under full load: {self.kills} kills, {self.answered:,} answered with 200, {self.lost} lost",
        ]


def measure() -> Outcome:
    with TemporaryDirectory(prefix="stagepost-bench-") as temporary, ExitStack() as running:
        folder = Path(temporary)
        folder.chmod(0o755)
        (folder / "load.lua").write_text(SCRIPT)
        server = PostgresServer(folder / "postgres")
        server.make()
        server.start()
        running.callback(server.stop)
        urls = {"SQLite": f"sqlite:///{folder}/shop.db", "PostgreSQL": server.url}
        cases: list[Case] = []
        with watched(server.pid) as quiet:
            for store, url in urls.items():
                for processes in (1, 2):
                    for connections in (1, MANY):
                        goal = GOAL_ONE if connections == 1 else GOAL_MANY
                        name = f"{store}, {processes} process{'es' * (processes > 1)}, {connections} at a time"
                        cases.append(_compare(folder, url, name, processes, connections, goal))
        answered, lost = _kill_under_load(folder, urls["SQLite"])
        return Outcome(cases=cases, answered=answered, lost=lost, kills=KILLS, others=quiet.others)


def _compare(folder: Path, url: str, name: str, processes: int, connections: int, goal: float) -> Case:
    sides: dict[str, list[Load]] = {"gateway": [], "bare": []}
    for number in range(ROUNDS):
        for side, loads in sides.items():
            with serving(side, url, folder, processes) as port:
                loads.append(load(folder, port, connections, f"{name}-{number}-{time.time_ns()}", SECONDS))
    return Case(name=name, ours=sides["gateway"], bare=sides["bare"], goal=goal)


@contextmanager
def serving(side: str, url: str, folder: Path, processes: int) -> Iterator[int]:
    """Serve with so many processes on one socket. Yields the port."""
    with closing(socket.socket()) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(1_024)
        port = listening.getsockname()[1]
        started = [start(side, url, folder, listening) for _ in range(processes)]
        try:
            _wait_until_alive(port)
            # The first requests of each process open their connections.
            load(folder, port, 8, f"warm-{time.time_ns()}", 1)
            yield port
        finally:
            for each in started:
                each.kill()
                each.wait()


def start(side: str, url: str, folder: Path, listening: socket.socket) -> subprocess.Popen[bytes]:
    arguments = [sys.executable, "-m", "benchmarks.gateway_server", side, url, str(listening.fileno())]
    with (folder / f"{side}.log").open("ab") as log:
        return subprocess.Popen(arguments, pass_fds=[listening.fileno()], stderr=log, stdout=log)


def load(folder: Path, port: int, connections: int, run: str, seconds: int, log: Path | None = None) -> Load:
    """Run wrk for that time. With ``log`` it writes the bodies of all 200s into files of that name."""
    wrk = shutil.which("wrk")
    if wrk is None:
        raise RuntimeError("wrk makes the load and is not installed: apt-get install wrk")
    threads = 1 if connections == 1 else 2
    done = subprocess.run(
        [wrk, f"-t{threads}", f"-c{connections}", f"-d{seconds}s", "--latency", "--timeout", "30s",
         "-s", str(folder / "load.lua"), f"http://127.0.0.1:{port}"],
        env={**os.environ, "RUN": re.sub(r"\W+", "-", run), **({} if log is None else {"LOG": str(log)})},
        capture_output=True,
        text=True,
        check=True,
    )  # fmt: skip
    rate = re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)
    failed = re.search(r"Non-2xx or 3xx responses: (\d+)", done.stdout)
    assert rate is not None, done.stdout
    return Load(float(rate[1]), _latency(done.stdout, 50), _latency(done.stdout, 99), int(failed[1]) if failed else 0)


def _latency(text: str, part: int) -> float:
    found = re.search(rf"{part}%\s+([\d.]+)(us|ms|s)\b", text)
    assert found is not None, text
    return float(found[1]) * {"us": 0.001, "ms": 1.0, "s": 1000.0}[found[2]]


def _kill_under_load(folder: Path, url: str) -> tuple[int, int]:
    """Kill one of two gateway processes again and again under load. Return the answered and the lost messages."""
    log = folder / "answered"
    with closing(socket.socket()) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(1_024)
        port = listening.getsockname()[1]
        running = [start("gateway", url, folder, listening) for _ in range(2)]
        _wait_until_alive(port)
        environment = {**os.environ, "RUN": f"kill-{time.time_ns()}", "LOG": str(log)}
        words = [
            "wrk",
            "-t2",
            f"-c{MANY}",
            f"-d{KILLS * 2 + 2}s",
            "-s",
            str(folder / "load.lua"),
            f"http://127.0.0.1:{port}",
        ]
        wrk = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL)
        for number in range(KILLS):
            time.sleep(2)
            victim = running[number % 2]
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            running[number % 2] = start("gateway", url, folder, listening)
        wrk.wait()
        for each in running:
            each.kill()
            each.wait()
    answered = {
        json.loads(line)["message_id"] for path in folder.glob("answered.*") for line in path.read_text().splitlines()
    }
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
        kept = {message_id for (message_id,) in file.execute("SELECT message_id FROM stagepost_ready")}
    return len(answered), len(answered - kept)


def _wait_until_alive(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with closing(socket.create_connection(("127.0.0.1", port), timeout=60)) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            if connection.recv(100).startswith(b"HTTP/1.1 200"):
                return
    raise RuntimeError("the server does not answer")


def _shown(loads: Sequence[Load]) -> str:
    rates = [each.rate for each in loads]
    p50, p99 = (statistics.median(getattr(each, name) for each in loads) for name in ("p50", "p99"))
    spread = f"{statistics.median(rates):>8,.0f}/s ({min(rates):,.0f} to {max(rates):,.0f})"
    return f"{spread}, p50 {p50:.1f} ms, p99 {p99:.1f} ms"
