"""The demo: payment orders from a file, through staged transactions, to a proof that each was executed exactly once.

``make demo`` runs it. It gives the commands that a user would give, kills a worker under way, and checks the outcome
twice: by Stagepost's audit, from the journal, and by the example's own books, from its ledger.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from examples.payments import books
from examples.payments.database import Database
from examples.payments.orders import write_orders
from examples.payments.outcome import Outcome, show
from stagepost.testing.postgres import CannotBeHadError

FOLDER = Path(".demo")
SEED = 20261120
APP = "examples.payments.app:app"
LOOK_SECONDS = 0.1
# No flow ended for so long: they never will.
PATIENCE_SECONDS = 60.0
# Shares of the flows: when a worker is killed, and when the workers hand over to Spark.
KILL_AT = 0.2
HAND_OVER_AT = 0.5

# Output to a file or a pipe is not wrapped to the width of a screen.
out = Console(highlight=False, width=None if sys.stdout.isatty() else 140)


class DemoFailed(Exception):
    """A command did not do what it should; its own output says why."""


@dataclass(frozen=True, slots=True)
class Demo:
    """``log`` is where the workers write; ``address`` how one gets at the database afterwards; ``again`` what runs it
    once more, on the same store."""

    orders: Path
    database: Database
    log: Path
    address: str
    again: str

    def run(self) -> bool:
        """True when everything is as it should be."""
        begin = time.monotonic()
        self.database.prepare()
        heading(1, "initiate", f"a flow for each row of {self.orders}, started by Spark")
        initiated = self.ask("initiate", *self.initiation())
        out.print(
            f"{initiated['rows_in']} rows: {initiated['started']} started, {initiated['repeated']} repeated, "
            f"{initiated['quarantined']} quarantined"
        )
        for row in initiated["examples"]:
            out.print(f"  [dim]record {row['record']}: {row['reason']}[/]", soft_wrap=True)
        killed = None
        if initiated["started"]:
            heading(2, "worker", "two processes, one of them killed under way and replaced")
            killed = self.work()
        if self.has_work_left():
            heading(3, "process", "Spark's executors do the rest, in the very same transaction")
            processed = self.ask("process", APP, "--log-level", "CRITICAL")
            out.print(
                f"drained: {sum(processed['committed'].values())} messages by {len(processed['committed'])} processes"
            )
        elif not initiated["started"]:
            out.print("\n[bold]nothing new[/]: every good row of this file was started before, so nothing starts now")
        heading(4, "audit", "Spark proves it from the journal")
        audit = self.ask("audit")
        out.print(f"{audit['waypoints']} waypoints read: lost {audit['lost_count']}, doubled {audit['doubled_count']}")
        heading(5, "the outcome", "by the audit, and by the example's own ledger, which has no unique key")
        is_right = show(out, Outcome(initiated, audit, books.read_books(self.database, self.orders), killed))
        self.show_next(time.monotonic() - begin)
        return is_right

    def initiation(self) -> list[str]:
        arguments = ["--to", "payments.pay", "--reply-to", "payments.receipts", "--id", "order_id"]
        arguments += ["--flow-prefix", books.FLOW_PREFIX, "--format", "csv", "--separator", ";", "--app", APP]
        return [str(self.orders), *arguments]

    def ask(self, command: str, *arguments: str) -> Any:
        """Run ``stagepost command … --json``; its progress is shown, its answer returned."""
        done = subprocess.run(self.typed(command, *arguments, "--json"), stdout=subprocess.PIPE, check=False)
        # An audit that found something exits with 1, and has still answered.
        if done.returncode not in (0, 1) or not done.stdout:
            raise DemoFailed(f"stagepost {command} ended with exit code {done.returncode}")
        return json.loads(done.stdout)

    def work(self) -> int:
        """Start workers, kill one of their processes, and stop them when half of what is left has ended; returns who
        was killed."""
        command = self.typed("worker", APP, "--processes", "2", "--threads", "2")
        before, left = books.finished(self.database), books.unfinished(self.database)
        killed, ended = None, 0
        with self.log.open("a") as log, subprocess.Popen(command, stdout=log, stderr=log) as worker, bar() as shown:
            task = shown.add_task("flows ended", total=left)
            moved_at = time.monotonic()
            try:
                while killed is None or ended < HAND_OVER_AT * left:
                    last, ended = ended, books.finished(self.database) - before
                    shown.update(task, completed=ended)
                    moved_at = time.monotonic() if ended > last else moved_at
                    if worker.poll() is not None or time.monotonic() - moved_at > PATIENCE_SECONDS:
                        what = "stand still" if worker.poll() is None else f"ended by exit code {worker.returncode}"
                        raise DemoFailed(f"the workers {what}: see {self.log}")
                    if killed is None and ended >= KILL_AT * left and (killed := self.kill_one()) is not None:
                        shown.console.print(
                            f"kill -9 {killed}  after {ended} flows: a worker process, gone in mid-work"
                        )
                    time.sleep(LOOK_SECONDS)
            finally:
                worker.terminate()
        out.print(
            f"{ended} of {left} flows ended; workers told to stop (SIGTERM), and did: exit code {worker.returncode}"
        )
        return killed

    def has_work_left(self) -> bool:
        return not self.status()["drained"]

    def status(self) -> Any:
        done = subprocess.run(self.command("status", "--json"), stdout=subprocess.PIPE, check=True)
        return json.loads(done.stdout)

    def kill_one(self) -> int | None:
        """The worker process that runs most; None where an order was quicker, and there is nobody left to kill."""
        workers = [each for each in self.status()["workers"] if each["node"].startswith("worker@")]
        if not workers:
            return None
        victim = int(max(workers, key=lambda each: each["running"])["process"])
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            return None
        return victim

    def command(self, name: str, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "stagepost", name, *arguments, "--database", self.database.url]

    def typed(self, name: str, *arguments: str) -> list[str]:
        """The command, shown as one would type it."""
        out.print(f"[bold green]$[/] stagepost {name} {shlex.join(arguments)}", soft_wrap=True)
        return self.command(name, *arguments)

    def show_next(self, seconds: float) -> None:
        out.print(f"\ntook {seconds:.0f} s. Where to look next, {self.address}:", soft_wrap=True)
        for command, what in NEXT.items():
            out.print(f"  {command:<52} [dim]{what}[/]", soft_wrap=True)
        out.print(f"  {self.log!s:<52} [dim]what the workers said[/]")
        out.print(f"  {self.again:<52} [dim]again, on the same store: nothing starts twice[/]", soft_wrap=True)


NEXT: Mapping[str, str] = {
    ".venv/bin/stagepost audit": "the whole report",
    ".venv/bin/stagepost dead list": "the messages that were set aside, and why",
    ".venv/bin/stagepost dead show 1": "one of them, with its stack and its message",
    ".venv/bin/stagepost status": "waiting messages, and workers",
}


def heading(number: int, title: str, what: str) -> None:
    out.print(f"\n[bold]{number}  {title}[/]  {what}")


def bar() -> Progress:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=out, transient=True)


@contextmanager
def database_of(given: argparse.Namespace, name: str) -> Iterator[tuple[str, str]]:
    """Its URL, and how one gets at it when the demo has ended."""
    if given.database:
        # It may hold a password.
        yield given.database, "with [bold]export STAGEPOST_DATABASE=…[/], the URL that you gave"
    elif given.store == "sqlite":
        url = f"sqlite:///{given.folder / name}.db"
        yield url, f"with [bold]export STAGEPOST_DATABASE={url}[/]"
    else:
        from examples.payments.server import own_database  # noqa: PLC0415 - its driver is an extra

        with own_database(given.folder, name) as url:
            yield (
                url,
                "with what [bold].venv/bin/python -m examples.payments.server[/] says, which runs the server again",
            )


def again(given: argparse.Namespace) -> str:
    said = {
        "ORDERS": given.orders,
        "SEED": None if given.seed == SEED else given.seed,
        "STORE": None if given.store == "sqlite" else given.store,
        "DATABASE": "…" if given.database else None,
    }
    return " ".join(["make demo", *(f"{name}={value}" for name, value in said.items() if value is not None)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=Path, help="a file in the format of the real one; default: one is written")
    parser.add_argument("--seed", type=int, default=SEED, help="the seed of the file that is written")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the store is kept")
    parser.add_argument("--store", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--database", help="the URL of a database of yours, in place of one of the demo's")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    orders = given.orders
    if orders is None:
        orders = given.folder / f"orders-{given.seed}.csv"
        write_orders(orders, given.seed)
    elif not orders.is_file():
        print(f"{orders} is not a file; say ORDERS=path of a file of orders", file=sys.stderr)
        return 2
    try:
        with database_of(given, orders.stem) as (url, address):
            demo = Demo(orders, Database(url), given.folder / f"{orders.stem}.log", address, again(given))
            return 0 if demo.run() else 1
    except (DemoFailed, CannotBeHadError) as error:
        out.print(f"[red]the demo failed[/]: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
