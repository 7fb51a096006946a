"""What waits, what runs, who works: one look at a store."""

from __future__ import annotations

from dataclasses import dataclass

from stagepost.app.stores import Access, Store
from stagepost.flow.clock import Clock
from stagepost.flow.reading import Depth
from stagepost.liveness.proof import EVERY_APP, survey_of
from stagepost.liveness.survey import Found, State


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


def read_status(store: Store, access: Access, clock: Clock) -> Status:
    survey = survey_of(store, EVERY_APP, clock)
    found = survey.look()
    survey.close()
    return Status(access.session.reader.depths(), [_worker(access, each) for each in found])


def _worker(access: Access, found: Found) -> Worker:
    header = found.record.header
    held = {(claim.row, claim.deliveries) for claim in access.transport.owned(header.owner)}
    # What was settled stays on record until the next message comes.
    running = sum((each.row, each.deliveries) in held for each in found.record.running)
    return Worker(header.node, header.process, found.state, header.started_at, running)
