"""The driver of ``memory:``. One name is one broker for the whole process."""

from __future__ import annotations

from random import Random

from stagepost.broker.memory.broker import SCHEME, MemoryBroker
from stagepost.flow.clock import Clock
from stagepost.flow.errors import DeclarationError

_brokers: dict[str, MemoryBroker] = {}


def check(url: str) -> None:
    if not url.startswith(SCHEME) or url == SCHEME:
        raise DeclarationError(f"{url!r} names no memory broker. Write memory: and a name, such as memory:shop.")


def broker(url: str, clock: Clock, random: Random) -> MemoryBroker:
    return _brokers.setdefault(url, MemoryBroker(url.removeprefix(SCHEME)))
