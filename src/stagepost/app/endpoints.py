"""Endpoints: a named address with one or more stages of this app, or the address of another app."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import replace
from typing import Any, Concatenate, TypeVar, Unpack, overload

from stagepost.app.declared import Declared, DeclaredHandler, check_added, check_together, documents_of
from stagepost.app.guards import check_guard_with_key, guards_of, keys_of
from stagepost.app.retention import DeclaredRetention, KeptScope, check_horizon
from stagepost.app.signatures import Signature, declared_at, names_where_declared, read_signature
from stagepost.app.terms import StageSettings, Terms
from stagepost.flow.codec import check_record
from stagepost.flow.context import Context
from stagepost.flow.errors import DeclarationError
from stagepost.flow.target import M, Position, R, Target, Topic
from stagepost.transaction.arrivals import ForeignMessages
from stagepost.transaction.stage import Handler, Stage

H = TypeVar("H", bound=Callable[..., Any])

ADDRESS_LENGTH_MAX = 150
_ADDRESS = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


# Takes a stage. Raises ``DeclarationError`` if its address is taken, or if the app cannot run it.
Reserve = Callable[[Declared], None]


class LocalEndpoint(Target[M, R]):
    """An endpoint of this app: a name, and the stages declared for it so far."""

    def __init__(
        self,
        name: str,
        reply_type: type[R] | None,
        terms: Terms,
        reserve: Reserve,
        foreign: ForeignMessages | None = None,
    ) -> None:
        self.address = name
        self._foreign = foreign
        self.reply_type = check_record(f"reply= of {name}", reply_type) if reply_type is not None else None
        self._terms = terms
        self._reserve = reserve
        self._topic: Topic[Any] | None = None
        self._declared: list[Declared] = []

    def __getattr__(self, name: str) -> Any:
        # The first stage sets the message type. Python calls this only for a missing attribute.
        if name in ("message_type", "message_types"):
            raise DeclarationError(
                f"endpoint {self.address!r} has no stage. Put @….stage above a handler, before it is used."
            )
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def handler(self, function: H, /) -> H:
        """Add a handler to the stage that was declared last. Put it above the function, which it returns unchanged.

        Handlers of one message type run in the order of their declaration, in one transaction. A handler may also take
        a message type of its own, which the stage then takes too. Raises ``DeclarationError``.
        """
        local_names = names_where_declared()
        if not self._declared:
            raise DeclarationError(
                f"endpoint {self.address!r} has no stage to add a handler to. Put @….stage above its first handler."
            )
        stage = self._declared[-1]
        name = getattr(function, "__name__", "?")
        added = DeclaredHandler(
            name, function, read_signature(f"{stage.address}, handler {name}", function, local_names)
        )
        self._check(f"handler {name} of {stage.address}", added.signature, stage.terms)
        if not isinstance(stage.terms.key, Mapping):
            keys_of(
                stage.address, stage.terms.key, [*dict.fromkeys((*stage.message_types, added.signature.message_type))]
            )
        check_added(stage.address, stage.handlers, added)
        if self._topic is not None:
            types = *stage.message_types[1:], added.signature.message_type
            further = tuple(each for each in dict.fromkeys(types) if each is not self.message_type)
            check_subscriber(self._topic, Target(self.address, self.message_type, None, further))
        self.reply_type = self.reply_type or added.signature.reply_type
        check_together(replace(stage, handlers=[*stage.handlers, added]))
        stage.handlers.append(added)
        self.message_types = self._declared[0].message_types
        return function

    def subscribe_to(self, topic: Topic[Any]) -> None:
        """Check, now and for each added handler, that it takes the topic's messages. Raises ``DeclarationError``."""
        check_subscriber(topic, self)
        self._topic = topic

    def _add(self, function: Callable[..., Any], terms: Terms, local_names: Mapping[str, Any]) -> None:
        name = getattr(function, "__name__", "?")
        signature = read_signature(f"{self.address}, stage {name}", function, local_names)
        self._check(f"stage {name} of {self.address}", signature, terms)
        self.reply_type = self.reply_type or signature.reply_type
        # The first stage has the endpoint's address. The others are named after their handlers, so that a stage
        # inserted later does not get the messages of its neighbour.
        address = f"{self.address}.{name}" if self._declared else self.address
        check_guard_with_key(address, terms.guard, terms.key)
        if not isinstance(terms.key, Mapping):
            keys_of(address, terms.key, [signature.message_type])
        check_horizon(address, terms.retention, terms.redelivery, terms.time_limit_seconds)
        declared = Declared(address, terms, [DeclaredHandler(None, function, signature)])
        check_together(declared)
        self._reserve(declared)
        if not self._declared:
            self.message_type = signature.message_type
            self.message_types = (signature.message_type,)
        self._declared.append(declared)

    def _check(self, place: str, signature: Signature, terms: Terms) -> None:
        """Check that a handler goes with the endpoint's other ones, and with its app. Raises ``DeclarationError``."""
        reply_type = signature.reply_type
        if reply_type is not None and self.reply_type is not None and reply_type is not self.reply_type:
            raise DeclarationError(
                f"{place} returns a {reply_type.__qualname__}, but the endpoint replies with a "
                f"{self.reply_type.__qualname__}. An endpoint has one reply type, whichever of its handlers replies."
            )
        if signature.database_use is not None and terms.mode == "transport":
            raise DeclarationError(
                f"{place} uses ctx.{signature.database_use}, and its mode='transport' has no transaction of a "
                "database. Use mode='best_effort', or leave mode= out."
            )
        if signature.services and not self._terms.has_scopes:
            raise DeclarationError(
                f"{place} takes the service {', '.join(signature.services)}, and its app has no scopes to get it from. "
                "Give it some: App(…, scopes=…)."
            )
        handlers = [each for declared in self._declared for each in declared.handlers]
        states = {each.signature.state_type for each in handlers} - {None}
        if signature.state_type is not None and states and signature.state_type not in states:
            (other,) = states
            raise DeclarationError(
                f"{place} has the state {signature.state_type.__qualname__}, an earlier handler has "
                f"{getattr(other, '__qualname__', other)}. The state travels through all stages: give them the same "
                "type."
            )


