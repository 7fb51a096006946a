"""The receiver and the dispatcher of one process, as an incarnation of their own.

A process under the supervisor has nothing else. On Spark they run beside the driver.
"""

from __future__ import annotations

from collections.abc import Callable

from stagepost.flow.ids import node_name
from stagepost.runtime.edge import ROLE, broker_of
from stagepost.runtime.edge_notes import EdgeNotes
from stagepost.runtime.edge_services import DispatcherService, ReceiverService
from stagepost.runtime.engine import Engine
from stagepost.runtime.service import Service
from stagepost.runtime.watchdog import Watchdog


class EdgeThreads:
    """Other processes take over the dispatcher's claims when this one dies."""

    def __init__(self, engine: Engine, on_orphaned: Callable[[str], None], parent: int | None = None) -> None:
        self._clock = engine.clock
        node = node_name(ROLE)
        self._incarnation = engine.incarnate(node)
        broker = broker_of(engine)
        self.dispatcher = DispatcherService(engine, broker, self._incarnation.owner, node)
        self.receiver = ReceiverService(engine, broker, node, lambda: self.dispatcher.is_blocked)
        self.dispatcher.notes = EdgeNotes(self.receiver, self.dispatcher, broker.url, node, engine.clock)
        self._watchdog = Watchdog(self._incarnation, on_orphaned=on_orphaned, parent=parent)

    @property
    def _services(self) -> tuple[Service, Service]:
        return self.receiver, self.dispatcher

    @property
    def error(self) -> BaseException | None:
        """The error that ended one of the threads."""
        return next((each.error for each in self._services if each.error is not None), None)

    def start(self) -> None:
        self._watchdog.start()
        for service in self._services:
            service.start()

    def stop(self, seconds: float) -> bool:
        """Stop in good order, and return whether both threads ended in time.

        The receiver stores what was pushed to it, and the dispatcher gives its claims back.
        """
        deadline = self._clock.monotonic() + seconds
        for service in self._services:
            service.stop()
        ended = [service.join(deadline - self._clock.monotonic()) for service in self._services]
        if not all(ended):
            return False
        self._watchdog.close()
        return True
