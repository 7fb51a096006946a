"""One worker thread, the very one that worker processes run, until nothing is left."""

from __future__ import annotations

import threading
import time

from stagepost import App
from stagepost.liveness.intake import Intake
from stagepost.liveness.proof import incarnate
from stagepost.transaction.callbacks import CallbackPool
from stagepost.worker.stage_thread import StageThread


def drain(app: App) -> float:
    """Seconds that it takes; not those until it is ready."""
    node = app.node("bench")
    incarnation = incarnate(app, node)
    intake = Intake(app.batches(), incarnation.owner, node, 1, app.clock, is_done=lambda pending: pending.is_drained)
    go = threading.Event()
    thread = StageThread(app, 0, incarnation, intake, CallbackPool(), node, go)
    thread.start()
    begin = time.perf_counter()
    go.set()
    thread.join(3600)
    seconds = time.perf_counter() - begin
    incarnation.close()
    app.close()
    if thread.error is not None:
        raise thread.error
    return seconds
