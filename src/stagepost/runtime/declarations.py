"""Tell the store which app declares which stage, and refuse an app if another app declares its stages.

A stage that its app no longer declares is dropped, not deleted. In a rolling deploy, processes of the older code may
still run it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import closing
from typing import NamedTuple

from stagepost.flow.clock import Clock
from stagepost.flow.errors import CapabilityMissing, DeclarationError, StoreContention
from stagepost.flow.ids import node_name
from stagepost.flow.target import is_outbound
from stagepost.liveness.detector import LOOKS_MIN, LOST_SECONDS, FailureDetector
from stagepost.liveness.incarnation import is_edge, owner_at
from stagepost.ports.declarations import Declaration, Undeclared
from stagepost.ports.health import Heart
from stagepost.ports.liveness import EVERY_APP, IncarnationRecord
from stagepost.ports.session import Session
from stagepost.ports.store import Store
from stagepost.runtime.assembly import takeover_of
from stagepost.runtime.engine import Engine
from stagepost.runtime.purge_service import can_purge
from stagepost.runtime.service import NeverStops
from stagepost.transaction.database_wait import retried
from stagepost.transaction.queue_commit import committing

logger = logging.getLogger(__name__)

LOOK_SECONDS = 5.0


def declare_stages(engine: Engine) -> None:
    """Write to the store what the app declares, if that has changed. Wait while another writer holds the database.

    Raises ``StoreError``, and ``DeclarationError`` for a stage that another app declares.
    """
    retried(logger, lambda: _declare(engine), NeverStops(), (StoreContention,))


def _declare(engine: Engine) -> None:
    with closing(engine.store.session()) as session:
        # Most starts change nothing, and must not wait for another writer then.
        if not _changes(engine, session.declarations.listed()) and not _changes_retention(engine, session):
            return
        with committing(session):
            session.declarations.lock()
            known = session.declarations.listed()
            stages = engine.stages()
            theirs = [each for each in known if each.stage in stages and each.app != engine.name]
            processes = living(engine.store, engine.clock) if theirs else []
            # A stage is free once the other app has dropped it and no process runs it any more.
            taken = [each for each in theirs if each.dropped_at is None or holders(each, processes)]
            if taken:
                endpoints = {stages[each.stage].position.endpoint for each in taken}
                raise DeclarationError(_refusal(engine, endpoints, taken, processes))
            session.declarations.put(_changes(engine, known))
            if _changes_retention(engine, session):
                session.retention.declare(engine.name, engine.retention())


def reassign(engine: Engine, endpoints: Collection[str]) -> list[Declaration]:
    """Give endpoints that another app declared to this app, which declares them now.

    Release the messages that dead processes of the other app hold. Return the stages as they were declared before.
    Raises ``StoreError``, and ``DeclarationError`` while a process of the other app lives.
    """
    for endpoint in endpoints:
        engine.target(endpoint)
    stages = {address for address, stage in engine.stages().items() if stage.position.endpoint in endpoints}
    with closing(engine.store.session()) as session, committing(session):
        session.declarations.lock()
        known = session.declarations.listed()
        at_them = [each for each in known if each.endpoint in endpoints or each.stage in stages]
        theirs = [each for each in at_them if each.app != engine.name]
        processes = living(engine.store, engine.clock)
        if any(holders(each, processes) for each in theirs):
            raise DeclarationError(_refusal(engine, endpoints, theirs, processes))
        session.declarations.put([each._replace(app=engine.name) for each in theirs])
    for name in {each.app for each in theirs}:
        _take_over(engine, name)
    return theirs


def _take_over(engine: Engine, name: str) -> None:
    """Take over from the dead processes of an app. It does not start again under that name."""
    with (
        closing(engine.access()) as access,
        closing(engine.detector(name)) as detector,
    ):
        takeover = takeover_of(engine, access, node_name("reassign"), detector, name)
        for _ in range(LOOKS_MIN + 1):
            takeover.sweep()
            if not any(owner.startswith(f"{name}/") for owner in access.session.queue.owners()):
                break
            # The end of a process on another machine is detected only by looking again.
            time.sleep(LOST_SECONDS / 2)


def _changes(engine: Engine, known: Sequence[Declaration]) -> list[Declaration]:
    now = engine.clock.now()
    stages = engine.stages()
    wanted = [
        Declaration(address, stage.position.endpoint, engine.name, types=",".join(stage.message_types))
        for address, stage in stages.items()
    ]
    gone = [each for each in known if each.app == engine.name and each.dropped_at is None and each.stage not in stages]
    return [each for each in wanted if each not in known] + [each._replace(dropped_at=now) for each in gone]


def _changes_retention(engine: Engine, session: Session) -> bool:
    """Say whether the store has another retention of this app. A store without the capability has none."""
    declared = engine.retention()
    if not can_purge(engine):
        if declared:
            raise CapabilityMissing("retention", "Leave retention= out.", engine.store.url)
        return False
    return {each.scope: each.hours for each in session.retention.declared() if each.app == engine.name} != declared


def _refusal(
    engine: Engine, endpoints: Iterable[str], taken: Sequence[Declaration], processes: Sequence[Process]
) -> str:
    others = " and ".join(sorted({repr(each.app) for each in taken}))
    names = sorted(endpoints)
    nodes = sorted({process.node for each in taken for process in holders(each, processes)})
    refused = f"app {engine.name!r} declares {', '.join(names)}, and so does app {others} on {engine.store.url}"
    command = f"stagepost reassign {' '.join(names)} --app MODULE:APP"
    if nodes:
        return (
            f"{refused}, which works there ({', '.join(nodes)}). Give one of the two another name; if the app was "
            f"renamed, stop what runs under its old name, and run: {command}"
        )
    return (
        f"{refused}. No process of that app is seen to work there. If the app was renamed, run: {command}. If it was "
        "not, give one of the two another name."
    )


class Process(NamedTuple):
    """A living process that works for an app."""

    app: str
    node: str
    started_at: int


class UndeclaredStages:
    """Logs each stage once at which messages wait and which no app declares."""

    def __init__(self, engine: Engine, session: Session) -> None:
        self._engine = engine
        self._session = session
        self._looked_at = -math.inf
        self._told: set[str] = set()

    def look(self) -> None:
        """Look, at most every five seconds. Raises ``StoreError``."""
        now = self._engine.clock.monotonic()
        if now - self._looked_at < LOOK_SECONDS:
            return
        found = undeclared(self._session, lambda: living(self._engine.store, self._engine.clock))
        self._looked_at = now
        for each in found:
            if each.stage not in self._told:
                logger.warning(
                    "%s", describe_undeclared(each), extra={"event": "stage-undeclared", "stage": each.stage}
                )
        self._told = {each.stage for each in found}


def describe_undeclared(stage: Undeclared) -> str:
    """Say what is wrong, and what to do."""
    last = "" if stage.app is None else f" any longer; {stage.app!r} did"
    return (
        f"messages wait at {stage.stage}, which no app declares{last}. Start a worker of the app that it belongs to, "
        "and let that app import the module that declares it"
    )


def undeclared(session: Session, processes: Callable[[], Sequence[Process]]) -> list[Undeclared]:
    """Return the stages at which messages wait and which no app declares. ``processes`` is called only where a stage
    was dropped."""
    found = [each for each in session.declarations.undeclared() if is_for_a_stage(each.stage)]
    living_processes = processes() if any(each.dropped_at is not None for each in found) else ()
    return [each for each in found if not holders(each, living_processes)]


def is_for_a_stage(address: str) -> bool:
    """Say whether messages at an address wait for a stage, and not for a dispatcher or for a process that asked."""
    return owner_at(address) is None and not is_outbound(address)


def holders(stage: Declaration | Undeclared, processes: Iterable[Process]) -> list[Process]:
    """Return the processes that may run the stage. A process that started after the stage was dropped does not."""
    return [
        each
        for each in processes
        if each.app == stage.app and (stage.dropped_at is None or each.started_at < stage.dropped_at)
    ]


def living(store: Store, clock: Clock) -> list[Process]:
    """Return the processes at work in the store. A process lives while it holds its lock, which one look shows."""
    with closing(FailureDetector(store.liveness(clock), EVERY_APP, clock)) as detector:
        return processes_of(each.record for each in detector.look())


def processes_of(records: Iterable[IncarnationRecord | Heart]) -> list[Process]:
    locked = [each for each in records if each.is_locked and not is_edge(each.node)]
    return [Process(each.owner.rpartition("/")[0], each.node, each.started_at) for each in locked]
