"""Endpoints: a named address with one or more stages, or somebody else's."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, overload

from stagepost.app.modes import check_mode
from stagepost.app.signatures import Signature, declared_at, names_where_declared, read_signature
from stagepost.flow.clock import SECONDS_MAX, is_span
from stagepost.flow.codec import check_record
from stagepost.flow.context import Context
from stagepost.flow.errors import DeclarationError
from stagepost.flow.target import M, Position, R, Target
from stagepost.flow.topic import Topic
from stagepost.recovery.pausing import PAUSE_AFTER, check_pause_after
from stagepost.recovery.redelivery import Redelivery, check_redelivery
from stagepost.transaction.stage import Mode, Stage
from stagepost.transaction.window import WINDOW_MAX

H = TypeVar("H", bound=Callable[..., Any])

ADDRESS_LENGTH_MAX = 150
_ADDRESS = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


@dataclass(frozen=True, slots=True)
class Terms:
    """What a stage runs on, where it does not say otherwise itself."""

    redelivery: Redelivery
    time_limit_seconds: float
    demarcation: Mode | None = None
    pause_after: int = PAUSE_AFTER
    batch: int = 1

    def overridden(
        self,
        redelivery: Redelivery | None,
        time_limit: float | timedelta | None,
        demarcation: Mode | None,
        pause_after: int | None,
        batch: int | None,
    ) -> Terms:
        if redelivery is not None:
            check_redelivery(redelivery)
        return Terms(
            self.redelivery if redelivery is None else redelivery,
            self.time_limit_seconds if time_limit is None else check_time_limit(time_limit),
            self.demarcation if demarcation is None else check_mode(demarcation),
            self.pause_after if pause_after is None else check_pause_after(pause_after),
            self.batch if batch is None else check_batch(batch),
        )


@dataclass(frozen=True, slots=True)
class Declared:
    """One stage as it was declared, before the one after it is known."""

    address: str
    handler: Callable[..., Any]
    signature: Signature
    terms: Terms


# Called with an address and where it is declared; raises where it is taken.
Reserve = Callable[[str, str], None]


class LocalEndpoint(Target[M, R]):
    """An endpoint of this app: a name, and the stages that were declared for it so far."""

    def __init__(self, name: str, reply_type: type[R] | None, terms: Terms, reserve: Reserve) -> None:
        self._name = name
        self._terms = terms
        self._reserve = reserve
        self._declared: list[Declared] = []
        self._reply_type = check_record(f"reply= of {name}", reply_type) if reply_type is not None else None

    @property
    def address(self) -> str:
        return self._name

    @property
    def message_type(self) -> type[M]:
        if not self._declared:
            raise DeclarationError(
                f"endpoint {self._name!r} has no stage. Put @….stage above a handler, before it is used."
            )
        return self._declared[0].signature.message_type

    @property
    def reply_type(self) -> type[R] | None:
        return self._reply_type

    def stages(self) -> list[Stage]:
        """What workers run. Raises ``DeclarationError`` for an endpoint without stages."""
        _ = self.message_type
        # A stage that does not look at the state still passes it on.
        state_type = next((each.signature.state_type for each in self._declared if each.signature.state_type), None)
        following = [Target[Any, Any](each.address, each.signature.message_type, None) for each in self._declared[1:]]
        return [
            Stage(
                position=Position(
                    endpoint=self._name,
                    address=each.address,
                    state_type=state_type,
                    reply_type=self._reply_type,
                    next=after,
                    promises=each.signature.promises_reply,
                ),
                message_type=each.signature.message_type,
                handler=each.handler,
                takes_state=each.signature.state_type is not None,
                is_async=each.signature.is_async,
                redelivery=each.terms.redelivery,
                time_limit_seconds=each.terms.time_limit_seconds,
                declared_at=declared_at(each.handler),
                demarcation=each.terms.demarcation,
                pause_after=each.terms.pause_after,
                batch=each.terms.batch,
            )
            for each, after in zip(self._declared, [*following, None], strict=True)
        ]

    def _add(self, handler: Callable[..., Any], terms: Terms, local_names: Mapping[str, Any]) -> None:
        name = getattr(handler, "__name__", "?")
        signature = read_signature(f"{self._name}, stage {name}", handler, local_names)
        if signature.reply_type is not None:
            if self._reply_type is not None and signature.reply_type is not self._reply_type:
                raise DeclarationError(
                    f"stage {name} of {self._name} returns a {signature.reply_type.__qualname__}, but the endpoint "
                    f"replies with a {self._reply_type.__qualname__}. An endpoint has one reply type, whichever of its "
                    "stages replies."
                )
            self._reply_type = signature.reply_type
        self._check_state(name, signature)
        # The first stage is found where the endpoint is addressed; the others are named after their handlers, so that
        # a stage inserted later does not get the messages of its neighbour.
        address = f"{self._name}.{name}" if self._declared else self._name
        self._reserve(address, declared_at(handler))
        self._declared.append(Declared(address, handler, signature, terms))

    def _check_state(self, name: str, signature: Signature) -> None:
        states = {each.signature.state_type for each in self._declared} - {None}
        if signature.state_type is not None and states and signature.state_type not in states:
            (other,) = states
            raise DeclarationError(
                f"stage {name} of {self._name} has the state {signature.state_type.__qualname__}, an earlier stage has "
                f"{getattr(other, '__qualname__', other)}. The state travels through all stages: give them the same "
                "type."
            )


class StagedEndpoint(LocalEndpoint[M, R]):
    """``pay = app.staged("payments.pay")``, then ``@pay.stage`` on each of its handlers, in order.

    The first stage's message type is what the endpoint takes. What any stage returns is the endpoint's reply.
    """

    @overload
    def stage(self, handler: H, /) -> H: ...
    @overload
    def stage(
        self,
        /,
        *,
        redelivery: Redelivery | None = None,
        time_limit: float | timedelta | None = None,
        demarcation: Mode | None = None,
        pause_after: int | None = None,
        batch: int | None = None,
    ) -> Callable[[H], H]: ...
    def stage(
        self,
        handler: Any = None,
        /,
        *,
        redelivery: Redelivery | None = None,
        time_limit: float | timedelta | None = None,
        demarcation: Mode | None = None,
        pause_after: int | None = None,
        batch: int | None = None,
    ) -> Any:
        """Add the next stage: bare, or with what differs from the endpoint. The function itself stays as it is.

        ``time_limit`` is in seconds. Raises ``DeclarationError``.
        """
        local_names = names_where_declared()
        terms = self._terms.overridden(redelivery, time_limit, demarcation, pause_after, batch)

        def add(function: H) -> H:
            self._add(function, terms, local_names)
            return function

        return add if handler is None else add(handler)


class Endpoint(LocalEndpoint[M, R]):
    """An endpoint of one stage. It can still be called as the function it was made from."""

    def __init__(
        self, name: str, handler: Callable[..., Any], terms: Terms, reserve: Reserve, local_names: Mapping[str, Any]
    ) -> None:
        super().__init__(name, None, terms, reserve)
        self._add(handler, terms, local_names)

    def __call__(self, *arguments: Any) -> Any:
        return self._declared[0].handler(*arguments)


class EndpointDecorator:
    """What ``@app.endpoint(name)`` is: keeps the handler's types for those who send to it."""

    def __init__(
        self,
        name: str,
        terms: Terms,
        reserve: Reserve,
        local_names: Mapping[str, Any],
        keep: Callable[[LocalEndpoint[Any, Any]], None],
    ) -> None:
        self._name = name
        self._arguments = (terms, reserve, local_names)
        self._keep = keep

    # Those that are awaited first: what a plain handler returns could be anything, a coroutine too.
    @overload
    def __call__(self, handler: Callable[[Context, M], Coroutine[Any, Any, R]], /) -> Endpoint[M, R]: ...
    @overload
    def __call__(self, handler: Callable[[Context, Any, M], Coroutine[Any, Any, R]], /) -> Endpoint[M, R]: ...
    @overload
    def __call__(self, handler: Callable[[Context, M], R], /) -> Endpoint[M, R]: ...
    @overload
    def __call__(self, handler: Callable[[Context, Any, M], R], /) -> Endpoint[M, R]: ...
    def __call__(self, handler: Callable[..., Any], /) -> Endpoint[Any, Any]:
        endpoint: Endpoint[Any, Any] = Endpoint(self._name, handler, *self._arguments)
        self._keep(endpoint)
        return endpoint


