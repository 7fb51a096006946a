"""The threads that consume from a broker directly, for stages in the modes ``best_effort`` and ``transport``."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import closing

from stagepost.flow.errors import BrokerError, StoreError
from stagepost.ports.broker import Broker, BrokerConnection, Delivery
from stagepost.ports.liveness import Incarnation
from stagepost.ports.session import Session
from stagepost.runtime.access import Access
from stagepost.runtime.assembly import queue_commit_of, runner_in
from stagepost.runtime.back_pressure import BackPressure
from stagepost.runtime.caught_up import CaughtUpWatch
from stagepost.runtime.dead_publisher import DeadPublisher
from stagepost.runtime.edge import connected, log_away, pause_after, received
from stagepost.runtime.edge_services import PAUSE_SECONDS, RECEIVE_SECONDS
from stagepost.runtime.engine import Engine
from stagepost.runtime.loop import StageThread
from stagepost.runtime.modes import check_direct, is_guarded_directly
from stagepost.runtime.prefetch import Prefetcher
from stagepost.runtime.watchdog import ThreadWatch, UsageListener
from stagepost.transaction.attempt import AfterCommit
from stagepost.transaction.attempt_monitor import AttemptMonitor
from stagepost.transaction.callbacks import CallbackPool
from stagepost.transaction.database_wait import StopSignal, log_unavailable
from stagepost.transaction.direct import BestEffort, DirectCommit, Transport
from stagepost.transaction.direct_consumer import DirectConsumer
from stagepost.transaction.inbox_guard import InboxGuard
from stagepost.transaction.mode import TransactionMode
from stagepost.transaction.receiver import Receiver
from stagepost.transaction.stage import Mode
from stagepost.transaction.steps import StepListener

# Deliveries that a thread holds of each stage. More would wait behind a slow handler while other threads are idle.
DIRECT_WINDOW = 1
# A run that drains consumes until nothing has arrived for so long.
QUIET_SECONDS = 1.0

logger = logging.getLogger(__name__)


def consumer_of(
    engine: Engine,
    access: Access,
    owner: str,
    publish_dead: Callable[[Delivery], bool],
    *,
    node: str,
    monitor: AttemptMonitor,
    stop: StopSignal,
    after_commit: AfterCommit,
    listener: StepListener,
) -> DirectConsumer:
    """Return the consumer of one thread for the app's stages in direct modes."""
    commit = DirectCommit(access.session, engine.clock, node, listener, engine.routing)
    made: dict[Mode, TransactionMode] = {"best_effort": BestEffort(commit), "transport": Transport(commit)}
    stages = engine.stages()
    guarded = BestEffort(commit, InboxGuard(access.session, engine.clock, stages))
    modes = {
        address: guarded if is_guarded_directly(stages[address], mode) else made[mode]
        for address, mode in engine.modes().items()
        if mode in made
    }
    runner = runner_in(engine, commit, modes, monitor=monitor, stop=stop, after_commit=after_commit)
    queue_commit = queue_commit_of(engine, access, node)
    entrances = received(engine, is_direct=True)
    receiver = Receiver(queue_commit, entrances, engine.store_uuid, publish_dead, engine.edge_listener)
    return DirectConsumer(receiver, runner, commit, owner)


class DirectThread(StageThread):
    """A worker's thread that consumes from the broker. It has a connection and a subscription to each stage of its own.

    ``quiet_since`` is the monotonic time since which nothing has arrived over the present connection; None without a
    connection.
    """

    def __init__(
        self,
        engine: Engine,
        broker: Broker,
        slot: int,
        incarnation: Incarnation,
        prefetcher: Prefetcher,
        callbacks: CallbackPool,
        node: str,
        go: threading.Event,
    ) -> None:
        super().__init__(engine, slot, incarnation, prefetcher, callbacks, node, go)
        self._broker = broker
        self.quiet_since: float | None = None

    @property
    def is_quiet(self) -> bool:
        """Say whether nothing runs here, and nothing has arrived for a moment."""
        since = self.quiet_since
        return since is not None and not self.is_busy and self._engine.clock.monotonic() - since > QUIET_SECONDS

    def _run_stages(self, access: Access, watch: ThreadWatch, usage: UsageListener) -> None:
        engine = self._engine
        entrances = received(engine, is_direct=True)
        pressure = BackPressure(access.session, entrances, engine.clock, outbound_max=engine.outbound_max)
        with (
            closing(DeadPublisher(self._broker)) as dead,
            closing(
                consumer_of(
                    engine,
                    access,
                    self._incarnation.owner,
                    dead.publish,
                    node=self._node,
                    monitor=watch,
                    stop=self,
                    after_commit=self._callbacks,
                    listener=usage.hear,
                )
            ) as consumer,
        ):
            while (connection := connected(self._broker, self, logger, entrances, engine.store_uuid)) is not None:
                self.quiet_since = engine.clock.monotonic()
                with closing(connection):
                    check_direct(engine.stages().values(), engine.modes(), connection.features)
                    self._consume(consumer, pressure, connection, access.session)
                self.quiet_since = None

    def _consume(
        self, consumer: DirectConsumer, pressure: BackPressure, connection: BrokerConnection, session: Session
    ) -> None:
        """Consume until the thread must stop, or the connection or the store is away."""
        try:
            watch = self._watch_of(session)
            while not self.is_stopped:
                open_addresses = pressure.windows(takes_publications=not connection.is_blocked)
                windows = dict.fromkeys(open_addresses, DIRECT_WINDOW)
                deliveries = consumer.receive(connection, windows, RECEIVE_SECONDS)
                running = {each: window for each, window in windows.items() if each not in pressure.probing}
                is_settled = consumer.handle(connection, running, deliveries) > 0
                watch.look(windows, {each.address for each in deliveries})
                if is_settled:
                    self.quiet_since = self._engine.clock.monotonic()
                    self._prefetcher.wakeup.ring()
            consumer.stop(connection)
        except StoreError as error:
            log_unavailable(logger, error, PAUSE_SECONDS)
            self.wait(PAUSE_SECONDS)
        except BrokerError as error:
            log_away(logger, error, pause_after(error))
            self.wait(pause_after(error))

    def _watch_of(self, session: Session) -> CaughtUpWatch:
        # Its session is not the one of another thread of this process, and neither are the deliveries that it holds.
        addresses = [each.address for each in received(self._engine, is_direct=True)]
        consumer = f"{self._node}/{self.name}"
        return CaughtUpWatch(session, consumer, self._broker.url, addresses, self._engine.clock)
