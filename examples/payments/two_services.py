"""The payments example as two services with a store each, which talk over a broker that is killed under way.

``make demo BROKER=rabbitmq`` and ``BROKER=activemq`` run it. The handlers are those of the other demo; settings alone
make two services of them. The broker is the one of the machine's packages, on a private port, in the demo's folder.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
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
from examples.payments.database import Database
from examples.payments.outcome import Claim, Outcome, claims_of, show
from tests.servers.activemq import ActiveMQServer, running_activemq
from tests.servers.rabbitmq import RabbitServer, running_rabbitmq

# The shares of ended flows at which the broker and a worker of the clearing house are killed.
KILL_BROKER_AT = 0.2
KILL_WORKER_AT = 0.6
# So long the broker is away.
AWAY_SECONDS = 5.0

PAYMENTS, CLEARING = "payments", "clearing"
APPS = {PAYMENTS: "examples.payments.app:app", CLEARING: "examples.payments.clearing:app"}
SENT = "SELECT count({}) FROM stagepost_journal WHERE waypoint = 'confirmed' AND stage = '@out/clearing.transfer'"
ARRIVED = "SELECT count(*) FROM stagepost_journal WHERE waypoint = 'arrived' AND stage = 'clearing.transfer'"
WAITING = "SELECT count(*) FROM stagepost_ready WHERE stage LIKE '@out/%'"


def play(broker: str, store: str, orders: Path, folder: Path) -> bool:
    """Run the demo. Return whether all claims hold."""
    place = folder / f"{orders.stem}-{broker}-{os.getpid()}"
    place.mkdir(parents=True)
    with ExitStack() as stack:
        databases = stack.enter_context(_databases(store, folder, place))
        server: RabbitServer | ActiveMQServer
        if broker == "rabbitmq":
            server = stack.enter_context(running_rabbitmq(place.absolute() / broker))
        else:
            server = stack.enter_context(running_activemq(place.absolute() / broker))
        where = f"{place}/*.db" if store == "sqlite" else "run .venv/bin/python -m examples.payments.server"
        return TwoServices(broker, server, orders, databases, place / "workers.log", where).run()


@contextmanager
def _databases(store: str, folder: Path, place: Path) -> Iterator[Mapping[str, Database]]:
    if store == "sqlite":
        yield {each: Database(f"sqlite:///{place / each}.db") for each in APPS}
        return
    from examples.payments.server import own_databases  # noqa: PLC0415 - its driver is an extra

    with own_databases(folder, *(f"{place.name}-{each}" for each in APPS)) as urls:
        yield {each: Database(url) for each, url in zip(APPS, urls, strict=True)}


@dataclass(frozen=True, slots=True)
class TwoServices:
    """One run. ``log`` is the file of the workers' output. ``where`` says where the databases are afterwards."""

    broker: str
    server: RabbitServer | ActiveMQServer
    orders: Path
    databases: Mapping[str, Database]
    log: Path
    where: str = ""

    def run(self) -> bool:
        begin = time.monotonic()
        payments, clearing = self.databases[PAYMENTS], self.databases[CLEARING]
        payments.prepare()
        out.print(
            "Two services with a database each. [bold]payments[/] reserves the money of an order and asks "
            "[bold]clearing[/] to transfer it.\n"
            f"clearing answers, and payments settles the order. Both talk over {self.broker} (pid {self.server.pid}) "
            "alone.\nThe demo kills that broker and a worker, and then counts the money."
        )
        heading(1, "initiate", f"a flow for each row of {self.orders}, in the database of payments")
        initiated = self.ask(PAYMENTS, "initiate", *self.initiation())
        out.print(
            f"{initiated['rows_in']} rows: {initiated['started']} started, {initiated['repeated']} repeated, "
            f"{initiated['quarantined']} quarantined"
        )
        subprocess.run(self.typed(CLEARING, "migrate"), check=True, env=self.environment(CLEARING))
        heading(2, "worker", "both services work; the broker is killed, and comes back")
        killed = self.work()
        heading(3, "audit", "Spark reads both journals")
        audits = {each: self.ask(each, "audit") for each in APPS}
        heading(4, "the outcome", "the audits, and the ledger of payments, which has no unique key")
        outcome = Outcome(initiated, audits[PAYMENTS], books.read_books(payments, self.orders, clearing), None)
        work = [row for each in audits.values() for row in each["work"]]
        is_right = show(out, [*self.claims(outcome, audits)], work, killed)
        out.print(f"\ntook {time.monotonic() - begin:.0f} s. The output of the workers: {self.log}", soft_wrap=True)
        out.print(f"The databases, for stagepost trace, dead list and audit: {self.where}", soft_wrap=True)
        return is_right

    def initiation(self) -> list[str]:
        arguments = ["--to", "payments.pay", "--reply-to", "payments.receipts", "--id", "order_id"]
        arguments += ["--flow-prefix", books.FLOW_PREFIX, "--format", "csv", "--separator", ";"]
        return [str(self.orders), *arguments, "--app", APPS[PAYMENTS]]

    def work(self) -> int | None:
        """Run both services until all flows have ended. Return the id of the killed worker process."""
        total = books.unfinished(self.databases[PAYMENTS])
        killed: int | None = None
        is_broker_killed = False
        with self.log.open("a") as log, ExitStack() as running, bar() as shown:
            workers = [running.enter_context(self.worker(each, log.fileno())) for each in APPS]
            task = shown.add_task("flows ended", total=total)
            ended, moved_at = -1, time.monotonic()
            while (now := self.ended()) < total:
                moved_at = time.monotonic() if now > ended else moved_at
                ended = now
                shown.update(task, completed=ended)
                if any(each.poll() is not None for each in workers) or time.monotonic() - moved_at > PATIENCE_SECONDS:
                    raise DemoFailed(f"the workers ended or make no progress: see {self.log}")
                if not is_broker_killed and ended >= KILL_BROKER_AT * total:
                    is_broker_killed = True
                    self.kill_broker(ended)
                if killed is None and ended >= KILL_WORKER_AT * total and (killed := self.kill_worker()) is not None:
                    out.print(f"kill -9 {killed}  after {ended} flows: a worker of clearing dies while it works")
                time.sleep(LOOK_SECONDS)
        out.print(f"{self.ended()} of {total} flows ended; SIGTERM stopped both services")
        return killed

    @contextmanager
    def worker(self, service: str, log: int) -> Iterator[subprocess.Popen[bytes]]:
        command = self.typed(service, "worker", APPS[service], "--processes", "1", "--threads", "2")
        process = subprocess.Popen(command, stdout=log, stderr=log, env=self.environment(service))
        try:
            yield process
        finally:
            process.terminate()
            process.wait()

    def kill_broker(self, ended: int) -> None:
        pid = self.server.pid
        self.server.kill()
        out.print(f"kill -9 {pid}  after {ended} flows: the broker dies, with the messages that it holds")
        time.sleep(AWAY_SECONDS)
        waiting = {each: self.count(each, WAITING) for each in APPS}
        out.print(
            f"  for {AWAY_SECONDS:.0f} s nothing travels. The messages wait in the databases: {waiting[PAYMENTS]} in "
            f"payments, {waiting[CLEARING]} in clearing"
        )
        self.server.start()
        out.print(f"  the broker is back, with its data (pid {self.server.pid})")

    def kill_worker(self) -> int | None:
        status = result_of(stagepost("status", "--json"), self.environment(CLEARING))
        return kill_busiest(status["workers"])

    def ended(self) -> int:
        return books.finished(self.databases[PAYMENTS], self.databases[CLEARING])

    def claims(self, outcome: Outcome, audits: Mapping[str, Any]) -> Iterator[Claim]:
        of_payments = {each.what: each for each in claims_of(outcome)}
        # A flow that died in clearing has left payments for good, so its audit alone cannot tell.
        yield from [each for what, each in of_payments.items() if not what.startswith("flows by the audit")]
        lost, doubled = ([audits[CLEARING][f"{each}_count"]] for each in ("lost", "doubled"))
        yield Claim("lost and doubled in clearing, by its audit", f"{lost[0]} and {doubled[0]}", lost == doubled == [0])
        sent, arrived = self.count(PAYMENTS, SENT.format("DISTINCT message_id")), self.count(CLEARING, ARRIVED)
        again = self.count(PAYMENTS, SENT.format("*")) - sent
        yield Claim(
            "requests that left payments = requests that clearing took in",
            f"{sent} = {arrived}{f' ({again} confirmed twice)' if again else ''}",
            sent == arrived,
        )
        left = sum(self.count(each, WAITING) for each in APPS)
        yield Claim("messages that still wait for the broker", str(left), left == 0)

    def count(self, service: str, query: str) -> int:
        with self.databases[service].reading() as read:
            return read.number(query)

    def ask(self, service: str, command: str, *arguments: str) -> Any:
        """Run ``stagepost command … --json`` for one service. Return its result."""
        return result_of([*self.typed(service, command, *arguments), "--json"], self.environment(service))

    def environment(self, service: str) -> dict[str, str]:
        """Return the settings that make a service of the app. The handlers know nothing of them."""
        return os.environ | {
            "STAGEPOST_DATABASE": self.databases[service].url,
            "STAGEPOST_BROKER": self.server.url(),
            "PAYMENTS_CLEARING": "remote",
        }

    def typed(self, service: str, name: str, *arguments: str) -> list[str]:
        """Print the command as a user would type it, and return it."""
        out.print(f"[dim]{service:<8}[/] [bold green]$[/] stagepost {shlex.join([name, *arguments])}", soft_wrap=True)
        return stagepost(name, *arguments)
