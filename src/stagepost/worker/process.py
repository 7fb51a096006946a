"""One worker process: an incarnation, its prefetcher, its stage threads, and the loop that watches them.

The supervisor starts it as ``python -m stagepost.worker.process '<json>'``.
"""

from __future__ import annotations

import faulthandler
import logging
import math
import os
import threading
from collections.abc import Mapping, Sequence

from stagepost.flow.errors import StoreContention, StoreUnavailable
from stagepost.flow.ids import node_name
from stagepost.ports.queue import Pending
from stagepost.runtime.declarations import declare_stages, living
from stagepost.runtime.direct import DirectThread
from stagepost.runtime.edge import ROLE, broker_of
from stagepost.runtime.engine import Engine
from stagepost.runtime.housekeeper import Housekeeper
from stagepost.runtime.loop import StageThread
from stagepost.runtime.prefetch import Draining, Prefetcher
from stagepost.runtime.purge_service import PurgeService, can_purge
from stagepost.runtime.relay_service import RelayService, needs_relay
from stagepost.runtime.service import Service, StopFlag
from stagepost.runtime.watchdog import ThreadWatch, Watchdog
from stagepost.transaction.callbacks import CallbackPool
from stagepost.transaction.stage import DIRECT
from stagepost.worker.child import (
    EXIT_ABANDONED,
    EXIT_BROKEN,
    EXIT_DONE,
    EXIT_DRAINED,
    EXIT_STALLED,
    EXIT_STUCK,
    EXIT_UNAVAILABLE,
    Plan,
    log_not_started,
    run_child,
)

NAME = "worker process"
TURN_SECONDS = 0.25
# How often a worker that has drained looks for the process at the edge.
LOOK_SECONDS = 0.5
EDGE = f"{ROLE}@"
# A worker counts as broken if it is idle while claimable messages wait for this long.
NO_PROGRESS_SECONDS = 30.0

logger = logging.getLogger(__name__)


