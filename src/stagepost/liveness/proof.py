"""Where incarnations of an app prove that they live: as its store has it."""

from __future__ import annotations

from pathlib import Path

from stagepost.app.app import App
from stagepost.app.stores import Store
from stagepost.flow.clock import Clock
from stagepost.liveness.incarnation import Incarnation
from stagepost.liveness.lock_file import LockFile, LockFileSurvey
from stagepost.liveness.lock_row import LockRow, LockRowSurvey
from stagepost.liveness.survey import PAUSED_AFTER_SECONDS, Survey

EVERY_APP = "*"


def incarnate(app: App, node: str, *, slots: int = 1) -> Incarnation:
    """Raises ``StoreUnavailable``."""
    lives = app.store.lives()
    if isinstance(lives, Path):
        return LockFile(lives, app.name, node, app.ids, app.clock, slots=slots)
    batched = [stage for stage, batch in app.batches().items() if batch > 1]
    return LockRow(lives, app.name, node, app.ids, app.clock, slots=slots, batched=batched)


def survey_of(
    store: Store, app_name: str, clock: Clock, *, paused_after_seconds: float = PAUSED_AFTER_SECONDS
) -> Survey:
    lives = store.lives()
    if isinstance(lives, Path):
        return LockFileSurvey(lives, app_name, clock, paused_after_seconds)
    return LockRowSurvey(lives, app_name, clock, paused_after_seconds)
