"""A route whose consumer is away, or leads nowhere, pauses: other messages are its probes, and none is lost."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from stagepost import App, Redelivery
from stagepost.gateway.out import Posted
from stagepost.testing import Harness
from stagepost.transaction.outcome import Completed
from tests.deliveries.conftest import BODY, Declare, NewConsumer, NewHarness
from tests.deliveries.consumer import Consumer, answer, reset

pytestmark = pytest.mark.longer_on_postgres

ONCE = Redelivery.none()


def paused(worker: Harness) -> list[str]:
    return [each.stage for each in worker.access.session.circuits.paused()]


def run(worker: Harness, times: int) -> list[str]:
    return [type(worker.run_one()).__name__ for _ in range(times)]


@pytest.mark.parametrize("act", [answer(401), answer(404), answer(302), answer(503), reset])
def test_three_different_messages_in_a_row_pause_the_route_and_none_of_them_dies(
    consumer: NewConsumer, route: Declare, harness: NewHarness, act: Callable[..., bool]
) -> None:
    shop = consumer(otherwise=act)
    route(shop, "f1", "f2", "f3", "f4", redelivery=ONCE)
    worker = harness()
    run(worker, 2)
    assert paused(worker) == []
    run(worker, 1)
    assert paused(worker) == ["orders.out"]
    shop.otherwise = answer(200)
    outcomes = worker.drain()
    assert sum(isinstance(each, Completed) for each in outcomes) == 4
    assert paused(worker) == []
    assert not worker.dead_letters()
    assert len(set(shop.ids)) == 4


def test_one_message_that_fails_three_times_pauses_nothing(
    consumer: NewConsumer, route: Declare, harness: NewHarness
) -> None:
    route(consumer(answer(403), answer(403), answer(403)), "f1")
    worker = harness()
    assert [type(each).__name__ for each in worker.drain()] == ["Redelivered"] * 3 + ["Completed"]
    assert paused(worker) == []


@pytest.mark.parametrize("between", [200, 422])
def test_an_answer_between_them_shows_that_the_consumer_is_there(
    app: App, consumer: NewConsumer, route: Declare, harness: NewHarness, between: int
) -> None:
    script = [answer(401), answer(401), answer(between), answer(401), answer(401)]
    endpoint = route(consumer(*script), redelivery=Redelivery.fixed(every_seconds=3600, times=5))
    worker = harness()
    for number in range(5):
        app.start(endpoint, Posted(msgspec.Raw(BODY)), flow_id=f"f{number}")
        worker.run_one()
    assert paused(worker) == []


def test_a_business_error_to_a_probe_ends_the_pause(consumer: NewConsumer, route: Declare, harness: NewHarness) -> None:
    shop = consumer(answer(404), answer(404), answer(404), answer(422))
    route(shop, "f1", "f2", "f3", "f4")
    worker = harness()
    run(worker, 3)
    assert paused(worker) == ["orders.out"]
    outcomes = [type(each).__name__ for each in worker.drain()]
    assert outcomes == ["Buried", "Completed", "Completed", "Completed"]
    assert paused(worker) == []


def test_no_other_route_feels_it(consumer: NewConsumer, route: Declare, harness: NewHarness) -> None:
    away: Consumer = consumer(otherwise=answer(503))
    shop = consumer()
    route(away, "a1", "a2", "a3", name="away")
    route(shop, "f1", "f2", name="here")
    worker = harness()
    run(worker, 5)
    assert paused(worker) == ["away"]
    assert len(shop.requests) == 2
