"""The demo over a broker, as a newcomer plays it: two services, a killed broker, a killed worker."""

from __future__ import annotations

import re

import pytest

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
