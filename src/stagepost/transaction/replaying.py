"""Replay dead letters: the same message, with the same id, gets new attempts.

The message never committed, so it keeps its id, and everything downstream still recognises it. A replay freezes its set
of letters at the beginning and keeps it in the store. So a message that dies again is not replayed again, and an
interrupted replay can be resumed.
"""

from __future__ import annotations

from collections.abc import Iterator

from stagepost.flow.clock import Clock
from stagepost.flow.errors import ReplayRefused
from stagepost.ports.dead_letters import LetterGroup
from stagepost.ports.replays import Chunk, Replay, Selections
from stagepost.ports.session import Session
from stagepost.recovery.rate_limiter import RateLimiter
from stagepost.transaction.database_wait import StopSignal
from stagepost.transaction.departures import restamp
from stagepost.transaction.enqueueing import line_of_letter
from stagepost.transaction.queue_commit import QueueCommit, committing
from stagepost.transaction.undoing import dead_undo, open_effects

# The messages of these dead letters may have reached their receivers.
MAYBE_GONE = ("maybe-sent", "maybe-delivered")
# How often a replay checks for letters that another process has not replayed after all.
OTHERS_SECONDS = 0.1
# How soon it looks again for a letter whose effects are being undone.
UNDO_SECONDS = 0.5


def freeze(
    session: Session,
    wanted: Selections,
    *,
    clock: Clock,
    who: str,
    rate: float | None = None,
    may_send_again: bool = False,
) -> Replay | None:
    """Freeze the set of these letters. Returns None, and stores nothing, if there are none.

    Raises ``ReplayRefused`` where a message of the set may have been sent, and its replay ``may_send_again`` is not
    wanted: its receiver may no longer know the first copy.
    """
    session.begin()
    try:
        replay = session.replays.freeze(wanted, who=who, at=clock.now(), rate=rate)
        if not replay.letters:
            return None
        maybe_sent = (
            [] if may_send_again else [each for each in session.replays.groups(replay.id) if each.reason in MAYBE_GONE]
        )
        if maybe_sent:
            raise ReplayRefused(
                f"{sum(each.count for each in maybe_sent)} of these messages may have been sent already, to "
                f"{', '.join(sorted({each.stage for each in maybe_sent}))}. Their receiver may no longer recognise a "
                "copy. Nothing was replayed. Look for them there, then replay those that are missing with --again."
            )
        session.commit()
        return replay
    finally:
        session.rollback()


def preview(session: Session, wanted: Selections) -> list[LetterGroup]:
    """Return the letters that ``freeze`` would freeze now, by group. It freezes them and rolls back."""
    session.begin()
    try:
        return session.replays.groups(session.replays.freeze(wanted, who="", at=0, rate=None).id)
    finally:
        session.rollback()


def run_replay(
    queue_commit: QueueCommit, replay: Replay, *, stop: StopSignal, who: str, rate: float | None = None
) -> Iterator[Chunk]:
    """Replay the rest of the set, ``rate`` messages a second, and yield each chunk after its commit.

    Ends when no letters are left, or on ``stop``. Any number of processes may work on one replay. It waits for a
    letter whose effects are being undone. Raises ``ReplayRefused`` if the undo is a dead letter itself.
    """
    limiter = RateLimiter(rate, queue_commit.clock)
    after = 0
    while wait_for(limiter, stop):
        try:
            chunk = _replay(queue_commit, replay.id, after, limiter.chunk, who)
        except _BeingUndone:
            if not stop.wait(UNDO_SECONDS):
                return
            continue
        limiter.did(len(chunk.letters))
        if chunk.ids:
            after = chunk.ids[-1]
            yield chunk
        elif after:
            # Earlier letters that another process took, and did not commit, are available again.
            after = 0
        else:
            left = queue_commit.session.replays.find(replay.id)
            if left is None or not left.left or not stop.wait(OTHERS_SECONDS):
                return


def wait_for(limiter: RateLimiter, stop: StopSignal) -> bool:
    """Wait for the next chunk. Returns False on ``stop``."""
    while stop.wait(seconds := limiter.seconds_to_wait()):
        if not seconds:
            return True
    return False


class _BeingUndone(Exception):
    """The effects of a letter are being undone."""


def _check_undone(queue_commit: QueueCommit, chunk: Chunk) -> None:
    """Raises ``_BeingUndone``, and ``ReplayRefused`` for a letter whose undo is dead."""
    for kept in chunk.letters:
        left = open_effects(queue_commit.effects, kept.letter)
        if not left:
            continue
        undo = dead_undo(queue_commit.session, kept.letter, left)
        if undo is None:
            raise _BeingUndone
        raise ReplayRefused(
            f"the dead letter {kept.id} called the effect {left[0].id.name}, and the order to undo it is the dead "
            f"letter {undo.id}: {undo.letter.summary}. Replay {undo.id} first. Then resume this one."
        )


def _replay(queue_commit: QueueCommit, replay_id: int, after: int, limit: int, who: str) -> Chunk:
    session = queue_commit.session
    with committing(session):
        chunk = session.replays.take(replay_id, after, limit)
        if not chunk.ids:
            return chunk
        _check_undone(queue_commit, chunk)
        for kept in chunk.letters:
            queue_commit.revive(kept.letter)
        restamp(queue_commit, [kept.letter for kept in chunk.letters])
        now, detail = queue_commit.clock.now(), f"by {who}, replay {replay_id}"
        session.journal.record(
            [line_of_letter("replayed", kept.letter, now, queue_commit.node, detail) for kept in chunk.letters]
        )
        session.replays.advance(replay_id, len(chunk.letters), chunk.gone)
        return chunk
