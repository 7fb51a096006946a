"""A run that drains gives up a broker that is away, and no sooner."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stagepost.app.app import engine_of
from stagepost.runtime.direct import QUIET_SECONDS
from stagepost.runtime.edge import broker_of
from stagepost.runtime.edge_drain import AWAY_SECONDS, EdgeDrain, Verdict
from stagepost.runtime.edge_services import DispatcherService, ReceiverService
from tests.edges.service import Sender


class ScriptedReceiver(ReceiverService):
    """Its thread is never started."""

    is_alive = True


@pytest.fixture
def sender(tmp_path: Path) -> Iterator[Sender]:
    made = Sender(f"sqlite:///{tmp_path / 'shop.db'}")
    yield made
    made.close()


class Draining:
    def __init__(self, sender: Sender) -> None:
        engine = engine_of(sender.app)
        self._sender = sender
        self.dispatcher = DispatcherService(engine, broker_of(engine), "shop/1", sender.node)
        self.receiver = ScriptedReceiver(engine, broker_of(engine), sender.node, lambda: False)
        self._drain = EdgeDrain(self.receiver, self.dispatcher, [], sender.clock)

    def verdict_after(self, seconds: float) -> Verdict | None:
        self._sender.clock.advance(seconds)
        return self._drain.verdict(self._sender.access)


def test_a_reconnect_late_in_a_run_does_not_end_it(sender: Sender) -> None:
    draining = Draining(sender)
    for _ in range(3):
        draining.receiver.quiet_since = sender.clock.monotonic() + AWAY_SECONDS
        assert draining.verdict_after(AWAY_SECONDS) is None
    draining.receiver.quiet_since = None
    assert draining.verdict_after(1) is None
    assert draining.verdict_after(AWAY_SECONDS) == "stalled"


def test_the_receiver_ends_after_a_quiet_time(sender: Sender) -> None:
    draining = Draining(sender)
    draining.receiver.quiet_since = sender.clock.monotonic()
    assert draining.verdict_after(QUIET_SECONDS + 1) is None
    assert draining.receiver.is_stopped


@pytest.mark.parametrize("how", ["away", "blocked"])
def test_outbound_rows_wait_for_a_broker_no_longer_than_the_limit(sender: Sender, how: str) -> None:
    draining = Draining(sender)
    draining.receiver.is_alive = False
    sender.send("o1")
    draining.dispatcher.is_connected = True
    assert draining.verdict_after(AWAY_SECONDS + 1) is None
    draining.dispatcher.is_connected = how != "away"
    draining.dispatcher.is_blocked = how == "blocked"
    assert draining.verdict_after(1) is None
    assert draining.verdict_after(AWAY_SECONDS) == "stalled"


def test_a_run_without_outbound_rows_has_drained_without_a_broker(sender: Sender) -> None:
    draining = Draining(sender)
    draining.receiver.is_alive = False
    assert draining.verdict_after(1) == "drained"
