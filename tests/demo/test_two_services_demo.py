"""The demo over a broker, as a newcomer plays it: two services, a killed broker, a killed worker."""

from __future__ import annotations

import csv
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest

from examples.payments import books, demo, orders, two_services
from examples.payments.app import Order, Receipt
from examples.payments.commands import DemoFailed
from examples.payments.database import Database
from stagepost import App, Target
from tests.demo.conftest import GOOD, SEED, Stage
from tests.servers.rabbitmq import RabbitServer


@pytest.mark.soak
@pytest.mark.parametrize("broker", ["activemq", "rabbitmq"])
def test_two_services_lose_and_double_nothing_when_their_broker_is_killed(stage: Stage, broker: str) -> None:
    stage.options = ["--broker", broker]
    run = stage.play()
    assert run.code == 0, run.out
    assert run.claims
    assert all(run.claims.values())
    assert re.search(r"kill -9 \d+  after \d+ flows: the broker dies", run.out)
    assert re.search(r"kill -9 \d+  after \d+ flows: a worker of clearing dies", run.out)
    assert f"{GOOD + 9} of {GOOD + 9} flows ended" in run.out


COUNT = 150


@pytest.mark.more
def test_a_sample_of_the_demo_on_postgresql_survives_its_broker(
    rabbitmq: RabbitServer, new_postgres: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's commands are left out: another test runs the whole demo, with ``make soak``.

    The broker dies at the first look, while the services start, because the last flow may have ended by the second.
    """
    monkeypatch.setattr(two_services, "KILL_BROKER_AT", 0)
    monkeypatch.setattr(orders, "GOOD", COUNT)
    monkeypatch.setattr(two_services, "AWAY_SECONDS", 0.5)
    broker = rabbitmq.url("", rabbitmq.add_host())
    monkeypatch.setattr(rabbitmq, "url", lambda: broker)
    file = tmp_path / "orders.csv"
    orders.write_good_orders(file, SEED)
    databases = {each: Database(new_postgres()) for each in two_services.APPS}
    payments, clearing = databases["payments"], databases["clearing"]
    payments.prepare()
    demo = two_services.TwoServices("rabbitmq", rabbitmq, file, databases, tmp_path / "workers.log")
    for each in databases:
        subprocess.run(demo.typed(each, "migrate"), check=True, env=demo.environment(each))
    with closing(App("payments", database=payments.url)) as app, file.open(encoding="utf-8", newline="") as rows:
        pay = app.remote("payments.pay", Order, Receipt)
        receipts: Target[Receipt, Any] = app.remote("payments.receipts", Receipt)
        for row in csv.DictReader(rows, delimiter=";"):
            order = msgspec.convert(row, Order, strict=False)
            app.start(pay, order, flow_id=f"{books.FLOW_PREFIX}:{order.order_id}", reply_to=receipts)
    first = rabbitmq.pid
    demo.work()
    assert rabbitmq.pid != first, demo.log.read_text()
    assert (found := books.read_books(payments, file, clearing)).is_right, demo.log.read_text()
    assert (found.started, found.executed) == (COUNT, COUNT)
    assert demo.count("payments", two_services.SENT.format("DISTINCT message_id")) == COUNT
    assert demo.count("clearing", two_services.ARRIVED) == COUNT
    assert [demo.count(each, two_services.WAITING) for each in databases] == [0, 0]


def test_a_failure_over_a_broker_is_told_in_one_line(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> NoReturn:
        raise DemoFailed("the workers make no progress")

    monkeypatch.setattr(two_services, "play", fail)
    options = ["--folder", str(stage.folder), "--orders", str(stage.orders), "--broker", "rabbitmq"]
    monkeypatch.setattr(sys, "argv", ["demo", *options])
    # The demo runs as the module __main__, so its own names are not those that another module imports from it.
    monkeypatch.delitem(sys.modules, demo.__name__)
    with pytest.raises(SystemExit, match="1"):
        runpy.run_module(demo.__name__, run_name="__main__")
    assert "the demo failed: the workers make no progress" in capsys.readouterr().out


def test_a_database_is_refused_over_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["demo", "--broker", "rabbitmq", "--database", "sqlite:///one.db"])
    with pytest.raises(SystemExit, match="2"):
        demo.main()
