"""What the tests of batches have in common: orders to pay, started together, and one batch of all that waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stagepost import App, Target
from stagepost.flow.claim import Claim
from stagepost.testing import Harness
from stagepost.transaction.outcome import Outcome

COUNT = 5


@dataclass
class Order:
    id: int


@dataclass
class Receipt:
    id: int


def start(app: App, target: Target[Order, None], count: int = COUNT) -> None:
    with app.initiate() as out:
        for at in range(count):
            out.send(target, Order(at), flow_id=f"order:{at}")


def claimed(worker: Harness, stage: str = "pay") -> list[Claim]:
    return worker.access.claimer.claim([stage], 100, "batches/1", worker.node)


def attempted(worker: Harness) -> Sequence[Outcome]:
    return worker.transaction.run_batch(claimed(worker))
