"""Worker threads, the very ones that worker processes run, until nothing is left."""

from __future__ import annotations

import time
from threading import Event

from stagepost import App
from stagepost.app.app import engine_of
from stagepost.flow.ids import node_name
from stagepost.runtime.loop import StageThread
from stagepost.runtime.prefetch import Prefetcher
from stagepost.transaction.callbacks import CallbackPool


def drain(app: App, threads: int = 1) -> float:
    """Seconds that it takes; not those until they are ready."""
    node = node_name("bench")
    incarnation = engine_of(app).incarnate(node, slots=threads)
    prefetcher = Prefetcher(
        engine_of(app).batches(),
        incarnation.owner,
        node,
        threads,
        engine_of(app).clock,
        is_done=lambda pending: pending.is_drained,
    )
    go = Event()
    callbacks = CallbackPool()
    crew = [StageThread(engine_of(app), slot, incarnation, prefetcher, callbacks, node, go) for slot in range(threads)]
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
