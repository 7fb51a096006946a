"""A broker's address belongs to one store, and a message that has arrived belongs to its store."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from stagepost import App, Context
from stagepost.app.app import engine_of
from stagepost.broker.memory import MemoryBroker
from stagepost.flow.errors import AddressTaken
from stagepost.ports.broker import BrokerConnection
from stagepost.runtime.declarations import declare_stages
from stagepost.testing import Harness
from stagepost.transaction.steps import EdgeStep, Halt
from tests.edges.service import Order
from tests.edges.test_receiving import ADDRESS, Receiving, an_envelope


class Unchecked(Receiving):
    """It receives at an address of another store, as if the broker compared nothing."""

    def connected(self) -> BrokerConnection:
        connection = self.broker.connect(1)
        connection.prepare(list(self.windows), "the mark of every store")
        return connection


def die_when_stored(step: EdgeStep, message_ids: Sequence[str]) -> None:
    if step == EdgeStep.STORED:
        raise Halt


@pytest.mark.parametrize("receiving", [Receiving, Unchecked])
def test_two_stores_at_one_address_would_double_what_a_killed_receiver_had_stored(
    tmp_path: Path, receiving: type[Receiving]
) -> None:
    """The second store does not know the ids of the first one. So the broker refuses it."""
    broker = MemoryBroker()
    with closing(receiving(f"sqlite:///{tmp_path / 'first.db'}", broker)) as first:
        first.arrive(an_envelope("m1"))
        first.receiver = first.receiving(die_when_stored)
        with pytest.raises(Halt):
            first.turn()
        first.connection.close()
        assert first.depth() == {ADDRESS: 1}
        if receiving is Receiving:
            with closing(broker.connect(1)) as second, pytest.raises(AddressTaken, match="share one store"):
                second.prepare([ADDRESS], "the second store")
            return
        with closing(receiving(f"sqlite:///{tmp_path / 'second.db'}", broker)) as other:
            assert other.turn() == 1
            assert other.depth() == {ADDRESS: 1}


def test_a_backlog_of_an_endpoint_that_is_declared_again_is_whole(tmp_path: Path) -> None:
    """What has arrived is never sent out again, whatever is declared meanwhile."""
    broker = MemoryBroker()
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    handled: list[str] = []

    def app(*endpoints: str) -> App:
        made = App("shop", database=url, broker="memory:tests")
        for each in endpoints:

            @made.endpoint(each)
            def handle(ctx: Context, order: Order) -> None:
                handled.append(ctx.flow_id)

        return made

    declare_stages(engine_of(app(ADDRESS)))
    with closing(Receiving(url, broker)) as shop:
        shop.arrive(*(an_envelope(f"m{number}") for number in range(3)))
        assert shop.turn() == 3
        declare_stages(engine_of(app("shop.other")))
        assert shop.dispatcher.turn(shop.connection) == 0
        assert (shop.depth(), broker.waiting(ADDRESS)) == ({ADDRESS: 3}, [])
    again = app(ADDRESS)
    declare_stages(engine_of(again))
    with closing(Harness(again)) as harness:
        harness.drain()
    assert sorted(handled) == ["flow-m0", "flow-m1", "flow-m2"]
