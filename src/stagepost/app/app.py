"""The app: the declarations of a service, and the way to start its flows from outside any stage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from random import Random
from typing import Any, Concatenate, Literal, Required, TypedDict, TypeVar, Unpack, overload

from stagepost.app.declared import Declared
from stagepost.app.effects import SETTLE_AFTER_SECONDS, TIMEOUT_SECONDS, declared_effect
from stagepost.app.endpoints import (
    EndpointDecorator,
    LocalEndpoint,
    StagedEndpoint,
    check_address,
    foreign_messages,
    kept_scopes_of,
    stages_of,
)
from stagepost.app.retention import DeclaredRetention, KeptScope
from stagepost.app.signatures import declared_at, names_where_declared
from stagepost.app.sinks import DeclaredSinks
from stagepost.app.terms import StageSettings, Terms, check_time_limit
from stagepost.edge.reply_future import ReplyFuture
from stagepost.edge.requester import Requester, check_may_request
from stagepost.flow.clock import Clock, SystemClock
from stagepost.flow.codec import check_record
from stagepost.flow.effects import A, Effect, Q
from stagepost.flow.errors import DeclarationError, IllegalCall
from stagepost.flow.initiation import Initiation, Started
from stagepost.flow.run import DEPTH_MAX, HOPS_MAX, Limits
from stagepost.flow.target import M, R, Target, Topic
from stagepost.ports.subscriptions import Subscription
from stagepost.recovery.pausing import PAUSE_AFTER
from stagepost.recovery.redelivery import Redelivery
from stagepost.runtime.back_pressure import OUTBOUND_MAX
from stagepost.runtime.callers_sessions import CallersSession, callers_session
from stagepost.runtime.connections import Connections
from stagepost.runtime.databases import Databases
from stagepost.runtime.engine import Engine
from stagepost.runtime.settings import ALLOWABLE, Place
from stagepost.runtime.subscriptions import NewSubscriptions
from stagepost.transaction.scopes import Scopes
from stagepost.transaction.sent_marks import Clearing, address_of_marks, marking_stage
from stagepost.transaction.sinks import SinkFactory
from stagepost.transaction.stage import Mode, Stage
from stagepost.transaction.steps import StepListener, unobserved
from stagepost.transaction.undoing import undo_stage
from stagepost.transaction.user_sessions import UserSessions

F = TypeVar("F", bound=SinkFactory)

TIME_LIMIT_SECONDS = 600.0


class RequestOptions(TypedDict, total=False):
    """The options of ``app.arequest``: those of ``app.request``, without a session."""

    flow_id: Required[str]
    message_id: str | None
    properties: Mapping[str, Any] | None


class StartOptions(RequestOptions, total=False):
    """The options of ``app.astart``: those of ``app.start``, without a session."""

    reply_to: Target[Any, Any] | None
    delay: float


class App:
    """A service: its name, its endpoints, and its database.

    ``database``    a URL. Default: ``STAGEPOST_DATABASE``, ``stagepost.toml``, ``sqlite:///stagepost.db``
    ``queue``       a URL of the queue's database, if that is not the stages' own: another service's database, or one
                    for messages. Default: ``STAGEPOST_QUEUE``, ``stagepost.toml``, ``database``
    ``broker``      a URL of a message broker, such as ``amqp://host``. It carries messages between this app's store
                    and those of other services. Default: ``STAGEPOST_BROKER``, ``stagepost.toml``, no broker. See
                    docs/brokers.md
    ``local``       False sends every message over the broker, also those to endpoints of this app
    ``outbound_max``  with a broker: receiving stops while so many messages for other services wait; default 100,000
    ``mode``        the transaction mode of all stages that do not set their own: ``single`` where queue and data are
                    in one database, ``outbox`` or ``two_phase`` where they are in two. With a broker also
                    ``best_effort``, which flows then start in too, or ``transport``: see docs/brokers.md.
                    Default: ``single`` or ``outbox``. See docs/transactions.md
    ``redelivery``  the policy of all stages that do not set their own
    ``time_limit``  the limit of one attempt, in seconds or as a timedelta, for stages that do not set their own;
                    default ten minutes
    ``pause_after``  a stage pauses after so many messages failed at it in a row; default ten, None or 0 for never.
                    See docs/operating.md
    ``connections_max``  the limit of connections for starting flows; further callers wait. Default: no limit
    ``retention``   how long ids are kept by message type, and rows by kind, such as ``{Order: "30d"}``. See
                    docs/retention.md
    ``clearing``    with ``queue=``: how the bytes that a stage sent are cleared, by the ``worker``, by a ``message``
                    or by the ``sweep``. See docs/retention.md
    ``max_hops``, ``max_depth``  the limits of a flow's hops and of its call stack, which stop a flow that runs in a
                    circle
    ``allow``       settings of a PostgreSQL server that void a promise, and are refused otherwise: ``fsync_off``,
                    ``full_page_writes_off``, ``unlogged_tables``. ``STAGEPOST_ALLOW`` has the same, with commas
    ``scopes``      where handlers get their services from, such as ``SvcsScopes(registry)``: see docs/handlers.md
    ``sessions``    the maker of the sessions of ``ctx.session``, such as ``SqlalchemySessions(maker)``; default
                    SQLAlchemy's own sessions: see docs/orm.md
    ``clock``, ``random``, ``listener``  time, randomness and an observer of the transaction's steps, for tests

    Declare in one thread, at import. Any thread may start flows.
    """

    def __init__(
        self,
        name: str,
        *,
        database: str | None = None,
        queue: str | None = None,
        broker: str | None = None,
        local: bool = True,
        outbound_max: int = OUTBOUND_MAX,
        mode: Mode | None = None,
        redelivery: Redelivery | None = None,
        time_limit: float | timedelta = TIME_LIMIT_SECONDS,
        pause_after: int | None = PAUSE_AFTER,
        connections_max: int | None = None,
        retention: Mapping[Any, str | timedelta] | None = None,
        clearing: Clearing = "worker",
        max_hops: int = HOPS_MAX,
        max_depth: int = DEPTH_MAX,
        allow: Collection[str] = (),
        scopes: Scopes | None = None,
        sessions: UserSessions | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
        listener: StepListener = unobserved,
    ) -> None:
        self._terms = Terms(Redelivery(), check_time_limit(time_limit), has_scopes=scopes is not None).overridden(
            redelivery=redelivery, mode=mode, pause_after=0 if pause_after is None else pause_after
        )
        self._endpoints: dict[str, LocalEndpoint[Any, Any]] = {}
        self._addresses: dict[str, str] = {}
        self._topics: dict[str, Topic[Any]] = {}
        self._remotes: dict[str, Target[Any, Any]] = {}
        self._retention = DeclaredRetention(retention or {})
        self._marking_at = address_of_marks(name) if clearing == "message" else None
        self._subscriptions = NewSubscriptions()
        self._sinks = DeclaredSinks()
        self._effects: dict[str, Effect[Any, Any]] = {}
        check_address(name, "an app")
        if self._marking_at is not None:
            self._addresses[check_address(self._marking_at, "a marking stage")] = "clearing='message'"
        limits = Limits(check_count("max_hops", max_hops), check_count("max_depth", max_depth))
        abroad_max = check_count("outbound_max", outbound_max)
        callers_max = None if connections_max is None else check_count("connections_max", connections_max)

        def engine_over(databases: Databases, clock: Clock, random: Random, test_of: Databases | None = None) -> Engine:
            return Engine(
                name,
                databases,
                self._endpoints,
                self._stages,
                clock=clock,
                random=random,
                limits=limits,
                listener=listener,
                connections_max=callers_max,
                is_local=local or test_of is not None,
                outbound_max=abroad_max,
                starts_directly=self._terms.mode == "best_effort" and test_of is None,
                test_of=test_of,
                retention=self._kept,
                clearing=clearing,
                sinks=self._sinks.factories,
                scopes=scopes,
                effects=self._effects,
                remotes=self._remotes,
                user_sessions=sessions,
            )

        databases = Databases(name, database, queue, allow, self._subscriptions, broker)
        self._engine_over = engine_over
        # Jitter and ids, no secrets.
        self._engine = engine_over(databases, clock or SystemClock(), random or Random())  # noqa: S311
        self._requester = Requester(self._engine)

    @property
    def name(self) -> str:
        return self._engine.name

    # Declaring

    @overload
    def staged(self, name: str, **settings: Unpack[StageSettings]) -> StagedEndpoint[Any, Any]: ...
    @overload
    def staged(self, name: str, *, reply: type[R], **settings: Unpack[StageSettings]) -> StagedEndpoint[Any, R]: ...
    def staged(
        self, name: str, *, reply: type[R] | None = None, **settings: Unpack[StageSettings]
    ) -> StagedEndpoint[Any, Any]:
        """Declare an endpoint of several stages. Put ``@endpoint.stage`` above each handler, in order.

        ``reply`` is the reply's type, needed only where no stage's return annotation names it. The settings are those
        of its stages that do not set their own. Raises ``DeclarationError``.
        """
        self._check_new(name)
        terms = self._terms.overridden(**settings)
        endpoint: StagedEndpoint[Any, Any] = StagedEndpoint(name, reply, terms, self._reserve)
        self._endpoints[name] = endpoint
        return endpoint

    def endpoint(
        self,
        name: str,
        *,
        threads: int | None = None,
        accepts: Literal["json"] | None = None,
        id_from: str | None = None,
        producer_from: str | None = None,
        producer: str | None = None,
        **settings: Unpack[StageSettings],
    ) -> EndpointDecorator:
        """Declare an endpoint of one stage. Put it above the handler.

        With ``threads`` each worker process has so many threads for this endpoint alone, so that it takes none of
        another's when it is slow.

        With ``accepts="json"`` it also takes *foreign* messages from a broker: JSON objects without our envelope.
        ``id_from`` says where the producer's own id of a message is, and ``producer_from`` where the producer's name
        is: ``header:NAME`` or ``field:NAME``. ``producer`` names the only producer in place of ``producer_from``.
        Raises ``DeclarationError``.
        """
        self._check_new(name)
        foreign = foreign_messages(name, accepts, id_from, producer_from, producer)
        terms = self._terms.overridden(**settings).with_threads(threads)
        return EndpointDecorator(name, terms, self._reserve, names_where_declared(), self._keep, foreign)

    def remote(
        self, name: str, message: type[M], reply: type[R] | None = None, *, envelope: bool = True
    ) -> Target[M, R]:
        """Name an endpoint of another app, with its types, to send to or request from. Raises ``DeclarationError``.

        With ``envelope=False`` the other service needs no Stagepost: over the broker it gets the message as JSON, and
        the ids in headers. It cannot reply.
        """
        check_address(name)
        check_record(f"the message of {name}", message)
        if reply is not None:
            check_record(f"the reply of {name}", reply)
        if not envelope and reply is not None:
            raise DeclarationError(
                f"{name} has envelope=False and a reply, but a service that sees no envelope does not know where to "
                "reply. Leave the reply out, and let it send to an endpoint with accepts='json'."
            )
        target = self._remotes[name] = Target(name, message, reply)
        target.is_bare = not envelope
        return target

    def topic(self, name: str, message: type[M]) -> Topic[M]:
        """Declare a topic. Each message published to it goes to every subscriber, of any app on the same database.

        Publishers and subscribers declare it alike, with the same type. Raises ``DeclarationError``.
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

    def subscribe(self, topic: Topic[Any], name: str, **settings: Unpack[StageSettings]) -> EndpointDecorator:
        """Declare an endpoint of one stage that gets a copy of each message published to ``topic``.

        Put it above the handler. The subscription begins when its app first opens the store, and lasts until
        ``stagepost unsubscribe``. Raises ``DeclarationError``.
        """
        if not isinstance(topic, Topic):
            raise DeclarationError(
                f"{topic!r} is no topic: write @app.subscribe(prices, {name!r}), with prices = app.topic(name, type)."
            )
        self._check_new(name, "a subscriber")
        terms = self._terms.overridden(**settings)

        def keep(subscriber: LocalEndpoint[Any, Any]) -> None:
            subscriber.subscribe_to(topic)
            self._keep(subscriber)
            self._subscriptions.declare(Subscription(topic.name, name, self._engine.name))

        return EndpointDecorator(name, terms, self._reserve, names_where_declared(), keep)

    @overload
    def sink(self, factory: F, /) -> F: ...
    @overload
    def sink(self, /, *, owns_transaction: bool = False) -> Callable[[F], F]: ...
    def sink(self, factory: Any = None, /, *, owns_transaction: bool = False) -> Any:
        """Register a sink around every stage of this app: a subclass of ``Sink``, or a function that returns one.

        Put it above the class. It returns the class unchanged. The first registered sink is the outermost.
        ``owns_transaction`` says that the sink commits something itself, so that no stage may have a batch.
        Raises ``DeclarationError``.
        """

        def add(factory: F) -> F:
            self._sinks.declare(factory, owns_transaction=owns_transaction)
            return factory

        return add if factory is None else add(factory)

    def effect(
        self,
        name: str,
        *,
        call: Callable[Concatenate[Q, ...], A],
        query: Callable[Concatenate[Q, ...], A | None] | None = None,
        undo: Callable[Concatenate[Q, ...], object] | None = None,
        timeout: float | timedelta = TIMEOUT_SECONDS,
        settle_after: float | timedelta = SETTLE_AFTER_SECONDS,
    ) -> Effect[Q, A]:
        """Declare an effect: a call to something outside, for ``ctx.effect``. Types come from the annotations.

        ``call``          makes the call: ``def capture(request: CaptureRequest, *, key: str) -> Capture``. ``key`` is
                          the ``Idempotency-Key`` for the outside, and ``timeout`` the seconds of one call; a function
                          names those that it needs. It raises ``NotDone`` where the outside certainly did nothing
        ``query``         finds the result of an earlier call, whose answer was lost; None if the outside has none.
                          Without it such a call is made again, and counted as possibly repeated
        ``undo``          undoes a call: ``def void(request: CaptureRequest, capture: Capture, *, key: str) -> None``.
                          It runs if no commit keeps the call: the message became a dead letter, or its handler took
                          another way in a later attempt. Without it such a call is reported
        ``timeout``       the limit of one call, in seconds; an attempt that exceeds it fails
        ``settle_after``  the seconds after a call, after which the outside answers truly about it

        Declare it once, so that any process can finish what another one began. Raises ``DeclarationError``.
        """
        check_address(name, "an effect")
        if name in self._effects:
            raise DeclarationError(
                f"the effect {name!r} is declared twice: for {self._effects[name].declared_at} and again. Give one of "
                "them another name."
            )
        undo_at = check_address(f"{self.name}.undo.{name}", "an effect's undo")
        if undo_at in self._addresses:
            raise DeclarationError(
                f"the effect {name!r} is undone at {undo_at}, and an endpoint has that name. Give it another one."
            )
        effect = declared_effect(name, undo_at, call, query, undo, timeout, settle_after, names_where_declared())
        self._addresses[undo_at] = effect.declared_at
        self._effects[name] = effect
        return effect

    def target(self, address: str) -> Target[Any, Any]:
        """Return this app's endpoint of that name. Raises ``DeclarationError``, which names the existing ones."""
        return self._engine.target(address)

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
        session: object = None,
    ) -> Started:
        """Start one flow in a transaction of its own, and return whether it is new: see ``Initiation.send``.

        When it returns, the message is on the disk. With ``session=`` it starts in the session's own transaction, when
        that commits: see ``initiate``. Raises ``IdConflict`` if the id was used for other content, ``NothingSent`` if
        nothing was committed, and ``OutcomeUnknown`` if that cannot be known. A repetition with the same ids is always
        safe.
        """
        with self.initiate(session=session) as out:
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
        session: object = None,
    ) -> ReplyFuture[R]:
        """Start one flow, as ``start`` does, for a reply to this process: ``app.request(…).result(timeout=5)``.

        With ``session=`` the flow starts when the session's transaction commits, and its reply is waited for after
        that: see ``initiate``.

        Raises ``AlreadyStarted`` if the flow was started before, because its reply goes, or went, to that request.
        Refused inside a stage, and with a ``connection``.
        """
        check_may_request(target, is_in_stage=self._engine.running.get() is not None, connection=connection)
        caller = None if session is None else self._caller(None, session)
        return self._requester.request(
            target, message, flow_id=flow_id, message_id=message_id, properties=properties, caller=caller
        )

    # The same from an event loop, which they never block

    async def astart(self, target: Target[M, Any], message: M, **options: Unpack[StartOptions]) -> Started:
        """Do as ``start``, in a thread of the running event loop's executor.

        If the task is cancelled, the flow may have started: a repetition with the same ids tells. In an ``async def``
        handler it joins the stage's transaction, as ``start`` does.
        """
        if self._engine.running.get() is not None:
            return self.start(target, message, **options)
        return await asyncio.to_thread(lambda: self.start(target, message, **options))

    async def arequest(
        self,
        target: Target[M, R],
        message: M,
        *,
        timeout: float,
        **options: Unpack[RequestOptions],
    ) -> R:
        """Start one flow, and return its reply: ``await app.arequest(pay, order, flow_id=…, timeout=5)``.

        The reply is waited for, for at most ``timeout`` seconds, without a thread. If the task is cancelled, nobody
        waits any more, and the reply expires. Raises as ``request`` and ``ReplyFuture.result`` do.
        """
        check_may_request(target, is_in_stage=self._engine.running.get() is not None, connection=None)
        future = await asyncio.to_thread(lambda: self.request(target, message, **options))
        return await future.aresult(timeout)

    def initiate(self, *, connection: object = None, session: object = None, independent: bool = False) -> Initiation:
        """Start several flows together or not at all: ``with app.initiate() as out: out.send(…)``.

        They start in a transaction of their own when the block ends. With ``connection=`` (a ``sqlite3.Connection`` or
        ``psycopg.Connection`` to the app's database) they are written to that connection's transaction, and start when
        its owner commits. On a connection in autocommit mode they start at once. ``session=`` does the same with a
        SQLAlchemy ``Session`` or ``Connection``, or with a connection of Django: see docs/orm.md. Inside a stage of
        this app they join the stage's transaction, unless they are ``independent`` of it: see ``Context.initiate``.
        """
        running = self._engine.running.get()
        if running is None:
            is_joined = connection is not None or session is not None
            return self._engine.flow_starter.initiate(self._caller(connection, session) if is_joined else None)
        if connection is not None or session is not None:
            given = "connection" if session is None else "session"
            raise IllegalCall(
                f"initiate({given}=…) was called inside a stage, which has a transaction of its own. "
                "Use ctx.initiate() there."
            )
        return running.initiate(independent=independent)

    def _caller(self, connection: object, session: object) -> CallersSession:
        if session is not None and self._terms.mode == "transport":
            raise IllegalCall(
                f"session= was given to app {self.name!r}, whose mode='transport' has no database that the session "
                "could share with it. Start the flow without session=, or use mode='best_effort' or none."
            )
        return callers_session(connection, session)

    # Operating

    @property
    def database(self) -> str:
        """The URL in use."""
        return self._engine.databases.database

    @database.setter
    def database(self, url: str) -> None:
        self._engine.databases.database = url

    @property
    def queue(self) -> str | None:
        """The URL of the queue's database; None where the queue is in ``database``."""
        return self._engine.databases.queue

    def connections(self) -> Connections:
        """Return the present use of this process's connections to the stages' database.

        Callers that start flows use them, and threads that run stages.
        """
        return self._engine.connections()

    def close(self) -> None:
        """Close the idle connections for starting flows, and end the waits for replies. They open again when needed."""
        self._requester.close()
        self._engine.flow_starter.close()
        self._engine.close_effect_log()

    def _stages(self) -> dict[str, Stage]:
        declared = [stage for endpoint in self._endpoints.values() for stage in stages_of(endpoint)]
        terms = self._terms
        undoing = [
            undo_stage(each, terms.redelivery, terms.time_limit_seconds, terms.pause_after)
            for each in self._effects.values()
        ]
        marking = [] if self._marking_at is None else [marking_stage(self.name)]
        return {stage.address: stage for stage in (*declared, *undoing, *marking)}

    def _kept(self) -> dict[str, int]:
        scopes = [KeptScope(each.address, each.message_types) for each in self._remotes.values()]
        scopes += [KeptScope(each.scope, (each.message_type,)) for each in self._topics.values()]
        for endpoint in self._endpoints.values():
            scopes += kept_scopes_of(endpoint, self._retention)
        return self._retention.by_scope(scopes)

    def _reserve(self, declared: Declared) -> None:
        address, place = declared.address, declared_at(declared.handlers[0].function)
        if address in self._addresses:
            raise DeclarationError(
                f"{address!r} is declared twice: at {self._addresses[address]} and at {place}. Give one of them "
                "another name."
            )
        if declared.terms.batch > 1:
            self._sinks.declare_batch(address)
        self._addresses[address] = place

    def _check_new(self, name: str, what: str = "an endpoint") -> None:
        check_address(name, what)
        if name in self._endpoints:
            place = self._addresses.get(name, "a place without stages yet")
            raise DeclarationError(
                f"endpoint {name!r} is declared twice; first at {place}. Give one of them another name."
            )

    def _keep(self, endpoint: LocalEndpoint[Any, Any]) -> None:
        self._endpoints[endpoint.address] = endpoint


