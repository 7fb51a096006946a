"""Contract of several sessions of one store at a time, each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from stagepost.ports.declarations import Declaration
from stagepost.ports.session import Session
from stagepost.ports.store import Store
from stagepost.testing.contract.givens import Given, a_row, a_waypoint, committed, enqueued, recorded

THREADS = 4
ROUNDS = 25


def in_threads(store: Store, work: Callable[[Session, int], list[str]]) -> list[str]:
    """Run ``work`` in several threads at a time, each on its own session. Return all results in one list."""
    start = threading.Barrier(THREADS)

    def run(number: int) -> list[str]:
        with closing(store.session()) as session:
            start.wait()
            return work(session, number)

    with ThreadPoolExecutor(THREADS) as pool:
        return [each for given in pool.map(run, range(THREADS)) for each in given]


class OneWriterContract(Given):
    """Contract of stores with one writer at a time: a transaction sees all rows that were written before it began."""

    def test_no_writer_overlooks_what_another_wrote(self, store: Store, session: Session) -> None:
        """Each thread reads and writes in one transaction. Two that overlapped would write the same number."""

        def count(session: Session, number: int) -> list[str]:
            for _ in range(ROUNDS):
                with committed(session):
                    seen = len(session.journal.history("flow"))
                    session.journal.record([a_waypoint(f"m{seen}")])
            return []

        in_threads(store, count)
        assert [each.message_id for each in session.journal.history("flow")] == [
            f"m{n}" for n in range(THREADS * ROUNDS)
        ]


class ThreadsContract(Given):
    def test_no_one_who_locked_the_declarations_overlooks_what_another_declared(
        self, store: Store, session: Session
    ) -> None:
        """Two apps start at the same time, and declare the same stage for the first time."""

        def declare(session: Session, number: int) -> list[str]:
            for _ in range(ROUNDS):
                with committed(session):
                    session.declarations.lock()
                    stage = f"stage-{len(session.declarations.listed())}"
                    session.declarations.put([Declaration(stage, stage, "shop")])
            return []

        in_threads(store, declare)
        assert len(session.declarations.listed()) == THREADS * ROUNDS

    def test_each_message_is_claimed_by_one_of_those_who_claim_at_once(self, store: Store, session: Session) -> None:
        wanted = [f"m{n}" for n in range(THREADS * ROUNDS)]
        enqueued(session, *[a_row(each) for each in wanted])

        def claim(session: Session, number: int) -> list[str]:
            mine: list[str] = []
            while True:
                with committed(session):
                    claims = session.queue.claim(["pay"], 3, f"w{number}", 0)
                if not claims:
                    return mine
                mine += [each.message_id for each in claims]

        assert sorted(in_threads(store, claim)) == sorted(wanted)

    def test_a_message_that_two_believe_to_hold_is_removed_by_one(self, store: Store, session: Session) -> None:
        with committed(session):
            session.queue.enqueue([a_row(f"m{n}") for n in range(ROUNDS)])
            claims = session.queue.claim(["pay"], ROUNDS, "w1", 0)

        def remove(session: Session, number: int) -> list[str]:
            removed = []
            for claim in claims:
                with committed(session):
                    if session.queue.remove(claim):
                        removed.append(claim.message_id)
            return removed

        assert sorted(in_threads(store, remove)) == sorted(f"m{n}" for n in range(ROUNDS))

    def test_a_session_that_is_not_pinned_serves_one_thread_after_the_other(self, store: Store) -> None:
        with closing(store.session(is_pinned=False)) as session:

            def write(message_id: str) -> list[str]:
                recorded(session, a_waypoint(message_id))
                return [each.message_id for each in session.journal.history("flow")]

            for n in range(THREADS):
                with ThreadPoolExecutor(1) as pool:
                    assert pool.submit(write, f"m{n}").result() == [f"m{each}" for each in range(n + 1)]
