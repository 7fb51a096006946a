"""What the transaction asks of a database and of what carries envelopes. Contract suites: ``stagepost.testing``.

A ``Session`` is one connection, used by one thread. A ``Transport`` carries envelopes; the database transport does it
on the tables of a session, so that what it takes and puts commits with the stage's data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from stagepost.flow.claim import Claim
from stagepost.flow.errors import StagepostError, StoreError
from stagepost.flow.initiation import Acceptance, Outgoing, Verdict
from stagepost.flow.queue import Pending
from stagepost.flow.reading import Depth
from stagepost.flow.rows import Rows
from stagepost.flow.waypoint import Waypoint
from stagepost.recovery.deadletter import DeadLetter
from stagepost.recovery.letters import KeptLetter, LetterGroup, Selection


class Recording(Protocol):
    """What is written in whatever transaction is open, beside the queue."""

    def record(self, waypoints: Sequence[Waypoint]) -> None:
        """Append to the journal."""

    def accept(self, acceptance: Acceptance) -> Verdict:
        """Let the key in, or say that it is in already."""

    def bury(self, letter: DeadLetter) -> None:
        """Add a dead letter."""

    def exhume(self, letter_id: int) -> bool:
        """Remove a dead letter, to be replayed. False when it is not there, or no longer."""


class Reader(Protocol):
    """What a store tells those who only look. A flow's history is in the order it was written."""

    def depths(self) -> list[Depth]: ...

    def history(self, flow_id: str) -> list[Waypoint]: ...

    def flow_of(self, message_id: str) -> str | None: ...

    def last_waypoint(self) -> int:
        """The id of the journal's last line: whatever is written later has a greater one. 0 for an empty journal."""

    def position(self) -> int:
        """Where the journal ends: what is before it is there and stays as it is; whatever comes later comes at it or
        beyond."""

    def committed_since(self, position: int) -> dict[str, int]:
        """How many messages each node committed from that position on."""

    def has_ended_since(self, position: int) -> bool:
        """Whether an attempt ended from that position on, well or not. Claims that were given back are none."""

    def letters(self, selection: Selection) -> Iterator[KeptLetter]: ...

    def letter_groups(self) -> list[LetterGroup]: ...


class Session(Recording, Protocol):
    """
    ``ended_by``  how a handler may have ended the transaction, and what it should do instead; for the error's text
    """

    ended_by: str

    @property
    def reader(self) -> Reader: ...

    def begin(self, *, is_durable: bool = True) -> None:
        """Open a write transaction, waiting for other writers. Raises ``StoreContention``, ``StoreUnavailable``.

        One that is not durable may be lost, whole, to a power failure, but to nothing else.
        """

    def commit(self) -> None:
        """Raises ``StoreError`` when nothing was committed, ``CommitUnknown`` when that cannot be told."""

    def rollback(self) -> None:
        """End the open transaction, if any, whatever state it is in."""

    def reconnect(self) -> None:
        """Drop the connection and what was open on it, and make another."""

    @property
    def is_open(self) -> bool:
        """Whether the transaction that ``begin`` opened is still the one that is open."""

    @property
    def interruption(self) -> StagepostError | None:
        """What kept one of Stagepost's own statements from going through, and so ended the transaction; None where
        that is told at once."""

    def atomic(self) -> AbstractContextManager[None]:
        """Within the open transaction: undo what the block wrote when it raises, and only that."""

    def lend(self, place: str, touch: Callable[[], None]) -> None:
        """Let a handler use ``connection`` and ``execute``; ``touch`` is called before each of its statements.

        Raises ``StoreUnavailable``.
        """

    def take_back(self) -> StoreError | None:
        """Close whatever the handler left open; its cursors and the connection refuse it from now on.

        Returns the outage that its own statements met, if any: no message is to blame for that.
        """

    @property
    def connection(self) -> Any: ...

    def execute(self, statement: str, parameters: dict[str, Any]) -> Rows: ...

    def interrupt(self) -> None:
        """Break off the statement that runs, from another thread."""


class Sender(Protocol):
    def put(self, outgoing: Sequence[tuple[Outgoing, bytes]]) -> None:
        """Send envelopes, each with its encoding, in whatever transaction is open."""


class Transport(Sender, Protocol):
    """One thread's way to what carries envelopes.

    ``take``, ``put``, ``defer`` and ``revive`` happen in the open transaction of the session it was made with; the
    others are transactions of their own.
    """

    def take(self, claim: Claim) -> None:
        """Remove the claimed message for good. Raises ``LeaseLost`` where it is no longer this claim's: now, or with
        what is next asked of the session, the commit at the latest."""

    def defer(self, claim: Claim, *, due_at: int, failures: int, deaths: int) -> bool:
        """Put the claimed message back, to be claimed again from ``due_at`` on. False when it is no longer ours.

        What has died runs alone from then on.
        """

    def revive(self, letter: DeadLetter, *, deaths: int) -> None:
        """Put a dead letter's message back as it came, with its failures forgotten."""

    def holds(self, claim: Claim) -> bool:
        """Whether the message is still there and still this claim's; settles what an unanswered commit did."""

    def claim(self, stages: Sequence[str], limit: int, owner: str, node: str) -> list[Claim]:
        """Make up to ``limit`` due messages of these stages ours, of the oldest flows first, and put that on record."""

    def claim_suspect(self, stages: Sequence[str], owner: str, node: str) -> Claim | None:
        """The due suspect with the fewest deaths, if any, to be run alone."""

    def release(self, claims: Sequence[Claim], node: str) -> None:
        """Give back what was claimed and not tried, uncounted. What is no longer ours is left alone."""

    def owned(self, owner: str) -> list[Claim]:
        """What that owner holds."""

    def owners(self) -> list[str]:
        """Who holds anything. Read it before you look who is alive, never after."""

    def pending(self, stages: Sequence[str]) -> Pending:
        """What is still to be done for these stages."""

    def changed(self) -> bool:
        """Whether anybody may have put or released something since the last call. Cheap; may say yes for nothing."""


class Watch(Protocol):
    """Keeps the record of what runs, for the case that this process dies, and the time limit."""

    def started(self, claim: Claim, time_limit_seconds: float) -> None: ...

    def ended(self, *, is_settled: bool) -> None:
        """``is_settled``: the claim is no longer ours, whatever became of it."""

    def handling(self, interrupt: Callable[[], None] | None) -> AbstractContextManager[None]:
        """Within it a handler runs; ``TimeLimitExceeded`` may be raised at any line of it, or ``interrupt`` be
        called."""

    def handled(self) -> None:
        """After it: nothing is raised any more, even where leaving it was what the exception broke off."""

    def waiting(self) -> AbstractContextManager[None]:
        """Within it, inside ``handling``, the time limit stands still and nothing is raised."""


class Patience(Protocol):
    def wait(self, seconds: float) -> bool:
        """Pause. False at once when the one who waits has been told to stop."""
