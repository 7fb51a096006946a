"""Receive one message and commit it with an output: ``python -m tests.broker.committing_child URL ADDRESS``.

A test kills the process before the commit.
"""

from __future__ import annotations

import sys
from random import Random
from typing import cast

from stagepost.flow.clock import SystemClock
from stagepost.ports.broker import AtomicConnection, Publication
from stagepost.ports.broker_registry import broker_driver_of
from tests.waiting import PATIENCE_SECONDS


def run(url: str, address: str) -> None:
    broker = broker_driver_of(url).broker(url, SystemClock(), Random(0))
    connection = cast("AtomicConnection", broker.connect(PATIENCE_SECONDS))
    connection.subscribe({address: 1})
    output = Publication(f"{address}.out", "m1", b"", {})
    connection.transact(connection.receive(PATIENCE_SECONDS), [output], PATIENCE_SECONDS)


if __name__ == "__main__":
    run(*sys.argv[1:])
