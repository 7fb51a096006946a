"""The records of worker incarnations, which prove that they are alive.

An incarnation is one start of a worker process, or one Spark task attempt. It claims messages under an owner name of
its own. It holds a lock that the system frees when its process dies, and moves a heartbeat while it is not paused. Its
record survives it and names what it was running. Contract suite:
``testing.contract.liveness``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from stagepost.flow.claim import Claim

# In place of an app's name.
EVERY_APP = "*"

# "running": the message was in its handler, or committing. "timed-out": its time limit had passed and the handler did
# not yield. "abandoned": its worker was told to stop and could not wait any longer.
RunState = Literal["running", "timed-out", "abandoned"]


class Registration(NamedTuple):
    """An incarnation's own description, given when it enters.

    ``slots`` is how many messages it runs at a time. At the ``batched`` stages each slot runs several.
    """

    app: str
    owner: str
    node: str
    host: str
    process: int
    slots: int
    started_at: int
    batched: Sequence[str] = ()


class Running(NamedTuple):
    """One message that an incarnation runs: its state, and the fence of its claim."""

    state: RunState
    row: int
    deliveries: int


class IncarnationRecord(NamedTuple):
    """
    ``key``        names the record within its registry
    ``beat``       changes while the process is not paused; its value has no meaning
    ``is_locked``  the process, or its connection, holds its lock at this moment
    ``is_gone``    the process is known to have ended; False where that cannot be seen
    ``running``    what it runs, or ran when it died; settled messages may still be among it
    """

    key: str
    owner: str
    node: str
    process: int
    started_at: int
    beat: int
    is_locked: bool
    is_gone: bool
    running: tuple[Running, ...]


class Incarnation(Protocol):
    """One incarnation's own side of its record. Any thread of its process may call it."""

    owner: str

    def note(self, slot: int, claim: Claim | None) -> None:
        """Record that the slot runs this claim. It is called before every message, so it must cost next to nothing.

        None records that the slot runs nothing, and that its last claim is not settled. A settled claim may stay on
        record: its fence matches no message any more.
        """

    def time_out(self, slot: int) -> None:
        """Record that the slot's claim has passed its time limit. Do nothing if the slot runs nothing."""

    def abandon(self) -> None:
        """Record all that runs here, now or later, as abandoned, except what has timed out."""

    def beat(self) -> str | None:
        """Move the heartbeat. Return why other processes can never see it again, or None if they can.

        Raises ``OSError`` if the heartbeat cannot be written this time.
        """

    def close(self) -> None:
        """Remove the record and free the lock. Call it after every claim was settled or released."""


class WorkerRegistry(Protocol):
    """All incarnations of a store. One thread at a time may use it. Every method raises ``StoreError``."""

    def enter(self, registration: Registration) -> Incarnation:
        """Add an incarnation. It must hold its lock before any other process can see its record."""

    def look(self, app: str) -> list[IncarnationRecord]:
        """Return the incarnations of an app, or of ``EVERY_APP``.

        A registry may leave out the incarnations of the calling process.
        """

    def forget(self, key: str) -> None:
        """Remove the record of a dead incarnation, unless it has come back. Do nothing if the record is gone."""

    def close(self) -> None:
        """Free what looking has opened. Incarnations stay as they are, and the registry opens again when it is used."""
