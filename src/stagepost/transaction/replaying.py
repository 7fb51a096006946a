"""Replaying dead letters: the same message, with the same id, gets new attempts.

What never committed keeps its id, so everything downstream still recognises it. The set is frozen when it is asked for,
and kept in the store: what dies again during the replay is not replayed again, and whoever is broken off is resumed.
"""

from __future__ import annotations

from collections.abc import Iterator

from stagepost.flow.clock import Clock
from stagepost.recovery.letters import LetterGroup
from stagepost.recovery.pace import Pace
from stagepost.recovery.replays import Chunk, Replay, Wanted
from stagepost.transaction.reviving import deaths_kept, waypoint_of
from stagepost.transaction.seams import Patience, Session, Transport

# How soon to look again after what another process is at work on.
OTHERS_SECONDS = 0.1


def ask(session: Session, wanted: Wanted, *, clock: Clock, who: str, rate: float | None = None) -> Replay | None:
    """Freeze the set of these letters. None, and nothing is kept, where there are none."""
    session.begin()
    try:
        replay = session.replays.freeze(wanted, who=who, at=clock.now(), rate=rate)
        if not replay.letters:
            return None
        session.commit()
        return replay
    finally:
        session.rollback()


def try_out(session: Session, wanted: Wanted) -> list[LetterGroup]:
    """The letters that would be frozen now, by group: they are, and that is taken back."""
    session.begin()
    try:
        return session.replays.groups(session.replays.freeze(wanted, who="", at=0, rate=None).id)
    finally:
        session.rollback()


def work_off(
    session: Session,
    transport: Transport,
    replay: Replay,
    *,
    clock: Clock,
    patience: Patience,
    node: str,
    who: str,
    rate: float | None = None,
) -> Iterator[Chunk]:
    """Replay what is left of the set, ``rate`` messages a second; yields each chunk after its commit.

    Ends when nothing is left, or when ``patience`` does. Any number of processes may do this at once.
    """
    pace = Pace(rate, clock)
    after = 0
    while _wait_for(pace, patience):
        chunk = _replay(session, transport, replay.id, after, pace.chunk, clock=clock, node=node, who=who)
        pace.did(len(chunk.letters))
        if chunk.ids:
            after = chunk.ids[-1]
            yield chunk
        elif after:
            # What others took before it, and did not commit, is there again.
            after = 0
        else:
            left = session.replays.find(replay.id)
            if left is None or not left.left or not patience.wait(OTHERS_SECONDS):
                return


def _wait_for(pace: Pace, patience: Patience) -> bool:
    """False when told to stop."""
    while patience.wait(seconds := pace.seconds_to_wait()):
        if not seconds:
            return True
    return False


def _replay(
    session: Session,
    transport: Transport,
    replay_id: int,
    after: int,
    limit: int,
    *,
    clock: Clock,
    node: str,
    who: str,
) -> Chunk:
    session.begin()
    try:
        chunk = session.replays.take(replay_id, after, limit)
        if not chunk.ids:
            return chunk
        for kept in chunk.letters:
            transport.revive(kept.letter, deaths=deaths_kept(kept.letter))
        now, detail = clock.now(), f"by {who}, replay {replay_id}"
        session.record([waypoint_of(kept.letter, "replayed", now, node, detail) for kept in chunk.letters])
        session.replays.advance(replay_id, len(chunk.letters), chunk.gone)
        session.commit()
        return chunk
    finally:
        session.rollback()
