"""Run the threads of a worker process until no message is left."""

from __future__ import annotations

import time
from threading import Event

from stagepost import App
from stagepost.runtime.loop import StageThread
from stagepost.runtime.prefetch import Prefetcher
from stagepost.runtime.watchdog import incarnate
from stagepost.transaction.callbacks import CallbackPool


def drain(app: App, threads: int = 1) -> float:
    """Drain the app. Return the seconds that this takes, without the time until the threads are ready."""
    node = app.node("bench")
    incarnation = incarnate(app, node, slots=threads)
    prefetcher = Prefetcher(
        app.batches(), incarnation.owner, node, threads, app.clock, is_done=lambda pending: pending.is_drained
    )
    go = Event()
    callbacks = CallbackPool()
    stage_threads = [StageThread(app, slot, incarnation, prefetcher, callbacks, node, go) for slot in range(threads)]
    for each in stage_threads:
        each.start()
    for each in stage_threads:
        each.opened()
    begin = time.perf_counter()
    go.set()
    for each in stage_threads:
        each.join(3600)
    seconds = time.perf_counter() - begin
    incarnation.close()
    app.close()
    for each in stage_threads:
        if each.error is not None:
            raise each.error
    return seconds
