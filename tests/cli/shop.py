"""A small app, and what it left in its store, for the commands to look at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from stagepost import App, Context, Redelivery
from stagepost.app.app import engine_of
from stagepost.cli import main
from stagepost.flow.errors import WorkerDied
from stagepost.ports.dead_letters import KeptLetter, Selection
from stagepost.testing import Harness
from stagepost.transaction.outcome import Buried
from stagepost.transaction.settling import dead_letter
from tests.places import bare_environment
from tests.processes import ROOT
from tests.waiting import PATIENCE_SECONDS

SCRIPT = Path(sys.executable).with_name("stagepost")


@dataclass
class Order:
    number: int
    fault: str = ""


@dataclass
class Paid:
    number: int
    fault: str = ""


def pay(ctx: Context, order: Order) -> Paid:
    if order.fault == "refuse":
        ctx.refuse("the account is [closed]")
    if order.fault == "fail":
        raise ValueError(f"order {order.number} cannot be paid")
    return Paid(order.number, order.fault)


def ship(ctx: Context, paid: Paid) -> None:
    if paid.fault == "fail-late":
        raise LookupError("no address") from KeyError("street")


class Shop:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"
        self.app = App("shop", database=self.url, redelivery=Redelivery.none())
        self.pay = self.app.endpoint("shop.pay")(pay)
        self.ship = self.app.endpoint("shop.ship")(ship)
        self.harness = Harness(self.app)

    def order(self, flow_id: str, fault: str = "", *, message_id: str | None = None, delay: float = 0) -> str:
        started = self.app.start(
            self.pay,
            Order(1, fault),
            flow_id=flow_id,
            message_id=message_id,
            reply_to=self.ship,
            delay=delay,
        )
        return started.message_id

    def run(self) -> None:
        self.harness.drain()

    def died(self, flow_id: str) -> None:
        """A dead letter that killed its process too often."""
        self.order(flow_id)
        session, claimer = self.harness.access.session, self.harness.access.claimer
        (claim,) = claimer.claim(["shop.pay"], 1, "shop/1", "node")
        buried = Buried("worker-died", WorkerDied("the process that ran it alone ended by SIGKILL"))
        stage = engine_of(self.app).stages()["shop.pay"]
        session.begin()
        session.queue.take(claim)
        session.dead_letters.bury(
            dead_letter(stage, claim._replace(deaths=3), buried, engine_of(self.app).clock.now(), "supervisor@here:1")
        )
        session.commit()

    def letters(self) -> list[KeptLetter]:
        return list(self.harness.access.session.dead_letters.select(Selection("all")))

    def close(self) -> None:
        self.harness.close()


def command(*arguments: str) -> Result:
    """A command that only looks or writes a little, run in this process."""
    return CliRunner().invoke(main, list(arguments), catch_exceptions=False)


def told_in_one_paragraph(result: Result, code: int) -> str:
    """What a command that could not do what it was told says: to people, on standard error, in one paragraph."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    return result.stderr


def started(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command as users start it, in a folder of theirs, to its end."""
    variables = bare_environment()
    return subprocess.run(
        [str(SCRIPT), *arguments],
        cwd=folder,
        env=variables | {"PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(ROOT)])} | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        stdin=subprocess.DEVNULL,
    )


def parsed(result: Result) -> Any:
    assert result.stderr == "", result.stderr
    return json.loads(result.stdout)
