"""A broker in this process, for tests. It keeps the whole port, and tests inject faults into it."""

from stagepost.broker.memory.broker import MemoryBroker

__all__ = ["MemoryBroker"]
