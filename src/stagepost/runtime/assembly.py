"""Assemble an engine's stages and a thread's access into the one stage transaction."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from functools import partial

from stagepost.flow.clock import Clock
from stagepost.flow.errors import DeclarationError
from stagepost.liveness.detector import FailureDetector
from stagepost.liveness.takeover import Takeover
from stagepost.ports.registry import driver_of
from stagepost.ports.store import Store, apart_of
from stagepost.runtime.access import Access
from stagepost.runtime.engine import Engine
from stagepost.runtime.modes import is_guarded_directly
from stagepost.transaction.attempt import AfterCommit, AttemptRunner
from stagepost.transaction.attempt_monitor import AttemptMonitor
from stagepost.transaction.database_wait import StopSignal
from stagepost.transaction.documents import DocumentMode
from stagepost.transaction.effects import EffectLog
from stagepost.transaction.inbox_guard import InboxGuard
from stagepost.transaction.independent import IndependentRelay
from stagepost.transaction.mode import TransactionMode
from stagepost.transaction.outbox import InboxOutbox
from stagepost.transaction.queue_commit import QueueCommit, Single
from stagepost.transaction.relay import Relay
from stagepost.transaction.sent_marks import BatchedMarks, MessageMarks, SentMarks, SweptMarks, address_of_marks
from stagepost.transaction.stage import Mode
from stagepost.transaction.steps import Step, StepListener
from stagepost.transaction.stored_copies import GuardedSingle, InboxSweep
from stagepost.transaction.two_phase import InDoubtResolver, TwoPhase
from stagepost.transaction.unit_of_work import Write


def attempt_runner(
    engine: Engine,
    access: Access,
    *,
    node: str,
    monitor: AttemptMonitor,
    stop: StopSignal,
    after_commit: AfterCommit,
    listener: StepListener | None = None,
) -> AttemptRunner:
    """Raises ``DeclarationError`` where the databases cannot keep the promise of a stage's mode."""
    queue_commit = queue_commit_of(engine, access, node, listener)
    modes = engine.modes()
    made = {mode: _transaction_mode(engine, mode, access, queue_commit) for mode in set(modes.values())}
    stages = engine.stages()
    documents = DocumentMode(queue_commit, stages)
    copies = GuardedSingle(queue_commit, InboxGuard(access.session, engine.clock, stages))
    by_stage: dict[str, TransactionMode] = {}
    for address, mode in modes.items():
        if stages[address].documents is not None:
            by_stage[address] = documents
        else:
            by_stage[address] = copies if is_guarded_directly(stages[address], mode) else made[mode]
    return runner_in(engine, queue_commit, by_stage, monitor=monitor, stop=stop, after_commit=after_commit)


def runner_in(
    engine: Engine,
    queue_commit: QueueCommit,
    modes: Mapping[str, TransactionMode],
    *,
    monitor: AttemptMonitor,
    stop: StopSignal,
    after_commit: AfterCommit,
) -> AttemptRunner:
    """Return the runner of the stages of ``modes``, each in its mode."""
    engine.check_apart()
    return AttemptRunner(
        engine.stages(),
        queue_commit,
        modes,
        random=engine.random,
        limits=engine.limits,
        monitor=monitor,
        stop=stop,
        after_commit=after_commit,
        running=engine.running,
        write_apart=_write_apart(engine),
        sinks=tuple(engine.sinks),
        scopes=engine.scopes,
        user_sessions=engine.user_sessions,
    )


def has_outbox_apart(engine: Engine) -> bool:
    """Say whether stages start flows independently in ``Store.apart``, because the store has one writer."""
    capabilities = driver_of(engine.databases.database).capabilities
    return "effects" in capabilities and "concurrent_writers" not in capabilities


def _write_apart(engine: Engine) -> Write | None:
    """Return the way in which a stage starts flows while its transaction is open; None where there is none."""
    if has_outbox_apart(engine):
        return engine.flow_starter.write_apart
    is_free = "concurrent_writers" in driver_of(engine.databases.database).capabilities
    return engine.flow_starter.write_rows if is_free else None


