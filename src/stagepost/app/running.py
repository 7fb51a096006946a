"""Putting an app's stages, a thread's access and its surroundings together into the one stage transaction."""

from __future__ import annotations

from typing import cast

from stagepost.app.app import App
from stagepost.app.modes import modes_over
from stagepost.app.settings import is_postgres
from stagepost.app.stores import Access
from stagepost.flow.errors import DeclarationError
from stagepost.transaction.attempt import AfterCommit, StageTransaction
from stagepost.transaction.demarcation import Demarcation
from stagepost.transaction.outbox import InboxOutbox
from stagepost.transaction.post import Post
from stagepost.transaction.relay import Relay
from stagepost.transaction.seams import DecidingSession, Patience, PreparingSession, Watch
from stagepost.transaction.single import Single
from stagepost.transaction.stage import Mode
from stagepost.transaction.steps import StepListener
from stagepost.transaction.two_phase import Doubts, TwoPhase


def stage_transaction(
    app: App,
    access: Access,
    *,
    node: str,
    watch: Watch,
    patience: Patience,
    after_commit: AfterCommit,
    listener: StepListener | None = None,
) -> StageTransaction:
    """Raises ``DeclarationError`` where a stage's mode cannot keep its promise on the app's databases."""
    post = post_of(app, access, node, listener)
    modes = modes_of(app)
    demarcations = {mode: _demarcation(app, mode, access, post) for mode in set(modes.values())}
    return StageTransaction(
        app.stages(),
        post,
        {address: demarcations[mode] for address, mode in modes.items()},
        random=app.random,
        limits=app.limits,
        watch=watch,
        patience=patience,
        after_commit=after_commit,
        running=app.running,
        write_apart=app.write if is_postgres(app.database) else None,
    )


def modes_of(app: App) -> dict[str, Mode]:
    """Of each stage, by its address. Raises ``DeclarationError``: ask before anything is opened."""
    return modes_over(app.stages(), app.database, app.transport)


def check_places(app: App) -> None:
    """What only the databases know of the modes: asked once, before anything runs. Raises ``DeclarationError`` and
    ``StoreError``."""
    if app.transport is None:
        return
    access = app.access()
    try:
        if "two_phase" in modes_of(app).values():
            _check_can_prepare(app, access)
    finally:
        access.close()


def _check_can_prepare(app: App, access: Access) -> None:
    if cast(PreparingSession, access.session).prepared_max == 0:
        raise DeclarationError(
            f"demarcation='two_phase' prepares transactions in {app.store.url}, whose server allows none. Set "
            "max_prepared_transactions there to at least the number of stage threads, and restart it."
        )


def relay_of(app: App, access: Access, node: str) -> Relay | None:
    """None for an app whose queue is in the database of its data: it has nothing to relay."""
    if app.transport is None:
        return None
    return Relay(access.work, post_of(app, access, node), doubts_of(app, access, node))


def post_of(app: App, access: Access, node: str, listener: StepListener | None = None) -> Post:
    return Post(access.session, access.transport, app.clock, node, listener or app.listener)


def doubts_of(app: App, access: Access, node: str) -> Doubts | None:
    """None for an app that has no stage of the mode ``two_phase``: it leaves nothing in doubt."""
    if app.business is None or "two_phase" not in modes_of(app).values():
        return None
    work, queue = cast(DecidingSession, access.work), cast(PreparingSession, access.session)
    return Doubts(work, queue, post_of(app, access, node), app.business.identity.replace(" ", "."))


def _demarcation(app: App, mode: Mode, access: Access, post: Post) -> Demarcation:
    match mode:
        case "single":
            return Single(post)
        case "outbox":
            return InboxOutbox(access.work, post)
        case "two_phase":
            work, queue = cast(DecidingSession, access.work), cast(PreparingSession, access.session)
            _check_can_prepare(app, access)
            doubts = doubts_of(app, access, post.node)
            assert doubts is not None
            return TwoPhase(work, queue, post, doubts)
