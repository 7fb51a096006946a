"""What waits, what runs, who works: one look at a store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stagepost.flow.clock import Clock
from stagepost.flow.reading import Depth
from stagepost.liveness.survey import State, Survey
from stagepost.transaction.seams import Reader


@dataclass(frozen=True, slots=True)
class Worker:
    """An incarnation that has a lock file: ``running`` is how many messages it runs at the moment."""

    node: str
    process: int
    state: State
    started_at: int
    running: int


@dataclass(frozen=True, slots=True)
class Status:
    depths: list[Depth]
    workers: list[Worker]

    @property
    def is_drained(self) -> bool:
        return not any(each.ready + each.claimed + each.delayed + each.suspect for each in self.depths)


def read_status(reader: Reader, liveness_folder: Path, clock: Clock) -> Status:
    found = Survey(liveness_folder, "*", clock).look()
    workers = [
        Worker(
            each.record.header.node,
            each.record.header.process,
            each.state,
            each.record.header.started_at,
            len(each.record.running),
        )
        for each in found
    ]
    return Status(reader.depths(), workers)