def kept_scopes_of(endpoint: LocalEndpoint[Any, Any], retention: DeclaredRetention) -> Iterator[KeptScope]:
    """Yield the stages of an endpoint for a purge. Raises ``DeclarationError`` for a retention that is too short."""
    for each in endpoint._declared:  # noqa: SLF001 - an endpoint shows its users no internals
        kept = KeptScope(each.address, each.message_types, each.terms.retention)
        check_horizon(each.address, retention.of(kept), each.terms.redelivery, each.terms.time_limit_seconds)
        yield kept


def stages_of(endpoint: LocalEndpoint[Any, Any]) -> list[Stage]:
    """Build the stages that workers run. Raises ``DeclarationError`` for an endpoint without stages."""
    _ = endpoint.message_type
    declared = endpoint._declared  # noqa: SLF001 - an endpoint shows its users no internals
    handlers = [each for stage in declared for each in stage.handlers]
    # A stage that takes no state still passes it on.
    state_type = next((each.signature.state_type for each in handlers if each.signature.state_type), None)
    following = [
        Target[Any, Any](each.address, each.message_types[0], None, each.message_types[1:]) for each in declared[1:]
    ]
    return [
        _stage(
            each,
            Position(endpoint.address, each.address, state_type, endpoint.reply_type, after),
            endpoint._foreign if each is declared[0] else None,  # noqa: SLF001 - see above
        )
        for each, after in zip(declared, [*following, None], strict=True)
    ]


def _stage(declared: Declared, position: Position, foreign: ForeignMessages | None) -> Stage:
    handlers = [
        Handler(
            replace(position, promises=each.signature.promises_reply, handler=each.name),
            each.signature.message_type,
            each.function,
            each.signature.state_type is not None,
            each.signature.services,
        )
        for each in declared.handlers
    ]
    types = declared.message_types
    by_type = {each.__name__: [found for found in handlers if found.message_type is each] for each in types}
    return Stage(
        position=position,
        handlers=handlers,
        by_type=by_type if len(types) > 1 else None,
        is_async=declared.handlers[0].signature.is_async,
        redelivery=declared.terms.redelivery,
        time_limit_seconds=declared.terms.time_limit_seconds,
        declared_at=declared_at(declared.handlers[0].function),
        mode=declared.terms.mode,
        pause_after=declared.terms.pause_after,
        batch=declared.terms.batch,
        effects=declared.effects,
        threads=declared.terms.threads,
        foreign=foreign,
        documents=documents_of(declared),
        guards=guards_of(declared.address, declared.terms.guard, types),
        keys=keys_of(declared.address, declared.terms.key, types),
    )


