"""The app: what a service declares, and the way in for whatever comes from outside."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any, ClassVar, overload

from stagepost.app.asking import ReplyFuture, ReplyListener, check_may_ask, request_of
from stagepost.app.connections import Connections, ConnectionUsage, longest_first
from stagepost.app.databases import Databases
from stagepost.app.endpoints import (
    EndpointDecorator,
    LocalEndpoint,
    StagedEndpoint,
    Terms,
    check_address,
    check_subscriber,
    check_time_limit,
    remote,
)
from stagepost.app.flow_starter import FlowStarter, told_as_initiation_errors
from stagepost.app.modes import modes_over
from stagepost.app.settings import Place
from stagepost.app.signatures import names_where_declared
from stagepost.app.stores import Access
from stagepost.app.subscriptions import Subscriptions
from stagepost.flow.clock import Clock, SystemClock
from stagepost.flow.codec import check_record
from stagepost.flow.context import DEPTH_MAX, HOPS_MAX, Limits
from stagepost.flow.errors import (
    AlreadyStarted,
    DeclarationError,
    IllegalCall,
)
from stagepost.flow.ids import RandomIds
from stagepost.flow.initiation import Acceptance, Initiation, Started, Verdict
from stagepost.flow.target import M, R, Target, Topic
from stagepost.ports.store import Store
from stagepost.ports.subscriptions import Subscription
from stagepost.recovery.pausing import PAUSE_AFTER
from stagepost.recovery.redelivery import Redelivery
from stagepost.transaction.stage import Mode, Stage
from stagepost.transaction.steps import StepListener, unobserved
from stagepost.transaction.unit_of_work import UnitOfWork

TIME_LIMIT_SECONDS = 600.0


class App:
    """A service: its name, its endpoints, and its database.

    ``database``    a URL; else ``STAGEPOST_DATABASE``, else ``stagepost.toml``, else ``sqlite:///stagepost.db``
    ``queue``       a URL of the queue's database, where that is not the stages' own: another service's database, or
                    one for messages; else ``STAGEPOST_QUEUE``, else ``stagepost.toml``, else ``database``
    ``mode``        the transaction mode of all stages that do not set their own: ``single`` where queue and data are
                    in one database, ``outbox`` or ``two_phase`` where they are in two; by default ``single`` or
                    ``outbox``: see docs/transactions.md
    ``redelivery``  for all stages that have none of their own
    ``time_limit``  of one attempt, in seconds or as a timedelta, likewise; ten minutes unless it is said
    ``pause_after``  a stage pauses when so many messages failed at it one after the other, likewise; ten unless it is
                    said, None or 0 for never: see docs/operating.md
    ``connections_max``  how many connections starting flows may take at a time; more callers wait. Unbounded unless it
                    is said: as many as there are calls under way
    ``max_hops``, ``max_depth``  what a flow may pass and stack before it is taken for a circle
    ``allow``       settings of a PostgreSQL server that void a promise, and are refused otherwise: ``fsync_off``,
                    ``full_page_writes_off``, ``unlogged_tables``; also ``STAGEPOST_ALLOW``, with commas between them
    ``clock``, ``random``, ``listener``  time, chance and an observer of the transaction's steps, for tests and replays

    Declaring is for one thread, at import. Starting flows is for any.
    """

    reply_listener_type: ClassVar[type[ReplyListener]]

    def __init__(
        self,
        name: str,
        *,
        database: str | None = None,
        queue: str | None = None,
        mode: Mode | None = None,
        redelivery: Redelivery | None = None,
        time_limit: float | timedelta = TIME_LIMIT_SECONDS,
        pause_after: int | None = PAUSE_AFTER,
        connections_max: int | None = None,
        max_hops: int = HOPS_MAX,
        max_depth: int = DEPTH_MAX,
        allow: Collection[str] = (),
        clock: Clock | None = None,
        random: Random | None = None,
        listener: StepListener = unobserved,
    ) -> None:
        self.name = check_address(name, "an app")
        self.limits = Limits(check_count("max_hops", max_hops), check_count("max_depth", max_depth))
        self.clock: Clock = clock or SystemClock()
        self.random = random or Random()  # noqa: S311 - jitter and ids, no secrets
        self.ids = RandomIds(self.clock, self.random)
        self.listener = listener
        self.running: ContextVar[UnitOfWork | None] = ContextVar(f"stagepost.{name}.running", default=None)
        self._terms = Terms(Redelivery(), check_time_limit(time_limit)).overridden(
            redelivery, None, mode, 0 if pause_after is None else pause_after, None
        )
        self._endpoints: dict[str, LocalEndpoint[Any, Any]] = {}
        self._addresses: dict[str, str] = {}
        self._topics: dict[str, Topic[Any]] = {}
        self._subscriptions = Subscriptions()
        self._databases = Databases(name, database, queue, allow, self._subscriptions)
        self._reply_listener: ReplyListener | None = None
        self._listens = threading.Lock()
        self._flow_starter = FlowStarter(
            self._databases,
            lambda: modes_over(self.stages(), self.database, self.queue),
            self.clock,
            lambda: self.node("app"),
            None if connections_max is None else check_count("connections_max", connections_max),
        )
        self._holdings: list[Callable[[], ConnectionUsage | None]] = []

    # Declaring

    @overload
    def staged(
        self,
        name: str,
        *,
        redelivery: Redelivery | None = None,
        time_limit: float | timedelta | None = None,
        mode: Mode | None = None,
        pause_after: int | None = None,
        batch: int | None = None,
    ) -> StagedEndpoint[Any, Any]: ...
    @overload
    def staged(
        self,
        name: str,
        *,
        reply: type[R],
        redelivery: Redelivery | None = None,
        time_limit: float | timedelta | None = None,
        mode: Mode | None = None,
        pause_after: int | None = None,
        batch: int | None = None,
    ) -> StagedEndpoint[Any, R]: ...
    def staged(
        self,
        name: str,
        *,
        reply: type[R] | None = None,
        redelivery: Redelivery | None = None,
        time_limit: float | timedelta | None = None,
        mode: Mode | None = None,
        pause_after: int | None = None,
        batch: int | None = None,
    ) -> StagedEndpoint[Any, Any]:
        """An endpoint of several stages; put ``@endpoint.stage`` above each handler, in order.

        ``reply`` is needed only where no stage's return annotation says what the endpoint replies with. ``batch`` is
        how many messages of a stage may share a transaction, in mode ``single``; 1 unless it is said: see
        docs/transactions.md.
        Raises ``DeclarationError``.
        """
        check_address(name)
        endpoint: StagedEndpoint[Any, Any] = StagedEndpoint(
            name, reply, self._terms.overridden(redelivery, time_limit, mode, pause_after, batch), self._reserve
        )
        self._check_new(name)
        self._endpoints[name] = endpoint
        return endpoint

    def endpoint(
        self,
        name: str,
        *,
        redelivery: Redelivery | None = None,
        time_limit: float | timedelta | None = None,
        mode: Mode | None = None,
        pause_after: int | None = None,
        batch: int | None = None,
    ) -> EndpointDecorator:
        """An endpoint of one stage: put it above its handler. Raises ``DeclarationError``."""
        check_address(name)
        self._check_new(name)
        terms = self._terms.overridden(redelivery, time_limit, mode, pause_after, batch)
        return EndpointDecorator(name, terms, self._reserve, names_where_declared(), self._keep)

    def remote(self, name: str, message: type[M], reply: type[R] | None = None) -> Target[M, R]:
        """Somebody else's endpoint, typed, to send to or to request from. Raises ``DeclarationError``."""
        return remote(name, message, reply)

    def topic(self, name: str, message: type[M]) -> Topic[M]:
        """What is published to it goes to every subscriber, of whatever app on the same database.

        Whoever publishes and whoever subscribes declares it, with the same type. Raises ``DeclarationError``.
        """
        check_address(name, "a topic")
        check_record(f"the message of {name}", message)
        topic = self._topics.setdefault(name, Topic(name, message))
        if topic.message_type is not message:
            raise DeclarationError(
                f"topic {name!r} is declared twice: for a {topic.message_type.__qualname__} and for a "
                f"{message.__qualname__}. Give one of them another name."
            )
        return topic

    def subscribe(
        self,
        topic: Topic[Any],
        name: str,
        *,
        redelivery: Redelivery | None = None,
        time_limit: float | timedelta | None = None,
        mode: Mode | None = None,
        pause_after: int | None = None,
        batch: int | None = None,
    ) -> EndpointDecorator:
        """An endpoint of one stage that gets a copy of whatever is published to ``topic``: put it above its handler.

        It does from the moment when its app first opened the store, until ``stagepost unsubscribe`` ends that.
        Raises ``DeclarationError``.
        """
        if not isinstance(topic, Topic):
            raise DeclarationError(
                f"{topic!r} is no topic: write @app.subscribe(prices, {name!r}), with prices = app.topic(name, type)."
            )
        check_address(name, "a subscriber")
        self._check_new(name)
        terms = self._terms.overridden(redelivery, time_limit, mode, pause_after, batch)

        def keep(subscriber: LocalEndpoint[Any, Any]) -> None:
            check_subscriber(topic, subscriber)
            self._keep(subscriber)
            self._subscriptions.declare(Subscription(topic.name, name, self.name))

        return EndpointDecorator(name, terms, self._reserve, names_where_declared(), keep)

    def stages(self) -> dict[str, Stage]:
        """Every stage by its address. Raises ``DeclarationError`` for an endpoint that has none."""
        return {stage.address: stage for endpoint in self._endpoints.values() for stage in endpoint.stages()}

    def batches(self) -> dict[str, int]:
        """How many messages of each stage may share a transaction. Raises as ``stages`` does."""
        return {address: stage.batch for address, stage in self.stages().items()}

    def target(self, address: str) -> Target[Any, Any]:
        """This app's endpoint of that name. Raises ``DeclarationError`` naming those that exist."""
        try:
            return self._endpoints[address]
        except KeyError:
            known = ", ".join(sorted(self._endpoints)) or "none"
            raise DeclarationError(
                f"app {self.name!r} has no endpoint {address!r}; it has: {known}. Was the module that declares it "
                "imported?"
            ) from None

    # Starting flows

    def start(
        self,
        target: Target[M, Any],
        message: M,
        *,
        flow_id: str,
        message_id: str | None = None,
        reply_to: Target[Any, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
        delay: float = 0,
    ) -> Started:
        """Start one flow, in a transaction of its own, and say whether it is new: see ``Initiation.send``.

        When it returns, the message is on the disk. Raises ``IdConflict`` where the id stood for other content,
        ``NothingSent`` where nothing was committed, ``OutcomeUnknown`` where that cannot be told; trying again with
        the same ids is always safe.
        """
        with self.initiate() as out:
            started = out.send(
                target,
                message,
                flow_id=flow_id,
                message_id=message_id,
                reply_to=reply_to,
                properties=properties,
                delay=delay,
            )
        return started

    def request(
        self,
        target: Target[M, R],
        message: M,
        *,
        flow_id: str,
        message_id: str | None = None,
        properties: Mapping[str, Any] | None = None,
        connection: object = None,
    ) -> ReplyFuture[R]:
        """Start one flow, as ``start`` does, and wait for its reply here: ``app.request(…).result(timeout=5)``.

        The reply comes to this process alone. Raises ``AlreadyStarted`` where the flow was started before: its reply
        goes, or went, to whoever did that. Refused inside a stage, and with a ``connection``.
        """
        check_may_ask(target, is_in_stage=self.running.get() is not None, connection=connection)
        with told_as_initiation_errors():
            listener = self._listening()
        token = self.ids.mint()
        wanted = request_of(
            target,
            message,
            listener.address,
            token,
            flow_id=flow_id,
            message_id=message_id,
            properties=properties,
            node=self.node("app"),
            now=self.clock.now(),
        )
        asked = ReplyFuture(flow_id, wanted.key, target, token)
        listener.expect(asked)
        (verdict,) = self.write([wanted])
        if verdict.outcome != "started":
            raise AlreadyStarted(
                f"{target.address} was asked this before, in flow {flow_id!r}: nothing was started now, and the reply "
                "goes to the one that asked first. Use another flow_id to ask anew, or have the flow write down what "
                f"came of it. See: stagepost trace {flow_id}",
                [wanted.key],
            )
        return asked

    def initiate(self, *, connection: object = None, independent: bool = False) -> Initiation:
        """``with app.initiate() as out: out.send(…)``: several flows that start together or not at all.

        They start in a transaction of their own when the block ends. With ``connection=`` (a ``sqlite3.Connection`` or
        ``psycopg.Connection`` to the app's database) they are written to that connection's transaction and start when
        its owner commits; on one in autocommit mode they start at once. Inside a stage of this app they join the
        stage's transaction, unless they are ``independent`` of it: see ``Context.initiate``.
        """
        running = self.running.get()
        if connection is not None:
            if running is not None:
                raise IllegalCall(
                    "initiate(connection=…) was called inside a stage, which has a transaction of its own. "
                    "Use ctx.initiate() there."
                )
            return Initiation(
                self.node("app"), self.clock, lambda wanted: self._flow_starter.write_joined(connection, wanted)
            )
        if running is not None:
            return running.initiate(independent=independent)
        return Initiation(self.node("app"), self.clock, self.write)

    # For those who run it

    @property
    def database(self) -> str:
        """The URL in use."""
        return self._databases.database

    @database.setter
    def database(self, url: str) -> None:
        self._databases.database = url

    @property
    def queue(self) -> str | None:
        """The URL of what carries the messages, where that is not the database."""
        return self._databases.queue

    @property
    def place(self) -> Place:
        """Where others find it, from any folder. Raises what opening it raises; set to where the process that started
        this one has it, ``DeclarationError`` where it is open elsewhere."""
        return self._databases.place

    @place.setter
    def place(self, place: Place) -> None:
        self._databases.place = place

    @property
    def store(self) -> Store:
        """Where the messages are, with their history: opened when it is first asked for; then it is told of
        subscriptions. Raises ``DeclarationError`` and ``StoreError``."""
        return self._databases.store

    @property
    def business(self) -> Store | None:
        """Where the stages' data is, with inbox and outbox; None where that is where the messages are.

        Opened without the other one, whose server may be away: flows are started all the same. Raises
        ``DeclarationError`` and ``StoreError``.
        """
        return self._databases.business

    def access(self, *, is_pinned: bool = True) -> Access:
        """A session and a queue of their own, for one thread; close the session when done.

        Unless ``is_pinned``, several threads may use it, one at a time.
        """
        return self._databases.access(self.clock, is_pinned=is_pinned)

    def connections(self) -> Connections:
        """Who in this process has a connection to the stages' database at this moment, and who waits for one: those who
        start flows, and the threads that run stages."""
        pool = self._flow_starter.pool.figures()
        of_threads = [holding() for holding in tuple(self._holdings)]
        return replace(
            pool,
            size=pool.size + len(of_threads),
            holders=longest_first([*pool.holders, *(each for each in of_threads if each is not None)]),
        )

    @contextmanager
    def counting(self, holding: Callable[[], ConnectionUsage | None]) -> Iterator[None]:
        """While the block lasts, ``connections`` has one more, which is in use whenever ``holding`` says by whom."""
        self._holdings.append(holding)
        try:
            yield
        finally:
            self._holdings.remove(holding)

    def close(self) -> None:
        """Close the connections that starting flows has left open; they are made again when they are needed.

        Who waits for a reply is told that none will come here.
        """
        with self._listens:
            listener, self._reply_listener = self._reply_listener, None
        if listener is not None:
            listener.close()
        self._flow_starter.pool.close()

    def node(self, role: str, process: int | None = None) -> str:
        """How journal and dead letters name who did something: ``role@host:process``, by default this process."""
        return f"{role}@{socket.gethostname()}:{process or os.getpid()}"

    def _listening(self) -> ReplyListener:
        with self._listens:
            if self._reply_listener is not None and not self._reply_listener.is_listening:
                self._reply_listener.close()
                self._reply_listener = None
            if self._reply_listener is None:
                self._reply_listener = self.reply_listener_type(self)
            return self._reply_listener

    def _reserve(self, address: str, place: str) -> None:
        if address in self._addresses:
            raise DeclarationError(
                f"{address!r} is declared twice: at {self._addresses[address]} and at {place}. Give one of them "
                "another name."
            )
        self._addresses[address] = place

    def _check_new(self, name: str) -> None:
        if name in self._endpoints:
            place = self._addresses.get(name, "a place without stages yet")
            raise DeclarationError(
                f"endpoint {name!r} is declared twice; first at {place}. Give one of them another name."
            )

    def _keep(self, endpoint: LocalEndpoint[Any, Any]) -> None:
        self._endpoints[endpoint.address] = endpoint

    def write(self, acceptances: Sequence[Acceptance]) -> Sequence[Verdict]:
        """In a transaction of its own. Raises ``IdConflict`` and ``InitiationError``."""
        return self._flow_starter.write(acceptances)


def check_count(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise DeclarationError(f"{name} must be a whole number above 0, not {value!r}")
    return value
