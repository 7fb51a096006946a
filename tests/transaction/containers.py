"""The containers that the tests of scopes run on: svcs, and a dictionary of factories."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol

import svcs

from stagepost import Scope, Scopes
from stagepost.integrations.svcs import SvcsScopes

# Makes a service; it may ask the scope for others.
Factory = Callable[[Scope], AbstractContextManager[Any]]


class Container(Protocol):
    """An app's container in the tests."""

    @property
    def scopes(self) -> Scopes: ...

    def provide(self, wanted: type, factory: Factory) -> None:
        """Say how a service is made, and released at the end of its block."""


class WithSvcs:
    def __init__(self) -> None:
        self._registry = svcs.Registry()
        self.scopes: Scopes = SvcsScopes(self._registry)

    def provide(self, wanted: type, factory: Factory) -> None:
        def make(svcs_container: svcs.Container) -> Iterator[Any]:
            with factory(_Getter(svcs_container)) as service:
                yield service

        self._registry.register_factory(wanted, make)


class _Getter:
    """A svcs container as its factories see it."""

    def __init__(self, container: svcs.Container) -> None:
        self._container = container

    def get(self, wanted: Any, /) -> Any:
        return self._container.get(wanted)

    def close(self) -> None:
        raise AssertionError("a factory closes no scope")


class WithDictionary:
    """A container in thirty lines: a dictionary of factories, and a stack for each envelope."""

    def __init__(self) -> None:
        self._factories: dict[type, Factory] = {}
        self.scopes: Scopes = self

    def provide(self, wanted: type, factory: Factory) -> None:
        self._factories[wanted] = factory

    def open(self) -> DictionaryScope:
        return DictionaryScope(self._factories)


class DictionaryScope:
    def __init__(self, factories: dict[type, Factory]) -> None:
        self._factories = factories
        self._made: dict[type, Any] = {}
        self._stack = ExitStack()

    def get(self, wanted: Any, /) -> Any:
        if wanted not in self._made:
            if wanted not in self._factories:
                raise LookupError(wanted)
            self._made[wanted] = self._stack.enter_context(self._factories[wanted](self))
        return self._made[wanted]

    def close(self) -> None:
        self._stack.close()


@contextmanager
def noted(service: Any, name: str, notes: list[str]) -> Iterator[Any]:
    """A service whose making and release are noted."""
    notes.append(f"{name} made")
    try:
        yield service
    finally:
        notes.append(f"{name} released")
