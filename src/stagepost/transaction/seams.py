"""What the transaction asks of a database and of what carries envelopes. Contract suites: ``stagepost.testing``.

A ``Session`` is one connection, used by one thread. A ``Transport`` carries envelopes; the database transport does it
on the tables of a session, so that what it takes and puts commits with the stage's data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from stagepost.flow.claim import Claim
from stagepost.flow.declaration import Declaration, Undeclared
from stagepost.flow.doubt import InDoubt
from stagepost.flow.errors import StagepostError, StoreError
from stagepost.flow.inbox import Backlog, Handled, Held, InboxRow
from stagepost.flow.initiation import Acceptance, Outgoing, Verdict
from stagepost.flow.journal import Position
from stagepost.flow.queue import Pending
from stagepost.flow.reading import Depth
from stagepost.flow.rows import Rows
from stagepost.flow.topic import Subscription
from stagepost.flow.waypoint import Waypoint
from stagepost.recovery.deadletter import DeadLetter
from stagepost.recovery.letters import KeptLetter, LetterGroup, Selection
from stagepost.recovery.pausing import End, Streak
from stagepost.recovery.replays import Chunk, Replay, Wanted


class Recording(Protocol):
    """What is written, or read, in whatever transaction is open, beside the queue."""

    def record(self, waypoints: Sequence[Waypoint]) -> None:
        """Append to the journal."""

    def accept(self, acceptances: Sequence[Acceptance]) -> list[Verdict]:
        """Let each key in, or say that it is in already. Raises ``StoreContention`` where another open transaction has
        let one in and does not end."""

    def bury(self, letter: DeadLetter) -> None:
        """Add a dead letter."""

    def exhume(self, letter_id: int) -> bool:
        """Remove a dead letter, to be edited. False when it is not there, or no longer."""

    def subscribe(self, subscription: Subscription) -> None:
        """From now on the subscriber gets a copy of what is published there. Nothing changes where it did before, but
        for the app that it belongs to."""

    def unsubscribe(self, topic: str, subscriber: str) -> bool:
        """False where it was not subscribed."""

    def subscriptions(self, topics: Sequence[str]) -> list[Subscription]:
        """Of these topics, in any order."""


class Inbox(Protocol):
    """Which messages the stages of this database have handled whose queue is elsewhere, with what they produced.

    Writes are part of the session's open transaction.
    """

    def admit(self, row: InboxRow) -> bool:
        """False where the message was handled before. Raises ``StoreContention`` where another copy of it is being
        handled at this moment, and does not come to an end soon."""

    def keep(self, stage: str, message_id: str, produced: bytes) -> None:
        """With what was admitted, until it is marked."""

    def find(self, stage: str, message_id: str) -> Handled | None: ...

    def mark(self, stage: str, message_id: str) -> None:
        """What it produced has been sent: the bytes go, the id stays."""

    def unsent(self, now: int, limit: int) -> list[tuple[str, str]]:
        """Stage and id of what was not marked by the time its lease ended, longest ago first."""

    def postpone(self, stage: str, message_id: str, until: int) -> None:
        """Look again then."""

    def backlog(self) -> Backlog:
        """What was handled, and is not marked."""


class Outbox(Protocol):
    """What was started in this database and has not reached the queue yet, which is elsewhere.

    Writes are part of the session's open transaction.
    """

    def hold(self, acceptances: Sequence[Acceptance], now: int, node: str) -> None: ...

    def lease(self, now: int, until: int, limit: int) -> list[Held]:
        """What is due, oldest first; nobody else gets it until then."""

    def postpone(self, held_id: int, until: int, attempts: int) -> None:
        """``attempts``: how often it was refused."""

    def remove(self, held_id: int) -> None: ...

    def next_at(self) -> int | None:
        """When the next is due; None where nothing is held."""

    def backlog(self) -> Backlog: ...


class Reader(Protocol):
    """What a store tells those who only look. A flow's history is in the order it was written."""

    def depths(self) -> list[Depth]: ...

    def history(self, flow_id: str) -> list[Waypoint]: ...

    def flow_of(self, message_id: str) -> str | None: ...

    def has_committed(self, stage: str, message_id: str) -> bool:
        """Whether the journal says so."""

    def last_waypoint(self) -> int:
        """The id of the journal's last line: whatever is written later has a greater one. 0 for an empty journal."""

    def position(self) -> Position:
        """Where the journal ends: what is before it is there and stays as it is, also after a crash; whatever comes
        later comes at it or beyond. Outside any transaction."""

    def unseen(self, position: int) -> Backlog:
        """What was written from that position on, and when the oldest of it."""

    def committed_since(self, position: int) -> dict[str, int]:
        """How many messages each node committed from that position on."""

    def has_ended_since(self, position: int) -> bool:
        """Whether an attempt ended from that position on, well or not. Claims that were given back are none."""

    def letters(self, selection: Selection) -> Iterator[KeptLetter]: ...

    def letter_ids(self, flow_ids: Sequence[str]) -> list[int]:
        """Of the dead letters of these flows, in any order."""

    def letter_groups(self) -> list[LetterGroup]: ...


