"""Finds stages at which messages wait and which no app declares, for the log of workers, ``status`` and ``doctor``."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import NamedTuple

from stagepost.app.app import App
from stagepost.app.stores import Store, StoreSession
from stagepost.flow.clock import Clock
from stagepost.flow.declaration import Declaration, Undeclared
from stagepost.liveness.proof import EVERY_APP, survey_of
from stagepost.liveness.replies import asks_only, owner_at
from stagepost.liveness.survey import Found

LOOK_SECONDS = 5.0

logger = logging.getLogger(__name__)


class Process(NamedTuple):
    """A living process that works for an app."""

    app: str
    node: str
    started_at: int


class UndeclaredStages:
    """Logs each stage once at which messages wait and which no app declares."""

    def __init__(self, app: App, session: StoreSession) -> None:
        self._app = app
        self._session = session
        self._looked_at = -math.inf
        self._told: set[str] = set()

    def look(self) -> None:
        """Look, at most every five seconds. Raises ``StoreError``."""
        now = self._app.clock.monotonic()
        if now - self._looked_at < LOOK_SECONDS:
            return
        found = undeclared(self._session, lambda: living(self._app.store, self._app.clock))
        self._looked_at = now
        for each in found:
            if each.stage not in self._told:
                logger.warning("%s", told(each), extra={"event": "stage-undeclared", "stage": each.stage})
        self._told = {each.stage for each in found}


def told(stage: Undeclared) -> str:
    """Say what is wrong, and what to do."""
    last = "" if stage.app is None else f" any longer; {stage.app!r} did"
    return (
        f"messages wait at {stage.stage}, which no app declares{last}. Start a worker of the app that it belongs to, "
        "and let that app import the module that declares it"
    )


def undeclared(session: StoreSession, processes: Callable[[], Sequence[Process]]) -> list[Undeclared]:
    """Return the stages at which messages wait and which no app declares. ``processes`` is called only where a stage
    was dropped."""
    found = [each for each in session.declarations.undeclared() if owner_at(each.stage) is None]
    at_work = processes() if any(each.dropped_at is not None for each in found) else ()
    return [each for each in found if not holders(each, at_work)]


def holders(stage: Declaration | Undeclared, processes: Iterable[Process]) -> list[Process]:
    """Return the processes that may run the stage. Those that started after the stage was dropped do not."""
    return [
        each
        for each in processes
        if each.app == stage.app and (stage.dropped_at is None or each.started_at < stage.dropped_at)
    ]


def living(store: Store, clock: Clock) -> list[Process]:
    """Return the processes at work in the store. A process lives while it holds its lock, which one look shows."""
    with closing(survey_of(store, EVERY_APP, clock)) as survey:
        return at_work(survey.look())


def at_work(found: Iterable[Found]) -> list[Process]:
    headers = [each.record.header for each in found if each.is_locked and not asks_only(each.record.header.node)]
    return [Process(each.owner.rpartition("/")[0], each.node, each.started_at) for each in headers]
