"""The duties that every store has are few, and each of them says what it does."""

from __future__ import annotations

from types import FunctionType

from stagepost.ports.accepted import Accepted
from stagepost.ports.dead_letters import DeadLetters
from stagepost.ports.journal import Journal
from stagepost.ports.liveness import Incarnation, WorkerRegistry
from stagepost.ports.queue import Queue
from stagepost.ports.session import JoinedSession, Session
from stagepost.ports.store import Store

MANDATORY: list[type] = [
    Store, JoinedSession, Session, Queue, Journal, Accepted, DeadLetters, WorkerRegistry, Incarnation
]  # fmt: skip
# Lower it with each member that goes.
LIMIT = 60


def test_every_store_has_no_more_duties_than_the_limit() -> None:
    found = [f"{port.__name__}.{name}" for port in MANDATORY for name in duties_of(port)]
    assert len(found) <= LIMIT, found


def test_every_duty_says_what_it_does() -> None:
    methods = [each for port in MANDATORY for each in vars(port).values() if isinstance(each, FunctionType)]
    assert [each.__qualname__ for each in methods if not each.__name__.startswith("_") and not each.__doc__] == []


def duties_of(port: type) -> list[str]:
    """Return the members that a store must bring along: those of capabilities have a default."""
    named = {**vars(port).get("__annotations__", {}), **vars(port)}
    return [name for name, member in named.items() if not name.startswith("_") and not has_default(member)]


def has_default(member: object) -> bool:
    getter = member.fget if isinstance(member, property) else None
    # A default raises or returns something by its name; a duty has no code.
    return isinstance(getter, FunctionType) and bool(getter.__code__.co_names)
