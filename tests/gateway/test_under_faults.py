"""Producers that retry with the same id while gateways and servers are killed: each order is stored once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from stagepost import App
from stagepost.app.app import engine_of
from stagepost.flow import ids
from tests.gateway.gateways import Gateways
from tests.gateway.http_calls import post, wait_until_alive
from tests.gateway.shop import ONE
from tests.processes import ProcessGroup, kill
from tests.quiet_logs import unquiet_lines
from tests.servers.postgres import OwnServer
from tests.waiting import LOOK_SECONDS, wait_until

PRODUCERS = 6
ORDERS = 25


class Producers:
    """Threads that each post their orders one after the other, each again and again until it is accepted."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.answers: Counter[int] = Counter()
        self.accepted: list[str] = []
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._post, args=(number,)) for number in range(PRODUCERS)]
        for each in self._threads:
            each.start()

    def _post(self, number: int) -> None:
        for order in range(ORDERS):
            theirs = f"{number}-{order}"
            while not self._end.is_set():
                status, document = post(self._port, "/orders", ONE | {"invoice": order}, {"Message-Id": theirs})
                self.answers[status] += 1
                if status == 200:
                    assert document["message_id"] == ids.of_producer("orders", "erp", theirs)
                    self.accepted.append(theirs)
                    break
                self._end.wait(LOOK_SECONDS)

    @property
    def are_done(self) -> bool:
        return not any(each.is_alive() for each in self._threads)

    def close(self) -> None:
        self._end.set()
        for each in self._threads:
            each.join()


def stored_ids(url: str) -> list[str]:
    """Return the ids of all messages in the queue."""
    with closing(engine_of(App("shop", database=url)).access()) as access:
        claims = access.claimer.claim(["orders.place"], 2 * PRODUCERS * ORDERS, "reader", "reader")
        return sorted(each.message_id for each in claims)


def check_each_order_is_stored_once(url: str, producers: Producers) -> None:
    wanted = sorted(f"{number}-{order}" for number in range(PRODUCERS) for order in range(ORDERS))
    assert sorted(producers.accepted) == wanted
    assert stored_ids(url) == sorted(ids.of_producer("orders", "erp", each) for each in wanted)
    # A killed process and a store that is away are the only reasons to try again.
    assert set(producers.answers) <= {0, 200, 503}


@pytest.mark.more
def test_orders_are_stored_once_while_gateways_are_killed(gateways: Gateways, group: ProcessGroup) -> None:
    gateways.command(2, "--json")
    wait_until_alive(gateways.port)
    producers, chance = Producers(gateways.port), Random(0)
    try:
        for _ in range(6):
            seen = sum(producers.answers.values())
            moved = chance.randrange(1, 12)
            wait_until(
                lambda: producers.are_done or sum(producers.answers.values()) >= seen + moved,  # noqa: B023 - called at once
                "producers go on",
            )
            pids = group.pids("gateway_process")
            if pids:
                kill(chance.choice(pids))
        wait_until(lambda: producers.are_done, "all orders are accepted")
    finally:
        producers.close()
    check_each_order_is_stored_once(gateways.url, producers)
    assert unquiet_lines(gateways.log) == []


@pytest.fixture
def served_by_mortal(
    mortal_postgres: OwnServer, tmp_path: Path, group: ProcessGroup
) -> Iterator[tuple[Gateways, OwnServer]]:
    url = mortal_postgres.new_database()
    made = Gateways(url, tmp_path, group)
    yield made, mortal_postgres
    made.close()
    group.kill_all()
    mortal_postgres.drop_database(url)


@pytest.mark.more
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_orders_are_stored_once_while_the_database_server_is_killed(
    how: str, served_by_mortal: tuple[Gateways, OwnServer]
) -> None:
    gateways, server = served_by_mortal
    stop: Callable[[], None] = server.kill if how == "killed" else lambda: server.stop("immediate")
    gateways.command(2, "--json")
    wait_until_alive(gateways.port)
    producers = Producers(gateways.port)
    try:
        for number in range(1, 4):
            wait_until(
                lambda: producers.are_done or len(producers.accepted) >= number * 20,  # noqa: B023 - called at once
                "orders are accepted",
            )
            stop()
            refused = producers.answers[503]
            wait_until(
                lambda: producers.are_done or producers.answers[503] > refused,  # noqa: B023 - called at once
                "a gateway says that the store is away",
            )
            server.start()
        wait_until(lambda: producers.are_done, "all orders are accepted")
    finally:
        producers.close()
    assert producers.answers[503] > 0
    check_each_order_is_stored_once(gateways.url, producers)
    assert unquiet_lines(gateways.log) == []