class Replays(Protocol):
    """Replays of dead letters, and what is left of their frozen sets; writes are part of the open transaction."""

    def freeze(self, wanted: Wanted, *, who: str, at: int, rate: float | None) -> Replay:
        """Keep a replay of all letters that are wanted in one way or another, each once."""

    def take(self, replay_id: int, after: int, limit: int) -> Chunk:
        """Take up to ``limit`` letters, the first ones beyond ``after``, off the set, and remove the dead letters.

        What another session is taking off the same set at this moment is passed over, or waited for.
        """

    def advance(self, replay_id: int, replayed: int, gone: int) -> None:
        """Count what became of a chunk."""

    def find(self, replay_id: int) -> Replay | None: ...

    def listed(self) -> list[Replay]:
        """All of them, the oldest first."""

    def groups(self, replay_id: int) -> list[LetterGroup]:
        """The letters that are left of its set, and still there."""


class Streaks(Protocol):
    """How the stages fail, and which are paused; writes are part of the open transaction."""

    def lock(self, stage: str) -> Streak:
        """The stage's, an empty one where it never failed; nobody else changes it before the transaction ends."""

    def keep(self, streak: Streak) -> None:
        """As it is now; it was locked before."""

    def forget(self, stage: str) -> bool:
        """As if it had never failed: a pause ends. False where there was nothing to forget."""

    def paused(self) -> list[Streak]:
        """Those of all paused stages, by their names."""

    def has_succeeded(self, stage: str, since: int) -> bool:
        """Whether the stage committed a message after that line of the journal."""

    def due(self, stages: Sequence[str], now: int) -> list[Streak]:
        """Of the paused ones, those whose next probe is due, locked; without those that another one has locked."""

    def is_claimed(self, row: int) -> bool:
        """Whether that message is somebody's: a probe at work."""

    def claim_probe(self, stage: str, owner: str, end: End) -> Claim | None:
        """Of what waits at a paused stage, the message with the fewest failures becomes the owner's; of several, that
        of the oldest flow or of the newest. Nothing is probed again before all else that waits had its turn."""


class Declarations(Protocol):
    """Which app declares which stage; writes are part of the open transaction."""

    def lock(self) -> None:
        """Nobody else changes any before the transaction ends."""

    def listed(self) -> list[Declaration]:
        """All of them, in any order."""

    def put(self, declarations: Sequence[Declaration]) -> None:
        """Each in place of what was known of its stage."""

    def undeclared(self) -> list[Undeclared]:
        """The stages, and other addresses, at which something waits and which are not declared, or were dropped."""