class WorkerProcess:
    """The main thread of a worker process. It gets signals, watches the other threads, and never waits for the
    database."""

    def __init__(self, engine: Engine, plan: Plan) -> None:
        self._engine = engine
        self._clock = engine.clock
        self._plan = plan
        self._waits_for_edge = plan.drain and engine.databases.broker is not None
        self._looked_at = -math.inf
        self._saw_edge = False
        self._node = node_name("worker")
        self._stopping = StopFlag()
        self._is_stopping = False
        self._exit_code = EXIT_DONE
        self._has_drained = False
        self._draining = Draining()
        shares = thread_shares(engine, plan.threads)
        own = sum(threads for _, threads in shares)
        direct = plan.threads if any(mode in DIRECT for mode in engine.modes().values()) else 0
        self._incarnation = engine.incarnate(self._node, slots=own + direct)
        self._callbacks = CallbackPool()
        self._go = threading.Event()
        self._groups: list[tuple[Prefetcher, list[StageThread]]] = []
        for stages, threads in shares:
            self._add_group(stages, threads)
        self._prefetchers = [prefetcher for prefetcher, _ in self._groups]
        self._threads = [thread for _, threads in self._groups for thread in threads]
        self._direct = [self._direct_thread(own + slot) for slot in range(direct)]
        self._housekeeper = Housekeeper(
            engine, self._prefetchers, self._incarnation, self._node, paused_after_seconds=plan.paused_after_seconds
        )
        self._relays = [RelayService(engine, self._node)] if needs_relay(engine) else []
        self._purges = [PurgeService(engine)] if can_purge(engine) else []
        self._services: list[Service] = [
            *self._threads,
            *self._direct,
            self._housekeeper,
            *self._relays,
            *self._purges,
        ]

    def _direct_thread(self, slot: int) -> DirectThread:
        # The first prefetcher hears of what it stored at once, and the others when they look for work.
        shared = self._prefetchers[0], self._callbacks, self._node, self._go
        return DirectThread(self._engine, broker_of(self._engine), slot, self._incarnation, *shared)

    def _add_group(self, stages: Mapping[str, int], threads: int) -> None:
        """Add a prefetcher and the threads that run its messages."""
        prefetcher = Prefetcher(
            stages,
            self._incarnation.owner,
            self._node,
            threads,
            self._clock,
            is_done=self._is_done if self._plan.drain else None,
            drained=self._engine.batches(),
        )
        first = sum(len(of_group) for _, of_group in self._groups)
        made = [
            StageThread(self._engine, slot, self._incarnation, prefetcher, self._callbacks, self._node, self._go)
            for slot in range(first, first + threads)
        ]
        self._groups.append((prefetcher, made))

    def run(self) -> int:
        """Run until a stop, until it has drained, or until a thread breaks. Return the exit code."""
        try:
            for thread in self._all_threads:
                thread.start()
            watches = [thread.opened() for thread in self._all_threads]
        except (StoreContention, StoreUnavailable) as error:
            log_not_started(NAME, error)
            self._incarnation.close()
            return EXIT_UNAVAILABLE
        self._go.set()
        watchdog = Watchdog(
            self._incarnation,
            watches,
            on_stuck=self._replace,
            on_orphaned=self._orphaned,
            parent=self._plan.supervisor,
        )
        watchdog.start()
        for service in (self._housekeeper, *self._relays, *self._purges):
            service.start()
        self._watch()
        if not self._stop():
            # A thread cannot be stopped, so the process exits. Its record names the abandoned and timed out messages.
            return self._exit_code or EXIT_ABANDONED
        self._callbacks.close(self._plan.grace_seconds)
        watchdog.close()
        return self._exit_code or (EXIT_DRAINED if self._has_drained else EXIT_DONE)

    def stop(self) -> None:
        """Stop in good order. At a second call, exit at once, and leave running messages for redelivery."""
        if self._is_stopping:
            self._incarnation.abandon()
            os._exit(EXIT_ABANDONED)
        self._is_stopping = True
        self._stopping.stop()

    def _is_done(self, pending: Pending) -> bool:
        is_stalled = self._draining.is_stalled(pending) and not self._is_edge_alive()
        if is_stalled:
            self._exit_code = EXIT_STALLED
        are_quiet = all(thread.is_quiet for thread in self._direct)
        self._has_drained = pending.is_drained and are_quiet and not self._is_edge_alive()
        return self._has_drained or is_stalled

    def _is_edge_alive(self) -> bool:
        """Say whether the process at the edge still runs. It ends last, because messages may arrive until then."""
        if not self._waits_for_edge:
            return False
        now = self._clock.monotonic()
        if now - self._looked_at > LOOK_SECONDS:
            self._looked_at = now
            processes = living(self._engine.store, self._clock)
            self._saw_edge = any(each.app == self._engine.name and each.node.startswith(EDGE) for each in processes)
        return self._saw_edge

    def _watch(self) -> None:
        last_progress = [self._clock.monotonic()] * len(self._groups)
        while self._stopping.wait(TURN_SECONDS) and not any(each.is_stopped for each in self._prefetchers):
            broken = next((each.error for each in self._services if each.error is not None), None)
            now = self._clock.monotonic()
            if self._waits_for_edge:
                # The end of the process at the edge changes no database.
                for each in self._prefetchers:
                    each.wakeup.ring()
            is_idle = [self._is_idle_beside_work(*each) for each in self._groups]
            last_progress = [now if not idle else since for idle, since in zip(is_idle, last_progress, strict=True)]
            if broken is not None:
                logger.critical("thread ended, replacing the process", exc_info=broken, extra={"event": "broken"})
            elif now - min(last_progress) > NO_PROGRESS_SECONDS:
                logger.critical(
                    "idle thread has taken no waiting message for %.0f s, replacing the process",
                    NO_PROGRESS_SECONDS,
                    extra={"event": "no-progress"},
                )
                faulthandler.dump_traceback()
            else:
                continue
            self._exit_code = EXIT_BROKEN
            return

    def _is_idle_beside_work(self, prefetcher: Prefetcher, threads: Sequence[StageThread]) -> bool:
        """Return whether messages wait, a thread is free, none starts or ends, and no claim waits for the database."""
        has_moved = prefetcher.has_moved()
        is_busy = sum(thread.is_busy for thread in threads) + prefetcher.blocked >= len(threads)
        return self._housekeeper.sees_work(prefetcher) and not is_busy and not has_moved

    def _stop(self) -> bool:
        """Take no more messages, give back those not begun, and let the running ones finish.

        Return False if a message still runs when the grace ends.
        """
        for prefetcher in self._prefetchers:
            prefetcher.stop()
        for service in (self._housekeeper, *self._relays, *self._purges, *self._direct):
            service.stop()
        deadline = self._clock.monotonic() + self._plan.grace_seconds
        # Each thread is joined, also after a late one, because all share one deadline. A stuck thread gets no wait.
        ended = [
            thread.join(0 if thread.is_stuck else deadline - self._clock.monotonic()) for thread in self._all_threads
        ]
        for each in (*self._relays, *self._purges):
            # Another relay sends the rows that this one has leased and not sent. Another purge goes on with this one.
            each.join(deadline - self._clock.monotonic())
        if all(ended):
            has_broken = any(thread.error is not None for thread in self._all_threads)
            has_ended = self._housekeeper.finish(
                max(deadline - self._clock.monotonic(), TURN_SECONDS), has_broken=has_broken
            )
            return has_ended and not has_broken
        for thread in self._all_threads:
            thread.stop()
        for thread in self._all_threads:
            if not thread.join(TURN_SECONDS) and thread.watch is not None and thread.is_stuck:
                thread.watch.mark_timed_out()
        self._incarnation.abandon()
        return False

    @property
    def _all_threads(self) -> list[StageThread]:
        return [*self._threads, *self._direct]

    def _replace(self, stuck: Sequence[ThreadWatch]) -> None:
        for watch in stuck:
            watch.mark_timed_out()
            claim = watch.claim
            logger.error(
                "%s exceeded its time limit on %s and does not yield, replacing the process",
                claim.stage if claim else "a stage",
                claim.message_id if claim else "a message",
                extra={"event": "stuck"},
            )
        self._exit_code = EXIT_STUCK
        self._stopping.stop()

    def _orphaned(self, reason: str) -> None:
        logger.error("stopping: %s", reason, extra={"event": "orphaned"})
        self._exit_code = EXIT_BROKEN
        self._stopping.stop()


def thread_shares(engine: Engine, threads: int) -> list[tuple[dict[str, int], int]]:
    """Return the stages of each prefetcher, with their batches, and the number of its threads.

    The first has all stages that share the threads of the process. Each stage with threads of its own has another.
    """
    batches, stages = engine.batches(), engine.stages().values()
    shared = {each.address: batches[each.address] for each in stages if each.threads is None}
    own = [({each.address: batches[each.address]}, each.threads) for each in stages if each.threads is not None]
    return [(shared, threads), *own] if shared or not own else own


def started(engine: Engine, plan: Plan) -> WorkerProcess:
    declare_stages(engine)
    return WorkerProcess(engine, plan)


if __name__ == "__main__":
    run_child(NAME, started)
