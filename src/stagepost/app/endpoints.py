"""Endpoints: a named address with one or more stages of this app, or the address of another app."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Concatenate, TypeVar, overload

from stagepost.app.signatures import Signature, declared_at, names_where_declared, read_signature
from stagepost.flow.clock import SECONDS_MAX, is_span
from stagepost.flow.codec import check_record
from stagepost.flow.context import Context
from stagepost.flow.errors import DeclarationError
from stagepost.flow.target import M, Position, R, Target, Topic
from stagepost.recovery.pausing import PAUSE_AFTER, check_pause_after
from stagepost.recovery.redelivery import Redelivery, check_redelivery
from stagepost.runtime.modes import check_mode
from stagepost.transaction.stage import BATCH_MAX, Mode, Stage

H = TypeVar("H", bound=Callable[..., Any])

ADDRESS_LENGTH_MAX = 150
_ADDRESS = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


@dataclass(frozen=True, slots=True)
class Terms:
    """The default settings of an endpoint's stages."""

    redelivery: Redelivery
    time_limit_seconds: float
    mode: Mode | None = None
    pause_after: int = PAUSE_AFTER
    batch: int = 1

    def overridden(
        self,
        redelivery: Redelivery | None,
        time_limit: float | timedelta | None,
        mode: Mode | None,
        pause_after: int | None,
        batch: int | None,
    ) -> Terms:
        if redelivery is not None:
            check_redelivery(redelivery)
        return Terms(
            self.redelivery if redelivery is None else redelivery,
            self.time_limit_seconds if time_limit is None else check_time_limit(time_limit),
            self.mode if mode is None else check_mode(mode),
            self.pause_after if pause_after is None else check_pause_after(pause_after),
            self.batch if batch is None else check_batch(batch),
        )


@dataclass(frozen=True, slots=True)
class Declared:
    """A stage as it was declared, before its next stage is known."""

    address: str
    handler: Callable[..., Any]
    signature: Signature
    terms: Terms


# Takes a stage. Raises ``DeclarationError`` if its address is taken, or if the app cannot run it.
Reserve = Callable[[Declared], None]


class LocalEndpoint(Target[M, R]):
    """An endpoint of this app: a name, and the stages declared for it so far."""

    def __init__(self, name: str, reply_type: type[R] | None, terms: Terms, reserve: Reserve) -> None:
        self.address = name
        self.reply_type = check_record(f"reply= of {name}", reply_type) if reply_type is not None else None
        self._terms = terms
        self._reserve = reserve
        self._declared: list[Declared] = []

    def __getattr__(self, name: str) -> Any:
        # The first stage sets the message type. Python calls this only for a missing attribute.
        if name == "message_type":
            raise DeclarationError(
                f"endpoint {self.address!r} has no stage. Put @….stage above a handler, before it is used."
            )
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def _add(self, handler: Callable[..., Any], terms: Terms, local_names: Mapping[str, Any]) -> None:
        name = getattr(handler, "__name__", "?")
        signature = read_signature(f"{self.address}, stage {name}", handler, local_names)
        if signature.reply_type is not None:
            if self.reply_type is not None and signature.reply_type is not self.reply_type:
                raise DeclarationError(
                    f"stage {name} of {self.address} returns a {signature.reply_type.__qualname__}, but the endpoint "
                    f"replies with a {self.reply_type.__qualname__}. An endpoint has one reply type, whichever of its "
                    "stages replies."
                )
            self.reply_type = signature.reply_type
        self._check_state(name, signature)
        # The first stage has the endpoint's address. The others are named after their handlers, so that a stage
        # inserted later does not get the messages of its neighbour.
        address = f"{self.address}.{name}" if self._declared else self.address
        declared = Declared(address, handler, signature, terms)
        self._reserve(declared)
        if not self._declared:
            self.message_type = signature.message_type
        self._declared.append(declared)

    def _check_state(self, name: str, signature: Signature) -> None:
        states = {each.signature.state_type for each in self._declared} - {None}
        if signature.state_type is not None and states and signature.state_type not in states:
            (other,) = states
            raise DeclarationError(
                f"stage {name} of {self.address} has the state {signature.state_type.__qualname__}, an earlier stage "
                f"has {getattr(other, '__qualname__', other)}. The state travels through all stages: give them "
                "the same type."
            )


