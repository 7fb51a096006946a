"""Putting an app's stages, a thread's access and its surroundings together into the one stage transaction."""

from __future__ import annotations

from stagepost.app.app import App
from stagepost.app.stores import Access
from stagepost.transaction.attempt import AfterCommit, StageTransaction
from stagepost.transaction.seams import Patience, Watch


def stage_transaction(
    app: App, access: Access, *, node: str, watch: Watch, patience: Patience, after_commit: AfterCommit
) -> StageTransaction:
    return StageTransaction(
        app.stages(),
        access.session,
        access.transport,
        clock=app.clock,
        random=app.random,
        node=node,
        limits=app.limits,
        watch=watch,
        patience=patience,
        listener=app.listener,
        after_commit=after_commit,
        running=app.running,
    )
