"""Contract of ``ports.session.Session``: transactions, and the connection that it lends to a handler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from stagepost.flow.errors import StoreError, TransactionBoundary
from stagepost.ports.session import Session
from stagepost.ports.store import Store
from stagepost.testing.contract.givens import Given, UndoneError, a_row, a_waypoint, committed, recorded, rolled_back

Scribble = Callable[[Any, str], None]
Scribbles = Callable[[], list[str]]


def noted(session: Session) -> list[str]:
    return [waypoint.message_id for waypoint in session.journal.history("flow")]


def touched_nowhere() -> None:
    """Do nothing. Some handlers need no count of their statements."""


@contextmanager
def lent(session: Session) -> Iterator[Any]:
    session.lend("pay", touched_nowhere)
    yield session.connection
    session.take_back()


class SessionContract(Given):
    """Contract of a session. ``scribble`` writes like a handler on ``session.connection``, and ``scribbles`` reads the
    committed texts."""

    # Transactions

    def test_what_is_committed_is_there_for_everybody(self, session: Session, other: Session) -> None:
        session.begin()
        session.journal.record([a_waypoint("m1")])
        session.commit()
        assert noted(other) == ["m1"]

    def test_what_need_not_be_durable_is_there_for_everybody_too(self, session: Session, other: Session) -> None:
        for is_durable in (False, True, False):
            session.begin(is_durable=is_durable)
            session.journal.record([a_waypoint()])
            session.commit()
        assert noted(other) == ["m1", "m1", "m1"]

    def test_others_do_not_see_what_is_not_committed(self, session: Session, other: Session) -> None:
        with committed(session):
            session.journal.record([a_waypoint()])
            session.queue.enqueue([a_row()])
            assert noted(other) == []
            assert not other.queue.pending(["pay"]).ready

    def test_what_is_rolled_back_is_gone(self, session: Session) -> None:
        with rolled_back(session):
            session.journal.record([a_waypoint("m1")])
        recorded(session, a_waypoint("m2"))
        assert noted(session) == ["m2"]

    def test_a_transaction_is_open_from_its_begin_to_its_end(self, session: Session) -> None:
        seen = [session.ending("pay") is None]
        for end in (session.commit, session.rollback, session.reconnect):
            session.begin()
            seen.append(session.ending("pay") is None)
            end()
            seen.append(session.ending("pay") is None)
        assert seen == [False, True, False, True, False, True, False]

    def test_whoever_asks_is_told_that_a_transaction_was_begun_until_it_ended(self, session: Session) -> None:
        seen = [session.is_begun]
        for end in (session.commit, session.rollback):
            session.begin()
            seen.append(session.is_begun)
            end()
            seen.append(session.is_begun)
        assert seen == [False, True, False, True, False]

    def test_there_is_nothing_to_commit_without_a_transaction(self, session: Session) -> None:
        with pytest.raises(StoreError):
            session.commit()
        recorded(session, a_waypoint())
        with pytest.raises(StoreError):
            session.commit()

    def test_rolling_back_without_a_transaction_does_nothing(self, session: Session) -> None:
        session.rollback()
        recorded(session, a_waypoint())
        session.rollback()
        assert noted(session) == ["m1"]

    def test_reconnecting_drops_what_was_open_and_goes_on(self, session: Session, other: Session) -> None:
        session.begin()
        session.journal.record([a_waypoint("dropped")])
        session.reconnect()
        recorded(other, a_waypoint("theirs"))
        recorded(session, a_waypoint("mine"))
        assert noted(session) == ["theirs", "mine"]

    def test_a_session_that_is_closed_leaves_nothing_open_behind(self, store: Store, session: Session) -> None:
        abandoned = store.session()
        abandoned.begin()
        abandoned.journal.record([a_waypoint("dropped")])
        abandoned.close()
        recorded(session, a_waypoint("m1"))
        assert noted(session) == ["m1"]

    # atomic

    def test_an_atomic_block_that_raises_undoes_only_itself(self, session: Session) -> None:
        with committed(session):
            session.journal.record([a_waypoint("before")])
            with pytest.raises(UndoneError), session.atomic():
                session.journal.record([a_waypoint("undone")])
                session.queue.enqueue([a_row()])
                raise UndoneError
            session.journal.record([a_waypoint("after")])
        assert noted(session) == ["before", "after"]
        assert session.queue.pending(["pay"]).is_drained

    def test_an_atomic_block_that_ends_well_commits_with_its_transaction(
        self, session: Session, other: Session
    ) -> None:
        with committed(session):
            with session.atomic():
                session.journal.record([a_waypoint("m1")])
            with session.atomic():
                session.journal.record([a_waypoint("m2")])
        assert noted(other) == ["m1", "m2"]

    def test_an_atomic_block_that_ended_well_is_rolled_back_with_its_transaction(self, session: Session) -> None:
        with rolled_back(session), session.atomic():
            session.journal.record([a_waypoint()])
        assert noted(session) == []

    def test_an_atomic_block_inside_another_undoes_only_itself(self, session: Session) -> None:
        with committed(session), session.atomic():
            session.journal.record([a_waypoint("outer")])
            with pytest.raises(UndoneError), session.atomic():
                session.journal.record([a_waypoint("inner")])
                raise UndoneError
        assert noted(session) == ["outer"]

    def test_an_atomic_block_around_another_undoes_both(self, session: Session) -> None:
        with committed(session):
            with pytest.raises(UndoneError), session.atomic():
                with session.atomic():
                    session.journal.record([a_waypoint("inner")])
                session.journal.record([a_waypoint("outer")])
                raise UndoneError
            session.journal.record([a_waypoint("after")])
        assert noted(session) == ["after"]

    # The connection lent to a handler

    def test_what_a_handler_writes_commits_with_the_transaction(
        self, session: Session, scribble: Scribble, scribbles: Scribbles
    ) -> None:
        with committed(session), lent(session) as connection:
            scribble(connection, "kept")
        assert scribbles() == ["kept"]

    def test_what_a_handler_writes_is_rolled_back_with_the_transaction(
        self, session: Session, scribble: Scribble, scribbles: Scribbles
    ) -> None:
        with rolled_back(session), lent(session) as connection:
            scribble(connection, "undone")
        assert scribbles() == []

    def test_what_a_handler_writes_in_an_atomic_block_is_undone_with_it(
        self, session: Session, scribble: Scribble, scribbles: Scribbles
    ) -> None:
        with committed(session), lent(session) as connection:
            scribble(connection, "kept")
            with pytest.raises(UndoneError), session.atomic():
                scribble(connection, "undone")
                raise UndoneError
        assert scribbles() == ["kept"]

    def test_each_thing_a_handler_does_touches_first(self, session: Session, scribble: Scribble) -> None:
        touches = 0

        def touch() -> None:
            nonlocal touches
            touches += 1
            if touches == 1:
                session.begin()

        session.lend("pay", touch)
        assert touches == 0
        scribble(session.connection, "first")
        assert touches == 1
        scribble(session.connection, "second")
        assert touches == len(["first", "second"])
        session.take_back()
        session.rollback()

    def test_what_touch_raises_keeps_the_handler_out(
        self, session: Session, scribble: Scribble, scribbles: Scribbles
    ) -> None:
        def touch() -> None:
            raise UndoneError

        session.lend("pay", touch)
        with pytest.raises(UndoneError):
            scribble(session.connection, "never")
        session.take_back()
        assert scribbles() == []

    def test_the_connection_is_refused_outside_the_handler_it_was_lent_to(
        self, session: Session, scribble: Scribble
    ) -> None:
        with pytest.raises(TransactionBoundary):
            scribble(session.connection, "before")
        session.lend("pay", touched_nowhere)
        session.take_back()
        with pytest.raises(TransactionBoundary):
            scribble(session.connection, "after")

    def test_a_connection_that_was_kept_is_refused_once_it_was_taken_back(
        self, session: Session, scribble: Scribble, scribbles: Scribbles
    ) -> None:
        with committed(session):
            with lent(session) as kept:
                pass
            with pytest.raises(TransactionBoundary):
                scribble(kept, "too late")
        assert scribbles() == []
