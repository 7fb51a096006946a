"""The demo over a broker, as a newcomer plays it: two services, a killed broker, a killed worker."""

from __future__ import annotations

import re
import runpy
import sys
from typing import NoReturn

import pytest

from examples.payments import demo, two_services
from examples.payments.commands import DemoFailed
from tests.demo.conftest import GOOD, Stage


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
