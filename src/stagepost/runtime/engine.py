"""The engine of an app: all that its runners need, below the declarations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import cached_property
from random import Random
from typing import Any

from stagepost.flow.clock import Clock
from stagepost.flow.effects import Effect
from stagepost.flow.errors import DeclarationError
from stagepost.flow.ids import RandomIds
from stagepost.flow.run import Limits
from stagepost.flow.target import Target
from stagepost.liveness.detector import PAUSED_AFTER_SECONDS, FailureDetector
from stagepost.liveness.incarnation import registration
from stagepost.ports.broker import Broker
from stagepost.ports.broker_registry import broker_driver_of
from stagepost.ports.liveness import Incarnation
from stagepost.ports.session import Session
from stagepost.ports.store import Store
from stagepost.runtime.access import Access
from stagepost.runtime.back_pressure import OUTBOUND_MAX
from stagepost.runtime.connections import Connections, ConnectionUsage, longest_first
from stagepost.runtime.databases import Databases
from stagepost.runtime.direct_starter import DirectStarter
from stagepost.runtime.flow_starter import FlowStarter
from stagepost.runtime.modes import (
    check_clearing,
    check_edge,
    check_effects,
    check_starts,
    may_call_effects,
    modes_over,
)
from stagepost.runtime.owners import Owners
from stagepost.runtime.pool import Pool
from stagepost.transaction.effects import EffectLog
from stagepost.transaction.enqueueing import WITHOUT_BROKER, BrokerRouting, Routing
from stagepost.transaction.scopes import Scopes
from stagepost.transaction.sent_marks import Clearing
from stagepost.transaction.sinks import SinkFactory
from stagepost.transaction.stage import DIRECT, Mode, Stage
from stagepost.transaction.steps import EdgeListener, StepListener, unobserved_edge
from stagepost.transaction.unit_of_work import UnitOfWork
from stagepost.transaction.user_sessions import UserSessions

# The connections of the log of effects. Each is in use for a short commit, so a few serve all threads of a process.
EFFECT_SESSIONS_MAX = 4


class Engine:
    """An app's stages and databases, with the clock, the randomness, the ids and the limits of their runs.

    ``stages``   returns the stages by their addresses. Raises ``DeclarationError`` for an endpoint without stages.
    ``edge_listener``  observes the steps of receiver and dispatcher, for tests
    ``running``  the unit of work of the stage that runs in this thread or task
    ``retention``  returns the declared hours by scope: see ``ports.retention``. Raises ``DeclarationError``
    ``clearing``  how inbox rows are marked whose messages were sent
    ``starts_directly``  flows start in the mode ``best_effort``
    ``is_local``  False sends every message over the broker, also those to stages of this app
    ``scopes``   opens the services of each envelope; None for an app without services
    ``effects``  the declared effects, by their names
    ``remotes``  the endpoints of other services that the app has named, by their addresses
    ``user_sessions``  makes the sessions of handlers; None for SQLAlchemy's
    ``sinks``    the factories of the sinks around every stage, in the order of their registration
    ``outbound_max``  receiving stops while so many outbound rows wait
    ``test_of``  the app's own databases, for the engine of a test. It has no broker, so all messages stay in its store

    An ``App`` declares the stages. Workers, Spark's tasks, the edge and the commands run them through this.
    """

    def __init__(
        self,
        name: str,
        databases: Databases,
        endpoints: Mapping[str, Target[Any, Any]],
        stages: Callable[[], Mapping[str, Stage]],
        *,
        clock: Clock,
        random: Random,
        limits: Limits,
        listener: StepListener,
        connections_max: int | None,
        sinks: Sequence[SinkFactory],
        scopes: Scopes | None,
        effects: Mapping[str, Effect[Any, Any]],
        remotes: Mapping[str, Target[Any, Any]],
        user_sessions: UserSessions | None,
        retention: Callable[[], Mapping[str, int]] = dict,
        clearing: Clearing = "worker",
        is_local: bool = True,
        outbound_max: int = OUTBOUND_MAX,
        starts_directly: bool = False,
        test_of: Databases | None = None,
    ) -> None:
        self.name = name
        self.databases = databases
        self.stages = stages
        self._endpoints = endpoints
        self._remotes = remotes
        self.clock = clock
        self.random = random
        self.ids = RandomIds(clock, random)
        self.limits = limits
        self.listener = listener
        self.sinks = sinks
        self.scopes = scopes
        self.effects = effects
        self._has_checked_apart = False
        self.user_sessions = user_sessions
        self.running: ContextVar[UnitOfWork | None] = ContextVar(f"stagepost.{name}.running", default=None)
        self._is_local = is_local
        self.outbound_max = outbound_max
        self._starts_directly = starts_directly
        self._test_of = test_of
        self.retention = retention
        self.clearing = clearing
        self.edge_listener: EdgeListener = unobserved_edge
        self.flow_starter = FlowStarter(databases, self.modes, clock, connections_max, lambda: self.routing)
        if starts_directly:
            pool = self.flow_starter.pool
            self.flow_starter.direct = DirectStarter(self.broker, pool, clock, lambda: self._routed_abroad)
        self._usages: list[Callable[[], ConnectionUsage | None]] = []

    @property
    def store(self) -> Store:
        """The store of the messages: see ``Databases.store``."""
        return self.databases.store

    @cached_property
    def routing(self) -> Routing:
        """The routing of new messages, found once: all stages are declared by then. Raises ``DeclarationError``."""
        if self.databases.broker is None:
            return WITHOUT_BROKER
        direct = frozenset(address for address, mode in self.modes().items() if mode in DIRECT)
        return BrokerRouting(frozenset(self.stages()), lambda: self.store_uuid, is_local=self._is_local, direct=direct)

    @cached_property
    def _routed_abroad(self) -> Routing:
        return BrokerRouting(frozenset(self.stages()), lambda: self.store_uuid, is_local=False)

    def broker(self) -> Broker:
        """Return the broker of an app that has one. Raises ``DeclarationError``."""
        url = self.databases.broker
        assert url is not None, "only an app with a broker has an edge"
        return broker_driver_of(url).broker(url, self.clock, self.random)

    def check_apart(self) -> None:
        """Check the commits that need not wait for stages, once and before any stage has a transaction open.

        Opens the log of effects, if the app has effects. Raises ``StoreError``, also for one of two files that was
        restored without the other.
        """
        if self._has_checked_apart:
            return
        if self.effects:
            self.store.apart.session().close()
        self.databases.renumber()
        self._has_checked_apart = True

    @property
    def effect_log(self) -> EffectLog | None:
        """The log of effects; None for an app without effects. It opens at its first use."""
        return self._effect_log if self.effects else None

    def close_effect_log(self) -> None:
        """Close the idle sessions of the log of effects, if it was opened."""
        if "_effect_log" in vars(self):
            self._effect_log.close()

    @cached_property
    def _effect_log(self) -> EffectLog:
        pool: Pool[Session] = Pool(
            self.store.apart.session, self.clock, EFFECT_SESSIONS_MAX, purpose="the log of effects"
        )
        stages, modes = self.stages(), self.modes()
        return EffectLog(
            self.effects,
            frozenset(each for each, stage in stages.items() if may_call_effects(stage, modes[each])),
            max(stage.time_limit_seconds for stage in stages.values()),
            pool.taken,
            pool.close,
            self.clock,
            Owners(self.detector).is_alive,
        )

    @cached_property
    def store_uuid(self) -> str:
        """The uuid by which a broker knows the store. Raises ``StoreError``, and ``CapabilityMissing``."""
        with closing(self.store.session()) as session:
            return session.edge.store()

    def access(self) -> Access:
        """Open the sessions of one thread, which closes them. Raises ``DeclarationError`` and ``StoreError``."""
        return self.databases.access(self.clock)

    def target(self, address: str) -> Target[Any, Any]:
        """Return the app's endpoint of that name. Raises ``DeclarationError``, which names the existing ones."""
        try:
            return self._endpoints[address]
        except KeyError:
            known = ", ".join(sorted(self._endpoints)) or "none"
            raise DeclarationError(
                f"app {self.name!r} has no endpoint {address!r}; it has: {known}. Was the module that declares it "
                "imported?"
            ) from None

    def target_anywhere(self, address: str) -> Target[Any, Any]:
        """Return an endpoint of the app, or of another service that it has named. Raises as ``target`` does."""
        remote = self._remotes.get(address)
        return self.target(address) if remote is None else remote

    def batches(self) -> dict[str, int]:
        """Return, by stage, how many messages may share a transaction. Raises as ``stages`` does."""
        return {address: stage.batch for address, stage in self.stages().items()}

    def modes(self) -> dict[str, Mode]:
        """Return the mode of each stage by its address.

        Raises ``DeclarationError`` where the databases cannot keep its promise. It opens no database.
        """
        stages, databases = self.stages(), self.databases
        if self._starts_directly:
            check_starts(self.name, databases.broker, databases.queue)
        check_edge(stages, databases.broker, databases.queue or databases.database, is_local=self._is_local)
        check_clearing(self.name, self.clearing, databases.queue)
        has_broker = databases.broker is not None or self._leaves_broker_out(stages)
        modes = modes_over(stages, databases.database, databases.queue, has_broker=has_broker)
        check_effects(self.effects, stages, modes, databases.queue or databases.database)
        return modes

    def _leaves_broker_out(self, stages: Mapping[str, Stage]) -> bool:
        """Say whether this is a test of an app with a broker. A stage of a direct mode may get it from the settings."""
        if self._test_of is None:
            return False
        return self._test_of.declared_broker is not None or any(each.mode in DIRECT for each in stages.values())

    def incarnate(self, node: str, *, slots: int = 1) -> Incarnation:
        """Enter a new incarnation of the app.

        Raises ``StoreUnavailable``, and ``DeclarationError`` for a store that ends with its process.
        """
        batched = [stage for stage, batch in self.batches().items() if batch > 1]
        registry = self.store.liveness(self.clock)
        return registry.enter(registration(self.name, node, self.ids, self.clock, slots=slots, batched=batched))

    def detector(
        self, app: str | None = None, *, paused_after_seconds: float = PAUSED_AFTER_SECONDS
    ) -> FailureDetector:
        """Return a failure detector for the incarnations of this app, or of ``app``."""
        return FailureDetector(
            self.store.liveness(self.clock), app or self.name, self.clock, paused_after_seconds=paused_after_seconds
        )

    def connections(self) -> Connections:
        """Return the use of this process's connections to the stages' database, by flow starters and stage threads."""
        pool = self.flow_starter.pool.figures()
        of_threads = [usage() for usage in tuple(self._usages)]
        return replace(
            pool,
            size=pool.size + len(of_threads),
            holders=longest_first([*pool.holders, *(each for each in of_threads if each is not None)]),
        )

    @contextmanager
    def counting(self, usage: Callable[[], ConnectionUsage | None]) -> Iterator[None]:
        """Count one more connection while the block lasts. ``usage`` returns its present use, None while it is idle."""
        self._usages.append(usage)
        try:
            yield
        finally:
            self._usages.remove(usage)