def check_databases(engine: Engine) -> None:
    """Check that the databases can keep the modes' promises. Call it once, before anything runs.

    Raises ``DeclarationError`` and ``StoreError``.
    """
    engine.check_apart()
    if engine.databases.queue is None:
        return
    with closing(engine.access()) as access:
        if "two_phase" in engine.modes().values():
            _check_can_prepare(engine, access)


def _check_can_prepare(engine: Engine, access: Access) -> None:
    if access.session.prepared.prepared_max == 0:
        raise DeclarationError(
            f"mode='two_phase' prepares transactions in {engine.store.url}, whose server allows none. Set "
            "max_prepared_transactions there to at least the number of stage threads, and restart it."
        )


def queue_commit_of(engine: Engine, access: Access, node: str, listener: StepListener | None = None) -> QueueCommit:
    return QueueCommit(
        access.session, engine.clock, node, listener or engine.listener, engine.routing, engine.effect_log
    )


def log_of(store: Store, clock: Clock, *, is_made: bool = False) -> EffectLog | None:
    """Return the log of effects of a store, for a command; None if nothing was ever logged, unless it ``is_made``.

    Raises ``StoreError``.
    """
    apart = store.apart if is_made else apart_of(store)
    if apart is None:
        return None
    return EffectLog({}, (), 0, lambda: closing(apart.session()), lambda: None, clock, lambda _: True)


def queue_commit_of_command(store: Store, access: Access, clock: Clock, node: str) -> QueueCommit:
    """Return the queue commit of a command, which knows the store and no app."""
    return QueueCommit(access.session, clock, node, effects=log_of(store, clock))


def takeover_of(
    engine: Engine, access: Access, node: str, detector: FailureDetector, app: str | None = None
) -> Takeover:
    """Return the takeover from the dead incarnations of this app, or of ``app``. ``detector`` finds them."""
    queue_commit = queue_commit_of(engine, access, node)
    return Takeover(app or engine.name, engine.stages(), access.claimer, queue_commit, detector, engine.random)


def sweep_of(engine: Engine, queue_commit: QueueCommit) -> InboxSweep | None:
    """Return the sweep of the inbox of direct stages; None for an app whose relay sweeps it, or that has none."""
    is_apart = engine.databases.queue is not None
    if is_apart or "inbox" not in driver_of(engine.databases.database).capabilities:
        return None
    return InboxSweep(queue_commit, engine.edge_listener)


def independent_relay_of(engine: Engine, access: Access, node: str) -> IndependentRelay:
    return IndependentRelay(access.apart, access.work, queue_commit_of(engine, access, node))


def relay_of(engine: Engine, access: Access, node: str) -> Relay | None:
    """Return the relay; None for an app whose queue is in the database of its data."""
    if engine.databases.queue is None:
        return None
    return Relay(access.work, queue_commit_of(engine, access, node), resolver_of(engine, access))


def resolver_of(engine: Engine, access: Access) -> InDoubtResolver | None:
    """Return the resolver of transactions in doubt; None for an app without a stage of the mode ``two_phase``."""
    business = engine.databases.business
    if business is None or "two_phase" not in engine.modes().values():
        return None
    coordinator = business.identity.replace(" ", ".")
    return InDoubtResolver(access.work, access.session, coordinator)


def _sent_marks(engine: Engine, access: Access, queue_commit: QueueCommit) -> SentMarks:
    match engine.clearing:
        case "worker":
            return BatchedMarks(access.work, engine.clock, partial(queue_commit.listener, Step.MARKED))
        case "message":
            return MessageMarks(address_of_marks(engine.name))
        case "sweep":
            return SweptMarks()


def _transaction_mode(engine: Engine, mode: Mode, access: Access, queue_commit: QueueCommit) -> TransactionMode:
    match mode:
        case "single" | "best_effort":
            # Stored messages of a stage in a direct mode run in single too.
            return Single(queue_commit)
        case "transport":
            return Single(queue_commit, has_database=False)
        case "outbox":
            inbox = InboxGuard(access.work, engine.clock, engine.stages())
            return InboxOutbox(access.work, queue_commit, inbox, _sent_marks(engine, access, queue_commit))
        case "two_phase":
            _check_can_prepare(engine, access)
            resolver = resolver_of(engine, access)
            assert resolver is not None
            return TwoPhase(access.work, queue_commit, resolver)
