"""The memory broker against the contract of a broker's connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from stagepost.broker.memory import MemoryBroker
from stagepost.broker.memory.queue import BODY_BYTES_MAX
from stagepost.testing.contract.brokers import BrokerConnectionContract


class MemoryFaults:
    """Implements ``BrokerFaults``."""

    oversized_bytes = BODY_BYTES_MAX + 1
    pause_seconds = 0.0

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    def cut(self) -> None:
        self._broker.cut()

    def restart(self) -> None:
        self._broker.cut("it was restarted")

    def frozen(self) -> AbstractContextManager[None]:
        return self._broker.frozen()

    @contextmanager
    def blocked(self) -> Iterator[None]:
        self._broker.is_blocked = True
        yield
        self._broker.is_blocked = False

    def refuse(self, address: str) -> bool:
        self._broker.refusing.add(address)
        return True

    def declare_otherwise(self, address: str) -> str:
        self._broker.declare_otherwise(address)
        return "is_ours"


class TestMemoryBroker(BrokerConnectionContract):
    @pytest.fixture
    def broker(self) -> MemoryBroker:
        return MemoryBroker()

    @pytest.fixture
    def faults(self, broker: MemoryBroker) -> MemoryFaults:
        return MemoryFaults(broker)
