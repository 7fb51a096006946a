"""The sinks that an app declares."""

from __future__ import annotations

import inspect
from typing import Any

from stagepost.flow.errors import DeclarationError
from stagepost.transaction.sinks import Sink, SinkFactory

METHODS = ("initialize", "before_commit", "success", "failure", "dispose")


class DeclaredSinks:
    """``factories`` make the sinks of each envelope, in the order of their registration.

    A sink with a transaction of its own and a batch exclude each other, so this also knows the stages with batches.
    """

    def __init__(self) -> None:
        self.factories: list[SinkFactory] = []
        self._owner: str | None = None
        self._batched: str | None = None

    def declare(self, factory: Any, *, owns_transaction: bool) -> None:
        """Add a factory. Raises ``DeclarationError``."""
        name = getattr(factory, "__qualname__", repr(factory))
        if isinstance(factory, Sink) or not callable(factory):
            raise DeclarationError(
                f"{factory!r:.100} cannot make sinks: register a subclass of stagepost.Sink, or a function that "
                "returns one, and not the sink itself. A function may return the same sink each time."
            )
        if isinstance(factory, type):
            _check_class(name, factory)
        elif inspect.iscoroutinefunction(factory):
            raise DeclarationError(f"{name} is `async def`, so it returns no sink; make it a plain function.")
        if owns_transaction:
            if self._batched is not None:
                raise _both(name, self._batched)
            self._owner = name
        self.factories.append(factory)

    def declare_batch(self, address: str) -> None:
        """Take note of a stage with a batch. Raises ``DeclarationError``."""
        if self._owner is not None:
            raise _both(self._owner, address)
        self._batched = address


def _check_class(name: str, factory: type) -> None:
    if not issubclass(factory, Sink):
        raise DeclarationError(f"{name} is no sink: derive it from stagepost.Sink.")
    for each in METHODS:
        if inspect.iscoroutinefunction(getattr(factory, each)):
            raise DeclarationError(f"{name}.{each} is `async def`; the methods of a sink are plain functions.")
    required = [
        each.name
        for each in inspect.signature(factory).parameters.values()
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    if required:
        raise DeclarationError(
            f"{name} needs {', '.join(required)}, and Stagepost makes sinks without arguments: register a function "
            "that makes them."
        )


def _both(sink: str, address: str) -> DeclarationError:
    return DeclarationError(
        f"{sink} owns a transaction, and the messages of a batch of {address} share one: if the batch is undone, the "
        f"sink's transaction is not. Declare {address} without batch=."
    )
