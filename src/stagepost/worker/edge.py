"""The process at the edge of a store: a receiver and a dispatcher, and the main thread that watches both.

The supervisor starts it as ``python -m stagepost.worker.edge '<json>'``. A crash here takes no running stage along.
"""

from __future__ import annotations

import logging
import os
from contextlib import closing

from stagepost.flow.errors import StoreError
from stagepost.runtime.access import Access
from stagepost.runtime.edge import check_broker
from stagepost.runtime.edge_drain import TURN_SECONDS, EdgeDrain
from stagepost.runtime.edge_threads import EdgeThreads
from stagepost.runtime.engine import Engine
from stagepost.runtime.service import StopFlag
from stagepost.transaction.database_wait import retried
from stagepost.worker.child import (
    EXIT_ABANDONED,
    EXIT_BROKEN,
    EXIT_DONE,
    EXIT_DRAINED,
    EXIT_STALLED,
    Plan,
    run_child,
)

logger = logging.getLogger(__name__)


class EdgeProcess:
    """The main thread. It hears signals, and replaces nothing: the supervisor replaces the process."""

    def __init__(self, engine: Engine, plan: Plan) -> None:
        self._engine = engine
        self._plan = plan
        self._stopping = StopFlag()
        self._exit_code = EXIT_DONE
        self._edge = EdgeThreads(engine, self._orphaned, plan.supervisor)

    def run(self) -> int:
        """Run until a stop, until the edge has drained, or until a thread breaks. Return the exit code."""
        self._edge.start()
        access = retried(logger, self._engine.access, self._stopping, (StoreError,))
        if access is not None:
            with closing(access):
                self._watch(access)
        has_ended = self._edge.stop(self._plan.grace_seconds)
        return self._exit_code or (EXIT_DONE if has_ended else EXIT_ABANDONED)

    def stop(self) -> None:
        """Stop in good order. At a second call, exit at once: claims are taken over, and deliveries come again."""
        if self._stopping.is_stopped:
            os._exit(EXIT_ABANDONED)
        self._stopping.stop()

    def _watch(self, access: Access) -> None:
        drain = EdgeDrain(self._edge.receiver, self._edge.dispatcher, list(self._engine.stages()), self._engine.clock)
        while self._stopping.wait(TURN_SECONDS):
            if self._edge.error is not None:
                logger.critical(
                    "thread ended, replacing the process", exc_info=self._edge.error, extra={"event": "broken"}
                )
                self._exit_code = EXIT_BROKEN
                return
            verdict = drain.verdict(access) if self._plan.drain else None
            if verdict is not None:
                self._exit_code = EXIT_DRAINED if verdict == "drained" else EXIT_STALLED
                return

    def _orphaned(self, reason: str) -> None:
        logger.error("stopping: %s", reason, extra={"event": "orphaned"})
        self._exit_code = EXIT_BROKEN
        self._stopping.stop()


def started(engine: Engine, plan: Plan) -> EdgeProcess:
    engine.modes()
    check_broker(engine)
    return EdgeProcess(engine, plan)


if __name__ == "__main__":
    run_child("receiver and dispatcher", started)
