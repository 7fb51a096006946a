"""Status of a store: waiting and running messages, workers, and paused stages."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field

from stagepost.flow.clock import Clock
from stagepost.liveness.detector import FailureDetector, PeerStatus, State
from stagepost.liveness.incarnation import is_edge
from stagepost.observe.retention import EFFECTS_UNTIL, Kept, read_retention
from stagepost.ports.circuits import CircuitBreaker
from stagepost.ports.declarations import Undeclared
from stagepost.ports.edge import EdgeView
from stagepost.ports.effects import NO_EFFECTS, EffectFigures
from stagepost.ports.liveness import EVERY_APP
from stagepost.ports.outbox import NO_BACKLOG, Backlog
from stagepost.ports.queue import Depth
from stagepost.ports.store import Store
from stagepost.runtime.access import Access
from stagepost.runtime.assembly import log_of
from stagepost.runtime.declarations import processes_of, undeclared
from stagepost.transaction.effects import EffectLog
from stagepost.transaction.retention import read_rules


@dataclass(frozen=True, slots=True)
class Worker:
    """An incarnation with a lock file. ``running`` is the number of messages that it runs at the moment."""

    node: str
    process: int
    state: State
    started_at: int
    running: int


@dataclass(frozen=True, slots=True)
class Status:
    """The status at one moment.

    ``held``        started flows that have not reached the queue: from another database, or from ``Store.apart``
    ``unmarked``    messages handled in the stages' database and not marked as sent yet
    ``effects``     calls to the outside that are in doubt
    ``brokers``     the broker as each living process with a receiver and a dispatcher sees it
    ``undeclared``  stages at which messages wait, and which no app declares
    ``retention``   how long the rows of each kind are kept, and how old they are
    """

    depths: list[Depth]
    workers: list[Worker]
    held: Backlog = NO_BACKLOG
    unmarked: Backlog = NO_BACKLOG
    paused: list[CircuitBreaker] = field(default_factory=list)
    undeclared: list[Undeclared] = field(default_factory=list)
    retention: list[Kept] = field(default_factory=list)
    effects: EffectFigures = NO_EFFECTS
    brokers: list[EdgeView] = field(default_factory=list)

    @property
    def is_drained(self) -> bool:
        waiting = sum(each.ready + each.claimed + each.delayed + each.suspect for each in self.depths)
        return waiting + self.held.size == 0


def read_status(store: Store, access: Access, clock: Clock) -> Status:
    """Read the status of the store. ``access.work`` is a session of the stages' database, if that is another one."""
    with closing(FailureDetector(store.liveness(clock), EVERY_APP, clock)) as detector:
        found = detector.look()
    workers = [_worker(access, each) for each in found if not is_edge(each.record.node)]
    living = {each.record.node for each in found if each.state == "alive"}
    work = access.work
    rules = read_rules(access.session)
    log = log_of(store, clock)
    effects = [] if log is None else [Kept("effects", None, None, EFFECTS_UNTIL)]
    return Status(
        access.session.queue.depths(),
        workers,
        access.held(),
        work.inbox.backlog(),
        access.session.circuits.paused(),
        undeclared(access.session, lambda: processes_of(each.record for each in found)),
        [
            *effects,
            *(
                kept
                for each in dict.fromkeys((access.session, work))
                for kept in read_retention(each, rules, is_queue=each is access.session)
            ),
        ],
        _figures(log),
        [each for each in access.session.edge.views() if each.node in living],
    )


def _figures(log: EffectLog | None) -> EffectFigures:
    if log is None:
        return NO_EFFECTS
    with log.reading() as effects:
        return effects.figures()


def _worker(access: Access, found: PeerStatus) -> Worker:
    record = found.record
    held = {(claim.row, claim.deliveries) for claim in access.session.queue.owned(record.owner)}
    # The record keeps a settled message until the next one begins.
    running = sum((each.row, each.deliveries) in held for each in record.running)
    return Worker(record.node, record.process, found.state, record.started_at, running)
