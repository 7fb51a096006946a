"""Campaigns of faults over two services and a broker, small: a sample, a broker that dies at each step, and controls.

A harness that finds nothing wrong proves little until it is seen to find what is. Each control breaks one guarantee of
the edge, and the campaign's own books find it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.campaigns import Tell
from tests.servers.activemq import ActiveMQServer, running_activemq
from tests.servers.plugin import had_broker
from tests.soak.brokers.books import Books, store_at
from tests.soak.brokers.campaign import Plan, Report, Soak
from tests.soak.brokers.injector import Rates
from tests.soak.brokers.moments import fill_the_broker, hold_an_id, kill_the_broker_at
from tests.soak.brokers.sabotage import SABOTAGES
from tests.soak.brokers.services import DEATHS
from tests.soak.brokers.targets import ActiveMQTarget, BrokerTarget, RabbitTarget
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.more

Run = Callable[[Plan], Report]
UNSPARED = ("payments", "ledger")
# The steps of the modes that consume from the broker, and those of receiver and dispatcher.
AT_THE_BROKER = [each for each in DEATHS if not each.startswith("single")]


# One control stands for the others, which ``make soak`` runs.
SAMPLED = {"direct-run-without-its-key"}
# A broker that a few megabytes fill. It removes old files of its journal after ten rounds of cleaning up, because the
# marks of the addresses stay in the first file, and acknowledgements hold the next ones.
SMALL: dict[str, Any] = {"store_bytes": 16_000_000, "journal_bytes": 4_000_000, "cleanup_milliseconds": 300}


@pytest.fixture
def small_activemq() -> Iterator[ActiveMQServer]:
    with had_broker("activemq", lambda folder: running_activemq(folder, **SMALL)) as server:
        yield server


@contextmanager
def target_of(name: str, request: pytest.FixtureRequest, folder: Path) -> Iterator[BrokerTarget]:
    server = request.getfixturevalue(name)
    target: BrokerTarget = RabbitTarget(server) if name == "rabbitmq" else ActiveMQTarget(server, folder)
    try:
        yield target
    finally:
        target.close()


@pytest.fixture
def run(
    request: pytest.FixtureRequest, broker_name: str, new_postgres: Callable[[], str], tmp_path: Path
) -> Iterator[Run]:
    logs = tmp_path / "logs"
    logs.mkdir()

    def run_plan(plan: Plan) -> Report:
        books = Books(store_at("payments", new_postgres()), store_at("ledger", tmp_path / "ledger.db"))
        report = Soak(plan, target, books, logs).run()
        print("\n".join(report.lines()))  # noqa: T201 - pytest shows it where the test failed
        for name, log in report.logs.items():
            print(f"--- {name}\n{log[-6000:]}")  # noqa: T201
        return report

    with target_of(broker_name, request, tmp_path) as target:
        yield run_plan


@pytest.mark.parametrize("broker_name", ["rabbitmq", pytest.param("activemq", marks=pytest.mark.soak)])
def test_a_short_campaign_loses_and_doubles_nothing(run: Run, tell: Tell) -> None:
    rates = Rates(step_kills=1.0, kills=0.3, supervisor_kills=0.1, spoilings=0.5, suspensions=0.1, broker_kills=0.2)
    report = run(Plan(seconds=8, rates=rates, copied=0.1, raises=0.03, seed=3))
    tell(report.name, report.problems)
    assert report.is_clean
    assert report.faults["step_kills"]
    assert report.faults["copies"]
    assert report.faults["raises"]


@pytest.mark.parametrize(
    ("broker_name", "steps"),
    [
        pytest.param("activemq", ["best_effort-committed", "transport-committing"], id="activemq"),
        pytest.param("activemq", AT_THE_BROKER, marks=pytest.mark.soak, id="activemq-all"),
        pytest.param("rabbitmq", AT_THE_BROKER, marks=pytest.mark.soak, id="rabbitmq-all"),
    ],
)
def test_a_broker_that_is_killed_at_a_step_loses_and_doubles_nothing(run: Run, steps: list[str]) -> None:
    report = run(Plan(seconds=2, meanwhile=kill_the_broker_at(steps), commands=UNSPARED))
    assert report.is_clean


# The sabotage, its broker, the campaign in which it shows, and the kind of problem that it causes.
CONTROLS: dict[str, tuple[str, Plan, str]] = {
    "settle-before-commit": (
        "rabbitmq",
        Plan(seconds=8, rates=Rates(step_kills=2.0), steps=("edge-storing",), commands=UNSPARED),
        "lost",
    ),
    "nothing-accepted": ("rabbitmq", Plan(seconds=5, copied=0.3, commands=UNSPARED), "doubled"),
    "scope-of-an-initiation": ("rabbitmq", Plan(seconds=5, commands=UNSPARED), "lost"),
    "cumulative-acknowledgement": (
        "rabbitmq",
        Plan(seconds=8, meanwhile=hold_an_id, commands=UNSPARED),
        "lost",
    ),
    "ungated-commit": ("small_activemq", Plan(seconds=10, meanwhile=fill_the_broker, commands=UNSPARED), "vanished"),
    "no-incarnation": (
        "rabbitmq",
        Plan(seconds=8, bounds_copies=True, commands=(*UNSPARED, "payments-2")),
        "copies",
    ),
    "direct-run-without-its-key": (
        "rabbitmq",
        Plan(seconds=5, rates=Rates(step_kills=3.0), steps=("best_effort-committed",), commands=UNSPARED),
        "doubled",
    ),
}


@pytest.mark.parametrize(
    ("name", "broker_name"),
    [
        pytest.param(name, broker, marks=[] if name in SAMPLED else pytest.mark.soak)
        for name, (broker, _, _) in CONTROLS.items()
    ],
)
def test_a_campaign_finds_what_is_broken_on_purpose(name: str, run: Run) -> None:
    _, plan, kind = CONTROLS[name]
    # A sound campaign is over a second after its end. A sabotaged one may never be.
    report = run(replace(plan, sabotage=name, standstill_seconds=8, drain_seconds=15))
    assert kind in {each.partition(":")[0] for each in report.problems}


@pytest.mark.soak
@pytest.mark.parametrize(("name", "broker_name"), [(name, broker) for name, (broker, _, _) in CONTROLS.items()])
def test_the_campaign_of_a_control_is_clean_where_nothing_is_broken(name: str, run: Run) -> None:
    _, plan, _ = CONTROLS[name]
    # A broker that was full has room again only after it has cleaned up, and is asked once a minute.
    assert run(replace(plan, standstill_seconds=PATIENCE_SECONDS)).is_clean


def test_every_sabotage_of_the_edge_has_a_control() -> None:
    assert CONTROLS.keys() == SABOTAGES.keys()
