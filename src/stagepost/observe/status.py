"""What waits, what runs, who works: one look at a store."""

from __future__ import annotations

from dataclasses import dataclass, field

from stagepost.app.stores import Access, Store
from stagepost.flow.clock import Clock
from stagepost.flow.declaration import Undeclared
from stagepost.flow.inbox import NO_BACKLOG, Backlog
from stagepost.flow.reading import Depth
from stagepost.liveness.proof import EVERY_APP, survey_of
from stagepost.liveness.replies import asks_only
from stagepost.liveness.survey import Found, State
from stagepost.liveness.undeclared import at_work, undeclared
from stagepost.recovery.pausing import Streak


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
    """``held``: what was started in the stages' database and has not reached the queue's; ``unmarked``: what was
    handled there and is not known to have been sent yet; ``undeclared``: the stages at which messages wait and which no
    app declares."""

    depths: list[Depth]
    workers: list[Worker]
    held: Backlog = NO_BACKLOG
    unmarked: Backlog = NO_BACKLOG
    paused: list[Streak] = field(default_factory=list)
    undeclared: list[Undeclared] = field(default_factory=list)

    @property
    def is_drained(self) -> bool:
        waiting = sum(each.ready + each.claimed + each.delayed + each.suspect for each in self.depths)
        return waiting + self.held.size == 0


def read_status(store: Store, access: Access, clock: Clock) -> Status:
    """``access.work`` is a session of the stages' database, where that is another."""
    survey = survey_of(store, EVERY_APP, clock)
    found = survey.look()
    survey.close()
    workers = [_worker(access, each) for each in found if not asks_only(each.record.header.node)]
    work = access.work
    return Status(
        access.session.reader.depths(),
        workers,
        work.outbox.backlog(),
        work.inbox.backlog(),
        access.session.streaks.paused(),
        undeclared(access.session, lambda: at_work(found)),
    )


def _worker(access: Access, found: Found) -> Worker:
    header = found.record.header
    held = {(claim.row, claim.deliveries) for claim in access.transport.owned(header.owner)}
    # What was settled stays on record until the next message comes.
    running = sum((each.row, each.deliveries) in held for each in found.record.running)
    return Worker(header.node, header.process, found.state, header.started_at, running)
