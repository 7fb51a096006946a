"""The brokers of a campaign: each with two addresses, behind a network that spoils connections."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from pathlib import Path
from random import Random
from uuid import uuid4

from stagepost.flow.clock import SystemClock
from stagepost.ports.broker import Broker
from stagepost.ports.broker_registry import broker_driver_of
from tests.servers.activemq import ActiveMQServer
from tests.servers.ports import reserved_port
from tests.servers.rabbitmq import RabbitServer
from tests.soak.brokers.network import Network

# A cut that nobody is told of is known after two of them.
HEARTBEAT = "heartbeat=4"


class BrokerTarget(ABC):
    """``url`` leads through the network, to both addresses. ``prefix`` begins the names of the services."""

    network: Network
    url: str
    prefix: str

    @property
    @abstractmethod
    def direct_url(self) -> str:
        """The broker's present address, past the network."""

    def direct(self) -> Broker:
        return broker_driver_of(self.direct_url).broker(self.direct_url, SystemClock(), Random(0))

    @abstractmethod
    def replace(self, seconds: float, *, elsewhere: bool) -> None:
        """Kill the broker, and start it with its data after some seconds, at its other address if ``elsewhere``."""

    @abstractmethod
    def frozen(self, seconds: float) -> None:
        """Suspend the broker for some seconds."""

    def silent(self, seconds: float) -> None:
        with self.network.black_hole():
            time.sleep(seconds)

    def close(self) -> None:
        self.network.close()


class RabbitTarget(BrokerTarget):
    def __init__(self, server: RabbitServer) -> None:
        self._server = server
        self._ports = [server.port, reserved_port()]
        self._host = server.add_host()
        self.network = Network(self._ports)
        hosts = ",".join(f"127.0.0.1:{each}" for each in self.network.ports)
        self.url = f"amqp://guest:guest@{hosts}/{self._host}?{HEARTBEAT}"
        self.prefix = ""

    @property
    def direct_url(self) -> str:
        return self._server.url(HEARTBEAT, self._host)

    def replace(self, seconds: float, *, elsewhere: bool) -> None:
        self._server.kill()
        time.sleep(seconds)
        other = next(each for each in self._ports if each != self._server.port)
        self._server.start(other if elsewhere else None)

    def frozen(self, seconds: float) -> None:
        with self._server.frozen():
            time.sleep(seconds)


class ActiveMQTarget(BrokerTarget):
    """A second process waits for the lock of the first one's data where the address changes."""

    def __init__(self, server: ActiveMQServer, folder: Path) -> None:
        self._first = server
        self._servers = [server, ActiveMQServer(folder / "second", data=server.data)]
        self.network = Network([each.port for each in self._servers])
        hosts = ",".join(f"127.0.0.1:{each}" for each in self.network.ports)
        self.url = server.url(HEARTBEAT, place=hosts)
        # It has one space of addresses for all campaigns.
        self.prefix = f"s{uuid4().hex[:8]}-"

    @property
    def direct_url(self) -> str:
        return self._servers[0].url(HEARTBEAT)

    def replace(self, seconds: float, *, elsewhere: bool) -> None:
        self._servers[0].kill()
        time.sleep(seconds)
        if elsewhere:
            self._servers.reverse()
        self._servers[0].start()

    def frozen(self, seconds: float) -> None:
        with self._servers[0].frozen():
            time.sleep(seconds)

    def close(self) -> None:
        super().close()
        if self._servers[0] is not self._first:
            self._servers[0].stop()
            self._first.start()
