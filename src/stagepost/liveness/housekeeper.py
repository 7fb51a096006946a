"""The thread that keeps house for an incarnation, with a session of its own.

It gives back what waits too long in the intake, takes over from the dead and lets replies expire that nobody waits for;
at the end it gives back the rest. It may wait for the database for as long as a slow stage holds it, which is why
neither the heartbeat nor the thread that hears signals does any of this.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable

from stagepost.app.app import App
from stagepost.app.stores import Access
from stagepost.flow.errors import StoreError
from stagepost.liveness.incarnation import Incarnation
from stagepost.liveness.intake import HELD_SECONDS_MAX, Intake
from stagepost.liveness.opening import patient_access
from stagepost.liveness.orphans import Orphans
from stagepost.liveness.proof import survey_of
from stagepost.liveness.survey import PAUSED_AFTER_SECONDS
from stagepost.liveness.takeover import Takeover

TURN_SECONDS = 0.25
SWEEP_SECONDS = 1.0
ORPHANS_SECONDS = 5.0
RECENT_SECONDS = 3 * SWEEP_SECONDS

logger = logging.getLogger(__name__)


class Housekeeper:
    """``error`` is what ended it, if it did not end by being told to. ``on_alone`` is called once the incarnation that
    this one ``needs`` has left."""

    def __init__(
        self,
        app: App,
        intake: Intake,
        incarnation: Incarnation,
        node: str,
        *,
        paused_after_seconds: float = PAUSED_AFTER_SECONDS,
        needs: str | None = None,
        on_alone: Callable[[], None] = lambda: None,
    ) -> None:
        self._app = app
        self._intake = intake
        self._owner = incarnation.owner
        self._node = node
        self._paused_after_seconds = paused_after_seconds
        self._needs = needs
        self._on_alone = on_alone
        self._stop = threading.Event()
        self._nothing_runs = threading.Event()
        self._has_broken = False
        self._thread = threading.Thread(target=self._run, name="housekeeper", daemon=True)
        self._saw_work_at = -math.inf
        self.error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def sees_work(self) -> bool:
        """Whether claimable work lay there when it last looked, not long ago."""
        return self._app.clock.monotonic() - self._saw_work_at < RECENT_SECONDS

    def stop(self) -> None:
        """Give back what was not begun."""
        self._stop.set()

    def finish(self, seconds: float | None = None, *, has_broken: bool = False) -> bool:
        """Nothing runs any more: give back whatever is still held, and end. False where that takes longer.

        Where a thread ``has_broken`` down, the message that it ran is left to those who take over: it has died.
        """
        self._has_broken = has_broken
        self._stop.set()
        self._nothing_runs.set()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            access = patient_access(self._app, self._stop)
            if access is None:
                # Whoever takes over gives back what is held.
                return
            survey = survey_of(
                self._app.store, self._app.name, self._app.clock, paused_after_seconds=self._paused_after_seconds
            )
            takeover = Takeover(self._app, access, self._node, survey)
            orphans = Orphans(self._app, access, self._owner, self._node)
            self._keep_house(access, takeover, orphans)
            self._try(lambda: self._intake.give_back(access.transport))
            self._nothing_runs.wait()
            if not self._has_broken:
                self._try(lambda: access.transport.release(access.transport.unattended(self._owner), self._node))
            survey.close()
            orphans.close()
            access.close()
        except BaseException as error:  # noqa: BLE001 - the process sees it, and ends
            self.error = error

    def _keep_house(self, access: Access, takeover: Takeover, orphans: Orphans) -> None:
        clock = self._app.clock
        # At once: it may be here in place of one that died.
        last_sweep = last_orphans = -math.inf
        while not self._stop.wait(TURN_SECONDS):
            self._try(lambda: self._intake.give_back(access.transport, held_longer_than=HELD_SECONDS_MAX))
            if clock.monotonic() - last_sweep > SWEEP_SECONDS:
                self._try(lambda: self._look(access, takeover))
                last_sweep = clock.monotonic()
            if clock.monotonic() - last_orphans > ORPHANS_SECONDS:
                self._try(orphans.sweep)
                last_orphans = clock.monotonic()

    def _look(self, access: Access, takeover: Takeover) -> None:
        takeover.sweep([self._owner])
        if self._needs is not None and self._needs not in takeover.seen:
            self._on_alone()
        if access.transport.pending(self._intake.stages).ready:
            self._saw_work_at = self._app.clock.monotonic()

    def _try(self, chore: Callable[[], object]) -> None:
        try:
            chore()
        except StoreError as error:
            # Whoever takes over does it.
            logger.warning("waiting for the database: %s", error, extra={"event": "database-unavailable"})
