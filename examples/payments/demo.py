"""Execute payment orders from a file, and prove that each was executed exactly once.

``make demo`` runs it. The demo runs the commands that a user would run, and kills a working process. It checks the
outcome twice: Stagepost's audit reads the journal, and the example's own books read its ledger.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.payments import books
from examples.payments.commands import (
    LOOK_SECONDS,
    PATIENCE_SECONDS,
    DemoFailed,
    bar,
    heading,
    kill_busiest,
    out,
    result_of,
    stagepost,
)
from examples.payments.consumer import Consumer
from examples.payments.database import Database
from examples.payments.orders import write_orders
from examples.payments.outcome import Outcome, claims_of, show
from stagepost.testing.postgres import ServerUnavailableError

FOLDER = Path(".demo")
SEED = 20261120
APP = "examples.payments.app:app"
# The shares of ended flows at which a worker is killed, and at which Spark takes over.
KILL_AT = 0.2
HAND_OVER_AT = 0.5


@dataclass(frozen=True, slots=True)
class Demo:
    """One run of the demo.

    ``log`` is the file of the workers' output, and ``taken`` the database of the consumer outside. ``address`` says how
    to reach the database afterwards. ``again`` is the command that repeats the demo on the same store.
    """

    orders: Path
    database: Database
    log: Path
    taken: Path
    address: str
    again: str

    def run(self) -> bool:
        """Run the demo. Return whether all claims hold."""
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
        with consumer(self.taken):
            if initiated["started"]:
                heading(2, "worker", "two processes; one of them is killed at work, and replaced")
                out.print("A flaky HTTP consumer runs beside them, and gets each receipt from the last stage.")
                killed = self.work()
            if self.has_work_left():
                self.process()
            elif not initiated["started"]:
                out.print(
                    "\n[bold]nothing new[/]: every good row of this file was started before, so nothing starts now"
                )
        heading(4, "audit", "Spark proves from the journal that no message is lost or doubled")
        audit = self.ask("audit")
        out.print(f"{audit['waypoints']} waypoints read: lost {audit['lost_count']}, doubled {audit['doubled_count']}")
        heading(5, "the outcome", "the audit, and the example's own ledger, which has no unique key")
        confirmations = books.read_confirmations(self.taken)
        outcome = Outcome(initiated, audit, books.read_books(self.database, self.orders), confirmations)
        is_right = show(out, list(claims_of(outcome)), audit["work"], killed)
        self.show_next(time.monotonic() - begin)
        return is_right

    def process(self) -> None:
        heading(3, "process", "Spark's executors run the remaining messages in the same kind of transaction")
        processed = self.ask("process", APP, "--log-level", "CRITICAL")
        out.print(
            f"drained: {sum(processed['committed'].values())} messages by {len(processed['committed'])} processes"
        )

    def initiation(self) -> list[str]:
        arguments = ["--to", "payments.pay", "--reply-to", "payments.receipts", "--id", "order_id"]
        arguments += ["--flow-prefix", books.FLOW_PREFIX, "--format", "csv", "--separator", ";", "--app", APP]
        return [str(self.orders), *arguments]

    def ask(self, command: str, *arguments: str) -> Any:
        """Run ``stagepost command … --json``, which shows its progress. Return its result."""
        return result_of(self.typed(command, *arguments, "--json"))

    def work(self) -> int:
        """Start workers, kill one of their processes, and stop them when half of the open flows have ended.

        Return the id of the killed process.
        """
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
                        state = (
                            "make no progress" if worker.poll() is None else f"ended with exit code {worker.returncode}"
                        )
                        raise DemoFailed(f"the workers {state}: see {self.log}")
                    if (
                        killed is None
                        and ended >= KILL_AT * left
                        and (killed := kill_busiest(self.status()["workers"])) is not None
                    ):
                        shown.console.print(
                            f"kill -9 {killed}  after {ended} flows: a worker process dies while it works"
                        )
                    time.sleep(LOOK_SECONDS)
            finally:
                worker.terminate()
        out.print(f"{ended} of {left} flows ended; SIGTERM stopped the workers: exit code {worker.returncode}")
        return killed

    def has_work_left(self) -> bool:
        return not self.status()["drained"]

    def status(self) -> Any:
        return result_of(self.command("status", "--json"))

    def command(self, name: str, *arguments: str) -> list[str]:
        return stagepost(name, *arguments, "--database", self.database.url)

    def typed(self, name: str, *arguments: str) -> list[str]:
        """Print the command as a user would type it, and return it."""
        out.print(f"[bold green]$[/] stagepost {name} {shlex.join(arguments)}", soft_wrap=True)
        return self.command(name, *arguments)

    def show_next(self, seconds: float) -> None:
        out.print(f"\ntook {seconds:.0f} s. Where to look next, {self.address}:", soft_wrap=True)
        for command, what in NEXT.items():
            out.print(f"  {command:<52} [dim]{what}[/]", soft_wrap=True)
        out.print(f"  {self.log!s:<52} [dim]the output of the workers[/]")
        out.print(
            f"  {self.again:<52} [dim]repeats the demo on the same store: nothing starts twice[/]", soft_wrap=True
        )


NEXT: Mapping[str, str] = {
    ".venv/bin/stagepost audit": "the whole report",
    ".venv/bin/stagepost dead list": "the messages that were set aside, and the reasons",
    ".venv/bin/stagepost dead show 1": "one of them, with its stack trace and its message",
    ".venv/bin/stagepost status": "waiting messages, and workers",
}


@contextmanager
def consumer(file: Path) -> Iterator[None]:
    """Run the consumer outside, and tell the app of the commands that start meanwhile where it is."""
    with Consumer(file) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        os.environ["PAYMENTS_CONSUMER"] = f"http://127.0.0.1:{server.server_port}/receipts"
        try:
            yield
        finally:
            del os.environ["PAYMENTS_CONSUMER"]
            server.shutdown()


@contextmanager
def database_of(given: argparse.Namespace, name: str) -> Iterator[tuple[str, str]]:
    """Yield the URL of the database, and a text that says how to reach it after the demo."""
    if given.database:
        # The URL may hold a password, so it is not printed.
        yield given.database, "with [bold]export STAGEPOST_DATABASE=…[/], the URL that you gave"
    elif given.store == "sqlite":
        url = f"sqlite:///{given.folder / name}.db"
        yield url, f"with [bold]export STAGEPOST_DATABASE={url}[/]"
    else:
        from examples.payments.server import own_databases  # noqa: PLC0415 - its driver is an extra

        with own_databases(given.folder, name) as (url,):
            yield (
                url,
                "with the output of [bold].venv/bin/python -m examples.payments.server[/], which runs the server again",
            )


def command_to_repeat(given: argparse.Namespace) -> str:
    variables = {
        "ORDERS": given.orders,
        "SEED": None if given.seed == SEED else given.seed,
        "STORE": None if given.store == "sqlite" else given.store,
        "DATABASE": "…" if given.database else None,
    }
    return " ".join(["make demo", *(f"{name}={value}" for name, value in variables.items() if value is not None)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=Path, help="a file of orders; default: the demo writes one")
    parser.add_argument("--seed", type=int, default=SEED, help="the seed of the file that the demo writes")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="the folder of the store")
    parser.add_argument("--store", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--broker", choices=["rabbitmq", "activemq"], help="run two services that talk over a broker")
    parser.add_argument("--database", help="the URL of an existing database; default: the demo makes one")
    given = parser.parse_args()
    if given.broker and given.database:
        parser.error("the two services need a database each, so BROKER takes no DATABASE; it takes STORE=postgres")
    given.folder.mkdir(parents=True, exist_ok=True)
    orders = given.orders
    if orders is None:
        orders = given.folder / f"orders-{given.seed}.csv"
        write_orders(orders, given.seed)
    elif not orders.is_file():
        print(f"{orders} is not a file; set ORDERS to the path of a file of orders", file=sys.stderr)
        return 2
    try:
        if given.broker is not None:
            from examples.payments.two_services import play  # noqa: PLC0415 - the brokers need more packages

            return 0 if play(given.broker, given.store, orders, given.folder) else 1
        with database_of(given, orders.stem) as (url, address):
            demo = Demo(
                orders,
                Database(url),
                given.folder / f"{orders.stem}.log",
                given.folder / f"{orders.stem}.consumer.db",
                address,
                command_to_repeat(given),
            )
            return 0 if demo.run() else 1
    except (DemoFailed, ServerUnavailableError) as error:
        out.print(f"[red]the demo failed[/]: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
