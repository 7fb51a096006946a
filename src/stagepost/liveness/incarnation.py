"""One worker incarnation: a process, or one Spark task attempt, that claims messages under a name of its own.

It proves that it lives by a lock that the system frees when it dies, and by a heartbeat, and it keeps a record of what
it runs, which outlives it. Where it does so follows from the store: in a file beside an SQLite file (``lock_file``), in
a row of the database elsewhere (``lock_row``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import msgspec

from stagepost.flow.claim import Claim

# "running": it was in its handler, or committing. "timed-out": its time limit had passed and it did not yield.
# "abandoned": it ran, and its worker was told to stop and could wait no longer.
RunState = Literal["running", "timed-out", "abandoned"]


class Header(msgspec.Struct, frozen=True):
    owner: str
    node: str
    process: int
    started_at: int
    is_abandoned: bool = False


class Running(NamedTuple):
    """What one slot of the record says: the fence of the message that runs there, and how."""

    state: RunState
    row: int
    deliveries: int


@dataclass(frozen=True, slots=True)
class Record:
    header: Header
    running: tuple[Running, ...]


class Incarnation(Protocol):
    """``owner`` is what the claims of this incarnation carry. Close it when everything it held is settled or
    released."""

    owner: str

    def note(self, slot: int, claim: Claim) -> None:
        """Put on record what runs in that slot.

        What was settled may stay on record: its fence no longer matches anything.
        """

    def clear(self, slot: int) -> None:
        """Nothing runs in that slot, and what ran last is not settled."""

    def time_out(self, slot: int) -> None:
        """Say of what runs in that slot that its time limit has passed; nothing where nothing does."""

    def abandon(self) -> None:
        """Say of all that runs here, but for what has timed out, that it was told to stop and is not waited for."""

    def beat(self) -> str | None:
        """Prove that this process is not paused. Why nobody can see the proof, where that is so and stays so."""

    def close(self) -> None: ...
