"""Run the threads of a worker process until no message is left."""

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
    """Drain the app. Return the seconds that this takes, without the time until the threads are ready."""
    engine = engine_of(app)
    node = node_name("bench")
    incarnation = engine.incarnate(node, slots=threads)
    prefetcher = Prefetcher(
        engine.batches(),
        incarnation.owner,
        node,
        threads,
        engine.clock,
        is_done=lambda pending: pending.is_drained,
    )
    go = Event()
    callbacks = CallbackPool()
    stage_threads = [StageThread(engine, slot, incarnation, prefetcher, callbacks, node, go) for slot in range(threads)]
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