def remote(name: str, message_type: type[M], reply_type: type[R] | None) -> Target[M, R]:
    """Somebody else's endpoint: known by its address and types only."""
    check_address(name)
    check_record(f"the message of {name}", message_type)
    if reply_type is not None:
        check_record(f"the reply of {name}", reply_type)
    return Target(name, message_type, reply_type)


def check_subscriber(topic: Topic[Any], subscriber: LocalEndpoint[Any, Any]) -> None:
    taken = subscriber.message_type
    if not issubclass(topic.message_type, taken):
        raise DeclarationError(
            f"{subscriber.address} takes a {taken.__qualname__}, but what is published to {topic.name!r} is a "
            f"{topic.message_type.__qualname__}. Let its handler take that."
        )


def check_address(name: object, what: str = "an endpoint") -> str:
    if callable(name):
        raise DeclarationError(f'{what} needs a name: write @app.endpoint("payments.pay") above the handler.')
    if not isinstance(name, str) or not _ADDRESS.fullmatch(name) or len(name) > ADDRESS_LENGTH_MAX:
        raise DeclarationError(
            f"{name!r} cannot be {what}'s name: use letters, digits, '_' and '-', in parts separated by dots, "
            f"at most {ADDRESS_LENGTH_MAX} characters, such as 'payments.pay'."
        )
    return name


def check_time_limit(value: float | timedelta) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not is_span(seconds) or not seconds:
        raise DeclarationError(
            f"time_limit must be a number of seconds above 0, at most {SECONDS_MAX:.0f}, or a timedelta, not {value!r}"
        )
    return float(seconds)


def check_batch(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= WINDOW_MAX:
        raise DeclarationError(
            f"batch must be a whole number from 1 to {WINDOW_MAX}, how many messages may share a transaction, not "
            f"{value!r}"
        )
    return value
