"""One thread that takes messages from the intake and runs them through the stage transaction."""

from __future__ import annotations

import threading

from stagepost.app.app import App
from stagepost.app.running import stage_transaction
from stagepost.app.stores import Access
from stagepost.liveness.holding import Holding
from stagepost.liveness.incarnation import Incarnation
from stagepost.liveness.intake import Intake
from stagepost.liveness.watch import ThreadWatch
from stagepost.liveness.working import work
from stagepost.transaction.callbacks import CallbackPool


class StageThread:
    """``watch`` is there once it is ready; messages it takes when it is told to ``go``. ``error`` is what ended it, if
    it did not end by being told to."""

    def __init__(
        self,
        app: App,
        slot: int,
        incarnation: Incarnation,
        intake: Intake,
        callbacks: CallbackPool,
        node: str,
        go: threading.Event,
    ) -> None:
        self._app = app
        self._slot = slot
        self._incarnation = incarnation
        self._intake = intake
        self._callbacks = callbacks
        self._node = node
        self._go = go
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

    @property
    def is_stuck(self) -> bool:
        return self.watch is not None and self.watch.is_stuck

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
            self.watch = ThreadWatch(self._incarnation, self._slot, self._app.clock, access.work.interrupt)
            self._ready.set()
            self._go.wait()
            holding = Holding(self._thread.name, access.work, self.watch, self._app.clock, self._app.listener)
            with self._app.counting(holding.holder):
                self._work(access, self.watch, holding)
        except BaseException as error:  # noqa: BLE001 - the process sees it, and ends
            self.error = error
            self._ready.set()
        finally:
            if access is not None:
                access.close()

    def _work(self, access: Access, watch: ThreadWatch, holding: Holding) -> None:
        transaction = stage_transaction(
            self._app,
            access,
            node=self._node,
            watch=watch,
            patience=self,
            after_commit=self._callbacks,
            listener=holding.hear,
        )
        work(self._intake, access, transaction, self._app.clock, self)
        transaction.close()
