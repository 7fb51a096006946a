"""Putting an app's stages, a thread's access and its surroundings together into the one stage transaction."""

from __future__ import annotations

from stagepost.app.app import App
from stagepost.app.modes import modes_over
from stagepost.app.stores import Access
from stagepost.flow.errors import DeclarationError
from stagepost.ports.registry import driver_of
from stagepost.transaction.attempt import AfterCommit, AttemptRunner
from stagepost.transaction.attempt_monitor import AttemptMonitor
from stagepost.transaction.database_wait import StopSignal
from stagepost.transaction.mode import TransactionMode
from stagepost.transaction.outbox import InboxOutbox
from stagepost.transaction.queue_commit import QueueCommit, Single
from stagepost.transaction.relay import Relay
from stagepost.transaction.stage import Mode
from stagepost.transaction.steps import StepListener
from stagepost.transaction.two_phase import InDoubtResolver, TwoPhase


def attempt_runner(
    app: App,
    access: Access,
    *,
    node: str,
    monitor: AttemptMonitor,
    stop: StopSignal,
    after_commit: AfterCommit,
    listener: StepListener | None = None,
) -> AttemptRunner:
    """Raises ``DeclarationError`` where a stage's mode cannot keep its promise on the app's databases."""
    queue_commit = queue_commit_of(app, access, node, listener)
    modes = modes_of(app)
    made = {mode: _transaction_mode(app, mode, access, queue_commit) for mode in set(modes.values())}
    return AttemptRunner(
        app.stages(),
        queue_commit,
        {address: made[mode] for address, mode in modes.items()},
        random=app.random,
        limits=app.limits,
        monitor=monitor,
        stop=stop,
        after_commit=after_commit,
        running=app.running,
        write_apart=app.write if "concurrent_writers" in driver_of(app.database).capabilities else None,
    )


def modes_of(app: App) -> dict[str, Mode]:
    """Return the mode of each stage, by its address. Raises ``DeclarationError``: ask before anything is opened."""
    return modes_over(app.stages(), app.database, app.queue)


def check_places(app: App) -> None:
    """Check that the databases can keep the modes' promises. Call it once, before anything runs.

    Raises ``DeclarationError`` and ``StoreError``.
    """
    if app.queue is None:
        return
    access = app.access()
    try:
        if "two_phase" in modes_of(app).values():
            _check_can_prepare(app, access)
    finally:
        access.close()


def _check_can_prepare(app: App, access: Access) -> None:
    if access.session.prepared.prepared_max == 0:
        raise DeclarationError(
            f"mode='two_phase' prepares transactions in {app.store.url}, whose server allows none. Set "
            "max_prepared_transactions there to at least the number of stage threads, and restart it."
        )


def relay_of(app: App, access: Access, node: str) -> Relay | None:
    """None for an app whose queue is in the database of its data: it has nothing to relay."""
    if app.queue is None:
        return None
    return Relay(access.work, queue_commit_of(app, access, node), resolver_of(app, access))


def queue_commit_of(app: App, access: Access, node: str, listener: StepListener | None = None) -> QueueCommit:
    return QueueCommit(access.session, app.clock, node, listener or app.listener)


def resolver_of(app: App, access: Access) -> InDoubtResolver | None:
    """None for an app that has no stage of the mode ``two_phase``: it leaves nothing in doubt."""
    if app.business is None or "two_phase" not in modes_of(app).values():
        return None
    coordinator = app.business.identity.replace(" ", ".")
    return InDoubtResolver(access.work, access.session, coordinator)


def _transaction_mode(app: App, mode: Mode, access: Access, queue_commit: QueueCommit) -> TransactionMode:
    match mode:
        case "single":
            return Single(queue_commit)
        case "outbox":
            return InboxOutbox(access.work, queue_commit)
        case "two_phase":
            _check_can_prepare(app, access)
            resolver = resolver_of(app, access)
            assert resolver is not None
            return TwoPhase(access.work, queue_commit, resolver)
