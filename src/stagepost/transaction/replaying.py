"""Replaying dead letters: the same message, with the same id, gets new attempts.

What never committed keeps its id, so everything downstream still recognises it. The set is frozen when it is asked for:
what dies again during the replay is not replayed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stagepost.flow.clock import Clock
from stagepost.flow.waypoint import Waypoint
from stagepost.recovery.deadletter import DeadLetter
from stagepost.recovery.letters import KeptLetter, Selection
from stagepost.transaction.seams import Session, Transport

CHUNK = 100


def select_ids(session: Session, selection: Selection) -> list[int]:
    return [kept.id for kept in session.reader.letters(selection)]


def replay(
    session: Session, transport: Transport, ids: Sequence[int], *, clock: Clock, node: str, who: str
) -> Iterator[int]:
    """Replay these letters; yields, after each commit, how many of its chunk were still there to be replayed."""
    for begin in range(0, len(ids), CHUNK):
        session.begin()
        try:
            revived = [letter for each in ids[begin : begin + CHUNK] if (letter := _revive(session, transport, each))]
            session.record([_replayed(letter, clock.now(), node, who) for letter in revived])
            session.commit()
        except BaseException:
            session.rollback()
            raise
        yield len(revived)


def _revive(session: Session, transport: Transport, letter_id: int) -> DeadLetter | None:
    kept: KeptLetter | None = next(session.reader.letters(Selection("id", letter_id)), None)
    if kept is None or not session.exhume(letter_id):
        return None
    # What killed its process before may do so again: it stays a suspect, and runs alone.
    transport.revive(kept.letter, deaths=1 if kept.letter.deaths else 0)
    return kept.letter


def _replayed(letter: DeadLetter, now: int, node: str, who: str) -> Waypoint:
    return Waypoint(
        "replayed",
        now,
        node,
        letter.stage,
        letter.message_id,
        letter.flow_id,
        letter.failures + letter.deaths,
        letter.origin_at,
        detail=f"by {who}",
    )
