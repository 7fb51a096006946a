"""One thread that takes messages from the intake and runs them through the stage transaction."""

from __future__ import annotations

import logging
import threading

from stagepost.app.app import App
from stagepost.app.running import stage_transaction
from stagepost.app.stores import Access
from stagepost.flow.claim import Claim
from stagepost.flow.errors import StoreContention, StoreUnavailable
from stagepost.liveness.incarnation import Incarnation
from stagepost.liveness.watch import ThreadWatch
from stagepost.recovery.deadletter import causes_of, describe, handler_traceback
from stagepost.transaction.callbacks import CallbackPool
from stagepost.transaction.outcome import Abandoned, AnsweredWithFailure, Buried, Completed, Lost, Outcome, Redelivered
from stagepost.worker.intake import Intake

STORE_PAUSE_SECONDS = 1.0

logger = logging.getLogger(__name__)


class StageThread:
    """``watch`` is there once it is ready; ``error`` is what ended it, if it did not end by being told to."""

    def __init__(
        self, app: App, slot: int, incarnation: Incarnation, intake: Intake, callbacks: CallbackPool, node: str
    ) -> None:
        self._app = app
        self._slot = slot
        self._incarnation = incarnation
        self._intake = intake
        self._callbacks = callbacks
        self._node = node
        self._ready = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"stage-{slot}", daemon=True)
        self.watch: ThreadWatch | None = None
        self.error: BaseException | None = None

    def start(self) -> ThreadWatch:
        """Returns when it is ready. Raises what kept it from becoming so."""
        self._thread.start()
        self._ready.wait()
        if self.watch is None:
            assert self.error is not None
            raise self.error
        return self.watch

    def stop(self) -> None:
        """Break off waiting for a database that does not answer; the intake ends all else."""
        self._stop.set()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, seconds: float) -> bool:
        """Whether it ended within that time."""
        self._thread.join(max(seconds, 0))
        return not self._thread.is_alive()

    # transaction.seams.Patience
    def wait(self, seconds: float) -> bool:
        return not self._stop.wait(seconds)

    def _run(self) -> None:
        access: Access | None = None
        try:
            access = self._app.access()
            self.watch = ThreadWatch(self._incarnation, self._slot, self._app.clock, access.session.interrupt)
            self._ready.set()
            self._work(access, self.watch)
        except BaseException as error:  # noqa: BLE001 - the process sees it, and ends
            self.error = error
            self._ready.set()
        finally:
            if access is not None:
                access.session.close()

    def _work(self, access: Access, watch: ThreadWatch) -> None:
        transaction = stage_transaction(
            self._app, access, node=self._node, watch=watch, patience=self, after_commit=self._callbacks
        )
        while (claim := self._next(access)) is not None:
            begin = self._app.clock.monotonic()
            outcome = transaction.run(claim)
            self._intake.window.observe(self._app.clock.monotonic() - begin)
            if isinstance(outcome, Completed | AnsweredWithFailure):
                self._intake.wakeup.ring()
            log_outcome(claim, outcome)
        transaction.close()

    def _next(self, access: Access) -> Claim | None:
        while True:
            try:
                return self._intake.next(access.transport)
            except (StoreContention, StoreUnavailable) as error:
                logger.warning("waiting for the database: %s", error, extra={"event": "database-unavailable"})
                if not self.wait(STORE_PAUSE_SECONDS):
                    return None


def log_outcome(claim: Claim, outcome: Outcome) -> None:
    """A failed attempt is one line; the last one brings its stack. What went well is in the journal."""
    ids = {"message_id": claim.message_id, "flow_id": claim.flow_id, "stage": claim.stage, "attempt": claim.attempt}
    match outcome:
        case Redelivered(after, error):
            logger.warning(
                "%s failed on %s of flow %s, attempt %d, and comes again in %.1f s: %s",
                claim.stage,
                claim.message_id,
                claim.flow_id,
                claim.attempt,
                after / 1_000_000,
                describe(causes_of(error)[0]),
                extra={"event": "attempt-failed", **ids},
            )
        case Buried("refused", error):
            logger.warning(
                "%s refused %s of flow %s, now a dead letter: %s",
                claim.stage,
                claim.message_id,
                claim.flow_id,
                error,
                extra={"event": "message-dead", **ids},
            )
        case Buried(reason, error):
            logger.error(
                "%s failed on %s of flow %s, attempt %d, now a dead letter (%s)",
                claim.stage,
                claim.message_id,
                claim.flow_id,
                claim.attempt,
                reason,
                exc_info=(type(error), error, handler_traceback(error)),
                extra={"event": "message-dead", **ids},
            )
        case Lost():
            logger.warning(
                "%s gave up %s of flow %s, which another owner holds by now",
                claim.stage,
                claim.message_id,
                claim.flow_id,
                extra={"event": "lease-lost", **ids},
            )
        case Completed() | AnsweredWithFailure() | Abandoned():
            pass
        case _:
            raise AssertionError(f"an attempt cannot end as {outcome!r}")