def remotes_of(app: App) -> list[str]:
    """Return the addresses of other services that an app has named with ``remote``."""
    return list(app._remotes)  # noqa: SLF001 - the app's own module


def engine_of(app: App) -> Engine:
    """Return the engine behind an app, for the parts of Stagepost that run it."""
    return app._engine  # noqa: SLF001 - an app shows its users no internals


@contextmanager
def moved(app: App, place: Place, clock: Clock, random: Random) -> Iterator[None]:
    """Let an app use the databases of ``place``, another clock and other randomness during the block, for tests.

    A test's database may be one that a power failure would destroy. The app's broker is left out.
    """
    before = app._engine, app._requester  # noqa: SLF001 - an app shows its users no internals
    subscriptions = app._subscriptions  # noqa: SLF001
    databases = Databases(app.name, None, None, ALLOWABLE, subscriptions)
    databases.place = place
    subscriptions.forget_store()
    app._engine = app._engine_over(databases, clock, random, before[0].databases)  # noqa: SLF001
    app._requester = Requester(app._engine)  # noqa: SLF001
    try:
        yield
    finally:
        app.close()
        subscriptions.forget_store()
        app._engine, app._requester = before  # noqa: SLF001


def check_count(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise DeclarationError(f"{name} must be a whole number above 0, not {value!r}")
    return value