class StagedEndpoint(LocalEndpoint[M, R]):
    """An endpoint of several stages: ``pay = app.staged("payments.pay")``, then ``@pay.stage`` on each handler.

    The endpoint takes the first stage's message type. Its reply is the value that any of its stages returns.
    """

    @overload
    def stage(self, handler: H, /) -> H: ...
    @overload
    def stage(self, /, **settings: Unpack[StageSettings]) -> Callable[[H], H]: ...
    def stage(self, handler: Any = None, /, **settings: Unpack[StageSettings]) -> Any:
        """Add the next stage, by a bare decorator or with settings that differ from the endpoint's.

        It returns the function unchanged. Raises ``DeclarationError``.
        """
        local_names = names_where_declared()
        terms = self._terms.overridden(**settings)

        def add(function: H) -> H:
            self._add(function, terms, local_names)
            return function

        return add if handler is None else add(handler)


class Endpoint(LocalEndpoint[M, R]):
    """An endpoint of one stage. Calling it calls its handler, as a plain function."""

    def __init__(
        self,
        name: str,
        handler: Callable[..., Any],
        terms: Terms,
        reserve: Reserve,
        local_names: Mapping[str, Any],
        foreign: ForeignMessages | None = None,
    ) -> None:
        super().__init__(name, None, terms, reserve, foreign)
        self._add(handler, terms, local_names)

    def __call__(self, *arguments: Any, **services: Any) -> Any:
        return self._declared[0].handlers[0].function(*arguments, **services)


class EndpointDecorator:
    """The decorator ``@app.endpoint(name)``. It keeps the handler's types, for the type checks of senders."""

    def __init__(
        self,
        name: str,
        terms: Terms,
        reserve: Reserve,
        local_names: Mapping[str, Any],
        keep: Callable[[LocalEndpoint[Any, Any]], None],
        foreign: ForeignMessages | None = None,
    ) -> None:
        self._name = name
        self._arguments = (terms, reserve, local_names, foreign)
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


def check_subscriber(topic: Topic[Any], subscriber: Target[Any, Any]) -> None:
    if not subscriber.takes(topic.message_type):
        taken = " or ".join(each.__qualname__ for each in subscriber.message_types)
        raise DeclarationError(
            f"{subscriber.address} takes a {taken}, but messages published to {topic.name!r} are of type "
            f"{topic.message_type.__qualname__}. Let its handler take that."
        )


def foreign_messages(
    name: str, accepts: str | None, id_from: str | None, producer_from: str | None, producer: str | None
) -> ForeignMessages | None:
    """Return the foreign messages that an endpoint takes. Raises ``DeclarationError``."""
    if accepts is None:
        if (id_from, producer_from, producer) != (None, None, None):
            raise DeclarationError(
                f"{name} names sources of ids, but takes no foreign messages. Add accepts='json', or leave them out."
            )
        return None
    if accepts != "json":
        raise DeclarationError(f"accepts of {name} must be 'json', not {accepts!r}")
    if id_from is None:
        raise DeclarationError(
            f"{name} takes foreign messages, whose copies are recognised by their producer's ids. Say where these are: "
            "id_from='header:NAME', 'header:message-id' or 'field:NAME'."
        )
    return ForeignMessages(id_from, producer_from, producer)


def check_address(name: object, what: str = "an endpoint") -> str:
    if callable(name):
        raise DeclarationError(f'{what} needs a name: write @app.endpoint("payments.pay") above the handler.')
    if not isinstance(name, str) or not _ADDRESS.fullmatch(name) or len(name) > ADDRESS_LENGTH_MAX:
        raise DeclarationError(
            f"{name!r} cannot be {what}'s name: use letters, digits, '_' and '-', in parts separated by dots, "
            f"at most {ADDRESS_LENGTH_MAX} characters, such as 'payments.pay'."
        )
    return name
