"""ActiveMQ Classic, from the Debian package, against the contract of a broker's connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from random import Random

import pytest

from stagepost.flow.clock import SystemClock
from stagepost.ports.broker import Broker
from stagepost.ports.broker_registry import broker_driver_of
from stagepost.testing.contract.brokers import BrokerConnectionContract
from tests.servers.activemq import FRAME_BYTES_MAX, LIMITED, ActiveMQServer
from tests.servers.stomp_proxy import StompProxy

# It starts Java.
pytestmark = pytest.mark.more

# A busy machine may be silent for longer than a second.
HEARTBEAT_SECONDS = 2.0


class ActiveMQFaults:
    """Implements ``BrokerFaults``."""

    oversized_bytes = FRAME_BYTES_MAX
    # The broker drops a client after one silent heart-beat and a grace of about as much.
    pause_seconds = 4 * HEARTBEAT_SECONDS

    def __init__(self, server: ActiveMQServer, proxy: StompProxy) -> None:
        self._server = server
        self._proxy = proxy

    def cut(self) -> None:
        self._proxy.cut()

    def restart(self) -> None:
        self._server.restart()

    def frozen(self) -> AbstractContextManager[None]:
        return self._server.frozen()

    def blocked(self) -> None:
        """Return None: its memory is not taken away at run time. ``tests/broker`` fills its disk."""

    def refuse(self, address: str) -> bool:
        # Its user lacks the right to write there.
        return address.endswith(".full")

    def declare_otherwise(self, address: str) -> None:
        """Return None: its queues have no arguments."""


class TestActiveMQ(BrokerConnectionContract):
    @pytest.fixture
    def proxy(self, activemq: ActiveMQServer) -> Iterator[StompProxy]:
        proxy = StompProxy(activemq.port)
        yield proxy
        proxy.close()

    @pytest.fixture
    def broker(self, activemq: ActiveMQServer, proxy: StompProxy) -> Broker:
        place = f"127.0.0.1:{proxy.port}"
        url = activemq.url(f"heartbeat={HEARTBEAT_SECONDS}", place=place, user=LIMITED)
        return broker_driver_of(url).broker(url, SystemClock(), Random(0))

    @pytest.fixture
    def faults(self, activemq: ActiveMQServer, proxy: StompProxy) -> ActiveMQFaults:
        return ActiveMQFaults(activemq, proxy)
