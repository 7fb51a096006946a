"""Worker threads, the very ones that worker processes run, until nothing is left."""

from __future__ import annotations

import time
from threading import Event

from stagepost import App
from stagepost.runtime.loop import StageThread
from stagepost.runtime.prefetch import Prefetcher
from stagepost.runtime.watchdog import incarnate
from stagepost.transaction.callbacks import CallbackPool


def drain(app: App, threads: int = 1) -> float:
    """Seconds that it takes; not those until they are ready."""
    node = app.node("bench")
    incarnation = incarnate(app, node, slots=threads)
    prefetcher = Prefetcher(
        app.batches(), incarnation.owner, node, threads, app.clock, is_done=lambda pending: pending.is_drained
    )
    go = Event()
    callbacks = CallbackPool()
    crew = [StageThread(app, slot, incarnation, prefetcher, callbacks, node, go) for slot in range(threads)]
    for each in crew:
        each.start()
    for each in crew:
        each.opened()
    begin = time.perf_counter()
    go.set()
    for each in crew:
        each.join(3600)
    seconds = time.perf_counter() - begin
    incarnation.close()
    app.close()
    for each in crew:
        if each.error is not None:
            raise each.error
    return seconds
