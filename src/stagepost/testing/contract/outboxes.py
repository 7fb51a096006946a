"""Contract of ``ports.inbox.Inbox`` and ``ports.outbox.Outbox``."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from stagepost.ports.inbox import Handled, InboxRow
from stagepost.ports.outbox import DUE_AT_ONCE, Backlog
from stagepost.ports.session import Session
from stagepost.testing.contract.givens import (
    LONG_ID,
    NOW,
    Given,
    a_waypoint,
    an_acceptance,
    committed,
    recorded,
    rolled_back,
)

ROW = InboxRow("pay", "m1", "digest", NOW, NOW + 10)


class OutboxContract(Given):
    def test_a_flow_waits_under_the_scope_and_key_of_its_acceptance(self, session: Session) -> None:
        with rolled_back(session):
            session.outbox.hold([an_acceptance(LONG_ID)], NOW, "node")
        assert not session.outbox.holds("pay", LONG_ID)
        with committed(session):
            session.outbox.hold([an_acceptance(LONG_ID), an_acceptance("m2", "ship")], NOW, "node")
        assert session.outbox.holds("pay", LONG_ID)
        assert not session.outbox.holds("pay", "m2")
        with committed(session):
            for each in session.outbox.lease(NOW, NOW + 1, 10):
                session.outbox.remove(each.id)
        assert not session.outbox.holds("pay", LONG_ID)

    def test_a_message_is_admitted_once_by_each_stage(self, session: Session) -> None:
        with committed(session):
            assert session.inbox.admit(ROW)
            assert not session.inbox.admit(ROW)
            assert session.inbox.admit(ROW._replace(stage="ship"))
            assert session.inbox.admit(ROW._replace(message_id=LONG_ID))
        with committed(session):
            assert not session.inbox.admit(ROW._replace(digest="other"))
        assert session.inbox.find("pay", "m1") == Handled("digest", None)
        assert session.inbox.find("pay", "m2") is None

    def test_what_was_rolled_back_was_not_admitted(self, session: Session) -> None:
        with rolled_back(session):
            session.inbox.admit(ROW)
        with committed(session):
            assert session.inbox.admit(ROW)

    def test_what_it_produced_is_kept_until_it_is_marked(self, session: Session) -> None:
        with committed(session):
            session.inbox.admit(ROW)
            session.inbox.keep("pay", "m1", b"\x00\xff")
        assert session.inbox.find("pay", "m1") == Handled("digest", b"\x00\xff")
        with committed(session):
            session.inbox.mark("pay", "m1")
        assert session.inbox.find("pay", "m1") == Handled("digest", None)
        with committed(session):
            assert not session.inbox.admit(ROW)

    def test_of_two_that_take_an_unmarked_row_one_gets_it(self, session: Session) -> None:
        with committed(session):
            session.inbox.admit(ROW)
            session.inbox.keep("pay", "m1", b"x")
        with rolled_back(session):
            assert session.inbox.take_unsent("pay", "m1")
        with committed(session):
            assert session.inbox.take_unsent("pay", "m1")
            assert not session.inbox.take_unsent("pay", "m1")
            assert not session.inbox.take_unsent("pay", "unknown")
        assert session.inbox.find("pay", "m1") == Handled("digest", b"x")
        assert session.inbox.backlog() == Backlog(0, None)

    def test_what_nobody_marked_is_found_when_its_lease_is_over_the_longest_ago_first(self, session: Session) -> None:
        with committed(session):
            for name, until in (("late", NOW + 20), ("early", NOW + 5), ("marked", NOW + 1)):
                session.inbox.admit(InboxRow("pay", name, "digest", NOW, until))
                session.inbox.keep("pay", name, b"x")
            session.inbox.mark("pay", "marked")
        assert session.inbox.unsent(NOW + 4, 10) == []
        assert session.inbox.unsent(NOW + 5, 10) == [("pay", "early")]
        assert session.inbox.unsent(NOW + 30, 10) == [("pay", "early"), ("pay", "late")]
        assert session.inbox.unsent(NOW + 30, 1) == [("pay", "early")]
        assert session.inbox.backlog() == Backlog(2, NOW)
        with committed(session):
            session.inbox.postpone("pay", "early", NOW + 40)
            session.inbox.postpone("pay", "marked", NOW)
        assert session.inbox.unsent(NOW + 30, 10) == [("pay", "late")]

    def test_an_empty_inbox_has_no_backlog(self, session: Session) -> None:
        assert session.inbox.backlog() == Backlog(0, None)
        assert session.outbox.backlog() == Backlog(0, None)
        assert session.outbox.next_at() is None

    def test_what_is_held_is_leased_as_it_was_given_the_oldest_first(self, session: Session) -> None:
        first, second, third = (an_acceptance(key) for key in ("first", "second", LONG_ID))
        delayed = an_acceptance("delayed", run_id="run")
        delayed = replace(delayed, outgoing=structs.replace(delayed.outgoing, due_at=NOW + 1_000))
        with committed(session):
            session.outbox.hold([first, second], NOW, "app@here:1")
            session.outbox.hold([third, delayed], NOW + 1, "app@here:2")
        assert session.outbox.next_at() == DUE_AT_ONCE
        assert session.outbox.backlog() == Backlog(4, NOW)
        with committed(session):
            leased = session.outbox.lease(NOW + 1, NOW + 100, 10)
        assert [each.acceptance for each in leased] == [first, second, third, delayed]
        assert [each.node for each in leased] == ["app@here:1"] * 2 + ["app@here:2"] * 2
        assert {each.attempts for each in leased} == {0}

    def test_what_is_leased_is_nobody_elses_until_then(self, session: Session) -> None:
        with committed(session):
            session.outbox.hold([an_acceptance("a"), an_acceptance("b"), an_acceptance("c")], NOW, "here")
        with committed(session):
            assert [each.acceptance.key for each in session.outbox.lease(NOW, NOW + 100, 2)] == ["a", "b"]
            assert [each.acceptance.key for each in session.outbox.lease(NOW, NOW + 100, 2)] == ["c"]
            assert session.outbox.lease(NOW + 99, NOW + 200, 2) == []
        assert session.outbox.next_at() == NOW + 100
        with committed(session):
            assert [each.acceptance.key for each in session.outbox.lease(NOW + 100, NOW + 200, 5)] == ["a", "b", "c"]

    def test_what_was_held_by_a_clock_that_is_ahead_is_due_at_once(self, session: Session) -> None:
        with committed(session):
            session.outbox.hold([an_acceptance("a")], NOW, "here")
            assert len(session.outbox.lease(NOW - 1, NOW + 100, 5)) == 1

    def test_what_was_refused_says_how_often_and_waits(self, session: Session) -> None:
        with committed(session):
            session.outbox.hold([an_acceptance("a")], NOW, "here")
            (held,) = session.outbox.lease(NOW, NOW + 100, 5)
            session.outbox.postpone(held.id, NOW + 7, 3)
        assert session.outbox.next_at() == NOW + 7
        with committed(session):
            (held,) = session.outbox.lease(NOW + 7, NOW + 100, 5)
            assert held.attempts == 3

    def test_what_is_removed_is_gone_and_may_be_removed_again(self, session: Session) -> None:
        with committed(session):
            session.outbox.hold([an_acceptance("a"), an_acceptance("b")], NOW, "here")
            first, _ = session.outbox.lease(NOW, NOW + 100, 5)
            session.outbox.remove(first.id)
            session.outbox.remove(first.id)
            session.outbox.postpone(first.id, NOW, 1)
        assert session.outbox.backlog().size == 1

    def test_what_was_held_in_a_transaction_that_was_rolled_back_is_not(self, session: Session) -> None:
        with rolled_back(session):
            session.outbox.hold([an_acceptance("a")], NOW, "here")
        assert session.outbox.next_at() is None

    def test_the_journal_says_whether_a_message_was_committed_by_a_stage(self, session: Session) -> None:
        recorded(session, a_waypoint("m1", name="committed"), a_waypoint("m2", name="failed"))
        assert session.journal.has_committed("pay", "m1")
        assert not session.journal.has_committed("ship", "m1")
        assert not session.journal.has_committed("pay", "m2")
