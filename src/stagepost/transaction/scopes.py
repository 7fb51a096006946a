"""Scopes: one container of services for each envelope, shared by its messages and handlers.

The app's container is behind ``Scopes``, and the container of one envelope behind ``Scope``. The outermost sink opens
and closes the scope, so every other sink ends before the services do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from stagepost.transaction.sinks import IncomingEnvelope, Sink


class Scope(Protocol):
    """The services of one envelope. One thread uses it."""

    def get(self, wanted: Any, /) -> Any:
        """Return the service of a type, the same one each time. Its errors fail the attempt."""

    def close(self) -> None:
        """Release the services in the reverse order of their making."""


class Scopes(Protocol):
    """The app's services, from which the scope of each envelope is opened. Any number of threads use it."""

    def open(self) -> Scope:
        """Open the scope of one envelope."""


class ScopeSink(Sink):
    """Opens a scope, hands it to ``use``, and closes it after the handlers and all other sinks."""

    def __init__(self, scopes: Scopes, use: Callable[[Scope], None]) -> None:
        self._scopes = scopes
        self._use = use
        self._scope: Scope | None = None

    def initialize(self, incoming: IncomingEnvelope) -> None:
        self._scope = self._scopes.open()
        self._use(self._scope)

    def dispose(self) -> None:
        assert self._scope is not None
        self._scope.close()
