"""Looks whether a worker lives that can reply to this process, so that a timeout can say when none did."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from stagepost.app.app import App
from stagepost.app.asking import Asked
from stagepost.app.stores import StoreSession
from stagepost.flow.clock import to_datetime
from stagepost.liveness.proof import EVERY_APP, survey_of
from stagepost.liveness.replies import asks_only

LOOK_SECONDS = 1.0
# A worker that lived a moment ago needs no second look soon.
LIVING_SECONDS = 5.0

logger = logging.getLogger(__name__)


class Attendance:
    """Looks at the workers only for requests that have waited from one look to the next."""

    def __init__(self, app: App, session: StoreSession) -> None:
        self._app = app
        self._session = session
        self._survey = survey_of(app.store, EVERY_APP, app.clock)
        self._next_look = -math.inf
        self._waited: set[str] = set()
        self._told: set[str] = set()

    @property
    def is_to_look(self) -> bool:
        return self._app.clock.monotonic() > self._next_look

    def look(self, waiting: Sequence[Asked[Any]]) -> None:
        """Tell each request that has waited for a while whether a worker lives for it. Raises ``StoreError``."""
        self._next_look = self._app.clock.monotonic() + LOOK_SECONDS
        unanswered = [each for each in waiting if each.token in self._waited]
        self._waited = {each.token for each in waiting}
        if not unanswered:
            return
        missing = self._missing({each.address for each in unanswered})
        at = f"{to_datetime(self._app.clock.now()):%H:%M:%S} UTC"
        for each in unanswered:
            each.unattended = f"At {at} {missing[each.address]}." if each.address in missing else ""
        for address in missing.keys() - self._told:
            logger.warning(
                "a reply of %s is waited for, and %s", address, missing[address], extra={"event": "no-worker"}
            )
        self._told = set(missing)
        if not missing:
            self._next_look += LIVING_SECONDS - LOOK_SECONDS

    def _missing(self, addresses: set[str]) -> dict[str, str]:
        """Return, by address, why nothing can reply; nothing of an address for which a worker lives."""
        apps = {each.stage: each.app for each in self._session.declarations.listed()}
        with closing(self._survey) as survey:
            headers = [each.record.header for each in survey.look() if each.state != "dead"]
        living = {header.owner.rpartition("/")[0] for header in headers if not asks_only(header.node)}
        found = {}
        for address in addresses:
            app = apps.get(address)
            if app is None:
                found[address] = "no app had declared it in this store"
            elif app not in living:
                found[address] = f"no worker of app {app!r}, which declares it, was alive"
        return found