class Session(Recording, Protocol):
    """
    ``ended_by``  how a handler may have ended the transaction, and what it should do instead; for the error's text
    """

    ended_by: str

    @property
    def reader(self) -> Reader: ...

    @property
    def inbox(self) -> Inbox: ...

    @property
    def outbox(self) -> Outbox: ...

    @property
    def replays(self) -> Replays: ...

    @property
    def streaks(self) -> Streaks: ...

    @property
    def declarations(self) -> Declarations: ...

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
    def broken_by(self) -> Exception | None:
        """The error of the handler's statement with which its transaction came to its end, if it was that."""

    @property
    def interruption(self) -> StagepostError | None:
        """What kept one of Stagepost's own statements from going through, and so ended the transaction; None where
        that is told at once."""

    def atomic(self) -> AbstractContextManager[None]:
        """Within the open transaction: undo what the block wrote when it raises, and only that."""

    def lend(self, place: str, touch: Callable[[], None], *, may_answer_late: bool = False) -> None:
        """Let a handler use ``connection`` and ``execute``; ``touch`` is called before each of its statements.

        Where it ``may_answer_late``, a statement need not be run before its rows are looked at: then what fails in it
        may be raised in the place of another one. Raises ``StoreUnavailable``.
        """

    def catch_up(self) -> None:
        """Run what was to be answered late. Raises ``StoreError``, ``LeaseLost``."""

    def take_back(self) -> StoreError | None:
        """Close whatever the handler left open; its cursors and the connection refuse it from now on.

        Returns the outage that its own statements met, if any: no message is to blame for that.
        """

    @property
    def connection(self) -> Any: ...

    def execute(self, statement: str, parameters: dict[str, Any]) -> Rows: ...

    def interrupt(self) -> None:
        """Break off the statement that runs, from another thread."""


class Decisions(Protocol):
    """What this database decided of transactions that are prepared in the queue's.

    Writes are part of the session's open transaction.
    """

    def decide(self, gid: str, *, is_commit: bool) -> bool:
        """False where it was decided before. Waits for somebody who is just deciding; raises ``StoreContention`` where
        that takes long."""

    def find(self, gid: str) -> bool | None:
        """Whether it is to be committed; None where nothing was decided."""

    def kept(self, age: int, limit: int, *, is_commit: bool) -> list[str]:
        """Decisions of that kind that are so old by the server's clock, in microseconds, oldest first."""

    def forget(self, gids: Sequence[str]) -> None: ...


class DecidingSession(Session, Protocol):
    """Of a database that decides."""

    @property
    def decisions(self) -> Decisions: ...


class PreparingSession(Session, Protocol):
    """Of a database whose transactions can be prepared, and then outlive whatever may happen."""

    def begin_to_prepare(self) -> None:
        """Open a transaction that will not be committed in one step."""

    def prepare(self, gid: str) -> None:
        """In place of ``commit``. Raises ``StoreError`` where it is not prepared, ``StoreUnavailable`` where that is
        not known."""

    def commit_prepared(self, gid: str) -> None:
        """Nothing where somebody else has done it."""

    def rollback_prepared(self, gid: str) -> None:
        """Nothing where somebody else has done it, or it was never prepared."""

    def in_doubt(self, prefix: str) -> list[InDoubt]:
        """What is prepared under such names, oldest first."""

    @property
    def prepared_max(self) -> int:
        """How many transactions may be prepared at a time."""


class Sender(Protocol):
    def put(self, outgoing: Sequence[tuple[Outgoing, bytes]]) -> None:
        """Send envelopes, each with its encoding, in whatever transaction is open."""


class Transport(Sender, Protocol):
    """One thread's way to what carries envelopes.

    ``take``, ``take_all``, ``put``, ``defer`` and ``revive`` happen in the open transaction of the session it was made
    with; the others are transactions of their own.
    """

    def take(self, claim: Claim) -> None:
        """Remove the claimed message for good. Raises ``LeaseLost`` where it is no longer this claim's: now, or with
        what is next asked of the session, the commit at the latest."""

    def take_all(self, claims: Sequence[Claim]) -> None:
        """All of them, or raise as ``take`` does."""

    def defer(self, claim: Claim, *, due_at: int, failures: int, deaths: int) -> bool:
        """Put the claimed message back, to be claimed again from ``due_at`` on. False when it is no longer ours.

        What has died runs alone from then on.
        """

    def revive(self, letter: DeadLetter, *, deaths: int, failures: int = 0) -> None:
        """Put a dead letter's message back as it came, with its failures forgotten, or some of them."""

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

    def unattended(self, owner: str, *, is_paused: bool = False) -> list[Claim]:
        """What of it nobody is at work on, as far as can be seen: whoever takes over does not wait for the rest.

        Where the owner ``is_paused``, the transactions in which it stands still are ended, where the database can do
        that; what it held in them is seen by a later look."""

    def owners(self) -> list[str]:
        """Who holds anything. Read it before you look who is alive, never after."""

    def waiting_stages(self) -> list[str]:
        """For whom something waits that can be claimed, of whatever app."""

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
