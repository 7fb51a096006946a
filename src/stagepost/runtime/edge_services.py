"""The two threads at the edge of a store: one receives, one dispatches.

Each has a connection to the broker and a session of its own.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import closing, suppress

from stagepost.flow.errors import BrokerConnectionLost, BrokerError, StoreError
from stagepost.ports.broker import Broker, BrokerConnection
from stagepost.ports.session import Session
from stagepost.runtime.assembly import queue_commit_of, sweep_of
from stagepost.runtime.back_pressure import BackPressure
from stagepost.runtime.caught_up import CaughtUpWatch
from stagepost.runtime.dead_publisher import DeadPublisher
from stagepost.runtime.edge import RECONNECT_SECONDS, connected, log_away, pause_after, received
from stagepost.runtime.edge_notes import EdgeNotes
from stagepost.runtime.engine import Engine
from stagepost.runtime.service import Service
from stagepost.transaction.arrivals import Entrance
from stagepost.transaction.database_wait import log_unavailable, retried
from stagepost.transaction.dispatcher import Dispatcher
from stagepost.transaction.receiver import Receiver
from stagepost.transaction.stored_copies import InboxSweep

# How soon a commit of a sender is seen: the question whether anything was committed is cheap.
TURN_SECONDS = 0.02
# How soon a row is seen that becomes due without a commit.
POLL_SECONDS = 1.0
# How often the dispatcher looks for stored bytes whose lease has ended.
SWEEP_SECONDS = 5.0
RECEIVE_SECONDS = 0.25
PAUSE_SECONDS = 1.0

logger = logging.getLogger(__name__)


class DispatcherService(Service):
    """The dispatcher of one process. ``owner`` is the incarnation that claims the rows.

    ``is_blocked`` says that the broker takes no publications, as far as is known. ``is_connected`` says that it has a
    connection, and ``trouble`` is the error that keeps it from one. ``dispatched`` counts the messages that left.
    ``notes`` writes the view of this process into the store.
    """

    def __init__(self, engine: Engine, broker: Broker, owner: str, node: str) -> None:
        super().__init__("dispatcher", self._dispatch_until_stopped)
        self._engine = engine
        self._broker = broker
        self._owner = owner
        self._node = node
        self.is_blocked = False
        self.is_connected = False
        self.trouble = ""
        self.dispatched = 0
        self.notes: EdgeNotes | None = None

    def _dispatch_until_stopped(self) -> None:
        access = retried(logger, self._engine.access, self, (StoreError,))
        if access is None:
            return
        with closing(access):
            queue_commit = queue_commit_of(self._engine, access, self._node)
            dispatcher = Dispatcher(queue_commit, self._owner, self._engine.random, self._engine.edge_listener)
            sweep = sweep_of(self._engine, queue_commit)
            session = access.session

            def note(trouble: str) -> None:
                self.trouble = trouble
                if self.notes is not None:
                    self.notes.turn_in_an_outage(session)

            while (connection := connected(self._broker, self, logger, on_trouble=note)) is not None:
                self.is_connected = True
                with closing(connection):
                    self._dispatch(dispatcher, sweep, connection, session)
                self.is_connected = False
            retried(logger, dispatcher.finish, self, (StoreError,))
            if self.notes is not None:
                # A store that is away keeps the view. Readers leave out that of an ended process.
                with suppress(StoreError):
                    self.notes.end(session)

    def _dispatch(
        self,
        dispatcher: Dispatcher,
        sweep: InboxSweep | None,
        connection: BrokerConnection,
        session: Session,
    ) -> None:
        last = swept = -math.inf
        try:
            while self.wait(TURN_SECONDS):
                now = self._engine.clock.monotonic()
                self.is_blocked = connection.is_blocked
                try:
                    if sweep is not None and now - swept > SWEEP_SECONDS:
                        swept = now
                        sweep.turn()
                    if session.queue.changed() or now - last > POLL_SECONDS:
                        last = now
                        while dispatcher.turn(connection) and not self.is_stopped:
                            pass
                    self.dispatched = dispatcher.dispatched
                    if self.notes is not None:
                        self.notes.turn(session)
                except StoreError as error:
                    log_unavailable(logger, error, PAUSE_SECONDS)
                    self.wait(PAUSE_SECONDS)
        except BrokerConnectionLost as error:
            self.trouble = str(error)
            log_away(logger, error, RECONNECT_SECONDS)
            self.wait(RECONNECT_SECONDS)


class ReceiverService(Service):
    """The receiver of one process.

    ``is_blocked`` says whether the broker takes no publications. ``quiet_since`` is the monotonic time since which
    nothing has arrived over the present connection; None without a connection. ``trouble`` is the error that keeps it
    from one. ``fullness`` says why it receives nothing. ``arrived`` counts the messages that it settled.
    """

    def __init__(self, engine: Engine, broker: Broker, node: str, is_blocked: Callable[[], bool]) -> None:
        super().__init__("receiver", self._receive_until_stopped)
        self._engine = engine
        self._broker = broker
        self._node = node
        self._is_blocked = is_blocked
        self.quiet_since: float | None = None
        self.trouble = "it has not been connected yet"
        self.fullness = ""
        self.arrived = 0

    def _receive_until_stopped(self) -> None:
        access = retried(logger, self._engine.access, self, (StoreError,))
        if access is None:
            return
        engine, session = self._engine, access.session
        entrances = received(engine, is_direct=False)
        with closing(access), closing(DeadPublisher(self._broker)) as dead:
            queue_commit = queue_commit_of(engine, access, self._node)
            store = engine.store_uuid
            receiver = Receiver(queue_commit, entrances, store, dead.publish, engine.edge_listener)
            pressure = BackPressure(session, entrances, engine.clock, outbound_max=engine.outbound_max)
            while (connection := self._connected(entrances, store)) is not None:
                with closing(connection):
                    self._receive(receiver, pressure, connection, session, [each.address for each in entrances])
                self.quiet_since = None

    def _connected(self, entrances: Sequence[Entrance], store: str) -> BrokerConnection | None:
        def note(trouble: str) -> None:
            self.trouble = trouble

        return connected(self._broker, self, logger, entrances, store, note)

    def _receive(
        self,
        receiver: Receiver,
        pressure: BackPressure,
        connection: BrokerConnection,
        session: Session,
        addresses: Sequence[str],
    ) -> None:
        """Receive until the thread must stop, or the connection or the store is away. Nothing is kept of either."""
        self.quiet_since = self._engine.clock.monotonic()
        try:
            watch = CaughtUpWatch(session, self._node, self._broker.url, addresses, self._engine.clock)
            while not self.is_stopped:
                windows = pressure.windows(takes_publications=not self._is_blocked())
                self.fullness = pressure.fullness
                deliveries = receiver.receive(connection, windows, RECEIVE_SECONDS)
                if receiver.store(connection, deliveries):
                    self.quiet_since = self._engine.clock.monotonic()
                self.arrived = receiver.arrived
                watch.look(windows, {each.address for each in deliveries})
            receiver.stop(connection)
        except StoreError as error:
            log_unavailable(logger, error, PAUSE_SECONDS)
            self.wait(PAUSE_SECONDS)
        except BrokerError as error:
            self.trouble = str(error)
            log_away(logger, error, pause_after(error))
            self.wait(pause_after(error))
