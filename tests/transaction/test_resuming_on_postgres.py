"""Several at one replay on PostgreSQL: each takes what the others have not locked, and what they give up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from stagepost.ports.dead_letters import Selection
from stagepost.ports.replays import Replay
from stagepost.runtime.access import Access
from stagepost.store.postgres.store import PostgresStore
from stagepost.testing import ManualClock
from stagepost.testing.contract.givens import a_letter, committed
from stagepost.transaction import replaying
from stagepost.transaction.queue_commit import QueueCommit
from stagepost.transaction.replaying import freeze, run_replay


@pytest.fixture
def ways(new_postgres: Callable[[], str], clock: ManualClock) -> Iterator[tuple[Access, Access]]:
    store = PostgresStore(new_postgres())
    with closing(store.session()) as one, closing(store.session()) as two:
        with committed(one):
            for n in range(6):
                one.dead_letters.bury(a_letter(f"m{n}", envelope=b"{}"))
        yield Access(one, clock), Access(two, clock)


@pytest.fixture
def replay(ways: tuple[Access, Access], clock: ManualClock) -> Replay:
    asked = freeze(ways[0].session, [Selection("all")], clock=clock, who="ada")
    assert asked is not None
    return asked


def test_what_another_is_taking_is_passed_over_and_not_waited_for(ways: tuple[Access, Access], replay: Replay) -> None:
    one, two = (way.session for way in ways)
    one.begin()
    first = one.replays.take(replay.id, 0, 2)
    two.begin()
    second = two.replays.take(replay.id, 0, 2)
    assert [kept.letter.message_id for kept in (*first.letters, *second.letters)] == ["m0", "m1", "m2", "m3"]
    two.commit()
    one.commit()


def test_what_another_had_taken_and_did_not_commit_is_done_by_who_is_left(
    ways: tuple[Access, Access], replay: Replay, clock: ManualClock
) -> None:
    holder, worker = ways
    holder.session.begin()
    holder.session.replays.take(replay.id, 0, 2)
    waits: list[float] = []

    class Waiting:
        """The holder dies while we wait for what it has."""

        def wait(self, seconds: float) -> bool:
            if seconds == replaying.OTHERS_SECONDS:
                waits.append(seconds)
                holder.session.rollback()
            assert len(waits) < 10
            return True

    chunks = run_replay(QueueCommit(worker.session, clock, "cli"), replay, stop=Waiting(), who="ada")
    assert [[kept.letter.message_id for kept in each.letters] for each in chunks] == [
        ["m2", "m3", "m4", "m5"],
        ["m0", "m1"],
    ]
    assert waits == [replaying.OTHERS_SECONDS]
    kept = worker.session.replays.find(replay.id)
    assert kept is not None
    assert (kept.replayed, kept.left) == (6, 0)