def stages_of(endpoint: LocalEndpoint[Any, Any]) -> list[Stage]:
    """Build the stages that workers run. Raises ``DeclarationError`` for an endpoint without stages."""
    _ = endpoint.message_type
    declared = endpoint._declared  # noqa: SLF001 - an endpoint shows its users no internals
    # A stage that takes no state still passes it on.
    state_type = next((each.signature.state_type for each in declared if each.signature.state_type), None)
    following = [Target[Any, Any](each.address, each.signature.message_type, None) for each in declared[1:]]
    return [
        Stage(
            position=Position(
                endpoint=endpoint.address,
                address=each.address,
                state_type=state_type,
                reply_type=endpoint.reply_type,
                next=after,
                promises=each.signature.promises_reply,
            ),
            message_type=each.signature.message_type,
            handler=each.handler,
            takes_state=each.signature.state_type is not None,
            services=each.signature.services,
            is_async=each.signature.is_async,
            redelivery=each.terms.redelivery,
            time_limit_seconds=each.terms.time_limit_seconds,
            declared_at=declared_at(each.handler),
            mode=each.terms.mode,
            pause_after=each.terms.pause_after,
            batch=each.terms.batch,
        )
        for each, after in zip(declared, [*following, None], strict=True)
    ]


class StagedEndpoint(LocalEndpoint[M, R]):
    """An endpoint of several stages: ``pay = app.staged("payments.pay")``, then ``@pay.stage`` on each handler.

    The endpoint takes the first stage's message type. Its reply is the value that any of its stages returns.
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
        mode: Mode | None = None,
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
        mode: Mode | None = None,
        pause_after: int | None = None,
        batch: int | None = None,
    ) -> Any:
        """Add the next stage, by a bare decorator or with settings that differ from the endpoint's.

        It returns the function unchanged. ``time_limit`` is in seconds. Raises ``DeclarationError``.
        """
        local_names = names_where_declared()
        terms = self._terms.overridden(redelivery, time_limit, mode, pause_after, batch)

        def add(function: H) -> H:
            self._add(function, terms, local_names)
            return function

        return add if handler is None else add(handler)


class Endpoint(LocalEndpoint[M, R]):
    """An endpoint of one stage. Calling it calls its handler, as a plain function."""

    def __init__(
        self, name: str, handler: Callable[..., Any], terms: Terms, reserve: Reserve, local_names: Mapping[str, Any]
    ) -> None:
        super().__init__(name, None, terms, reserve)
        self._add(handler, terms, local_names)

    def __call__(self, *arguments: Any, **services: Any) -> Any:
        return self._declared[0].handler(*arguments, **services)


class EndpointDecorator:
    """The decorator ``@app.endpoint(name)``. It keeps the handler's types, for the type checks of senders."""

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

    # The overloads for coroutines come first, because a plain handler's return type matches a coroutine too. Those with
    # a state come before the others, whose "..." stands for keyword-only parameters and matches a message too.
    @overload
    def __call__(
        self, handler: Callable[Concatenate[Context, Any, M, ...], Coroutine[Any, Any, R]], /
    ) -> Endpoint[M, R]: ...
    @overload
    def __call__(
        self, handler: Callable[Concatenate[Context, M, ...], Coroutine[Any, Any, R]], /
    ) -> Endpoint[M, R]: ...
    @overload
    def __call__(self, handler: Callable[Concatenate[Context, Any, M, ...], R], /) -> Endpoint[M, R]: ...
    @overload
    def __call__(self, handler: Callable[Concatenate[Context, M, ...], R], /) -> Endpoint[M, R]: ...
    def __call__(self, handler: Callable[..., Any], /) -> Endpoint[Any, Any]:
        endpoint: Endpoint[Any, Any] = Endpoint(self._name, handler, *self._arguments)
        self._keep(endpoint)
        return endpoint


def check_subscriber(topic: Topic[Any], subscriber: LocalEndpoint[Any, Any]) -> None:
    taken = subscriber.message_type
    if not issubclass(topic.message_type, taken):
        raise DeclarationError(
            f"{subscriber.address} takes a {taken.__qualname__}, but messages published to {topic.name!r} are of type "
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
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= BATCH_MAX:
        raise DeclarationError(
            f"batch must be a whole number from 1 to {BATCH_MAX}, how many messages may share a transaction, not "
            f"{value!r}"
        )
    return value
