"""The app: what a service declares, and the way in for whatever comes from outside."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from random import Random
from typing import Any, overload

from stagepost.app.endpoints import (
    EndpointDecorator,
    LocalEndpoint,
    StagedEndpoint,
    Terms,
    check_address,
    check_time_limit,
    remote,
)
from stagepost.app.pool import AccessPool
from stagepost.app.settings import read_settings
from stagepost.app.signatures import names_where_declared
from stagepost.app.stores import Access, Store, access, open_store
from stagepost.flow.clock import Clock, SystemClock
from stagepost.flow.context import DEPTH_MAX, HOPS_MAX, Limits
from stagepost.flow.errors import CommitUnknown, DeclarationError, IllegalCall, NothingSent, OutcomeUnknown, StoreError
from stagepost.flow.ids import RandomIds
from stagepost.flow.initiation import Acceptance, Initiation, Started, Verdict
from stagepost.flow.target import M, R, Target
from stagepost.recovery.redelivery import Redelivery
from stagepost.transaction.initiating import write_acceptances
from stagepost.transaction.stage import Stage
from stagepost.transaction.steps import StepListener, unobserved
from stagepost.transaction.workspace import StageWorkspace
from stagepost.transport.database import DatabaseSender

TIME_LIMIT_SECONDS = 600.0


class App:
    """A service: its name, its endpoints, and its database.

    ``database``    a URL; else ``STAGEPOST_DATABASE``, else ``stagepost.toml``, else ``sqlite:///stagepost.db``
    ``redelivery``  for all stages that have none of their own
    ``time_limit``  of one attempt, in seconds or as a timedelta, likewise; ten minutes unless it is said
    ``max_hops``, ``max_depth``  what a flow may pass and stack before it is taken for a circle
    ``clock``, ``random``, ``listener``  time, chance and an observer of the transaction's steps, for tests and replays

    Declaring is for one thread, at import. Starting flows is for any.
    """

    def __init__(
        self,
        name: str,
        *,
        database: str | None = None,
        redelivery: Redelivery | None = None,
        time_limit: float | timedelta = TIME_LIMIT_SECONDS,
        max_hops: int = HOPS_MAX,
        max_depth: int = DEPTH_MAX,
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
        self.running: ContextVar[StageWorkspace | None] = ContextVar(f"stagepost.{name}.running", default=None)
        self._terms = Terms(Redelivery(), check_time_limit(time_limit)).overridden(redelivery, None)
        self._database = database
        self._endpoints: dict[str, LocalEndpoint[Any, Any]] = {}
        self._addresses: dict[str, str] = {}
        self._store: Store | None = None
        self._opening = threading.Lock()
        self._pool = AccessPool(lambda: self.access(is_pinned=False))

    # Declaring

    @overload
    def staged(
        self, name: str, *, redelivery: Redelivery | None = None, time_limit: float | timedelta | None = None
    ) -> StagedEndpoint[Any, Any]: ...
    @overload
    def staged(
        self,
        name: str,
        *,
        reply: type[R],
        redelivery: Redelivery | None = None,
        time_limit: float | timedelta | None = None,
    ) -> StagedEndpoint[Any, R]: ...
    def staged(
        self,
        name: str,
        *,
        reply: type[R] | None = None,
        redelivery: Redelivery | None = None,
        time_limit: float | timedelta | None = None,
    ) -> StagedEndpoint[Any, Any]:
        """An endpoint of several stages; put ``@endpoint.stage`` above each handler, in order.

        ``reply`` is needed only where no stage's return annotation says what the endpoint replies with.
        Raises ``DeclarationError``.
        """
        check_address(name)
        endpoint: StagedEndpoint[Any, Any] = StagedEndpoint(
            name, reply, self._terms.overridden(redelivery, time_limit), self._reserve
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
    ) -> EndpointDecorator:
        """An endpoint of one stage: put it above its handler. Raises ``DeclarationError``."""
        check_address(name)
        self._check_new(name)
        terms = self._terms.overridden(redelivery, time_limit)
        return EndpointDecorator(name, terms, self._reserve, names_where_declared(), self._keep)

    def remote(self, name: str, message: type[M], reply: type[R] | None = None) -> Target[M, R]:
        """Somebody else's endpoint, typed, to send to or to request from. Raises ``DeclarationError``."""
        return remote(name, message, reply)

    def stages(self) -> dict[str, Stage]:
        """Every stage by its address. Raises ``DeclarationError`` for an endpoint that has none."""
        return {stage.address: stage for endpoint in self._endpoints.values() for stage in endpoint.stages()}

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

    def initiate(self, *, connection: object = None) -> Initiation:
        """``with app.initiate() as out: out.send(…)``: several flows that start together or not at all.

        They start in a transaction of their own when the block ends. With ``connection=`` (a ``sqlite3.Connection`` to
        the app's database) they are written to that connection's transaction and start when its owner commits; on one
        in autocommit mode they start at once. Inside a stage of this app they join the stage's transaction.
        """
        running = self.running.get()
        if connection is not None:
            if running is not None:
                raise IllegalCall(
                    "initiate(connection=…) was called inside a stage, which has a transaction of its own. "
                    "Use ctx.initiate() there."
                )
            return Initiation(self.node("app"), self.clock, lambda wanted: self._write_joined(connection, wanted))
        if running is not None:
            return running.initiate()
        return Initiation(self.node("app"), self.clock, self._write)

    # For those who run it

    @property
    def database(self) -> str:
        """The URL in use."""
        return read_settings(database=self._database).database

    @database.setter
    def database(self, url: str) -> None:
        if self._store is not None and self._store.address == url:
            return
        if self._store is not None:
            raise DeclarationError(
                f"app {self.name!r} has opened {self._store.url} already; set its database before that"
            )
        self._database = url

    @property
    def store(self) -> Store:
        """Opened when it is first asked for. Raises ``DeclarationError`` and ``StoreError``."""
        with self._opening:
            if self._store is None:
                self._store = open_store(self.database)
            return self._store

    def access(self, *, is_pinned: bool = True) -> Access:
        """A session and a transport of their own, for one thread; close the session when done.

        Unless ``is_pinned``, several threads may use it, one at a time.
        """
        return access(self.store.session(is_pinned=is_pinned), self.clock)

    def close(self) -> None:
        """Close the connections that starting flows has left open; they are made again when they are needed."""
        self._pool.close()

    def node(self, role: str, process: int | None = None) -> str:
        """How journal and dead letters name who did something: ``role@host:process``, by default this process."""
        return f"{role}@{socket.gethostname()}:{process or os.getpid()}"

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

    def _write(self, acceptances: Sequence[Acceptance]) -> Sequence[Verdict]:
        with _told_as_initiation_errors(acceptances), self._pool.taken() as mine:
            mine.session.begin()
            verdicts = write_acceptances(mine.session, mine.transport, acceptances, self.clock.now(), self.node("app"))
            mine.session.commit()
            return verdicts

    def _write_joined(self, connection: object, acceptances: Sequence[Acceptance]) -> Sequence[Verdict]:
        with _told_as_initiation_errors(acceptances), self.store.join(connection) as session:
            sender = DatabaseSender(session.queue)
            return write_acceptances(session, sender, acceptances, self.clock.now(), self.node("app"))


@contextmanager
def _told_as_initiation_errors(acceptances: Sequence[Acceptance]) -> Iterator[None]:
    """What the database says, in words that say what became of the flows."""
    ids = [each.key for each in acceptances]
    try:
        yield
    except CommitUnknown as error:
        raise OutcomeUnknown(
            f"{error}. It may have started. Try again with the same ids: what did start is not started twice.", ids
        ) from error
    except StoreError as error:
        raise NothingSent(f"nothing was started: {error}", ids) from error


def check_count(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise DeclarationError(f"{name} must be a whole number above 0, not {value!r}")
    return value
