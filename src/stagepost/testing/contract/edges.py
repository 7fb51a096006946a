"""Contract of ``ports.edge.Edge``: outbound rows, their stamps, and the bounded counts of stages."""

from __future__ import annotations

import dataclasses
import uuid

from stagepost.flow.claim import Claim
from stagepost.ports.edge import EdgeView, Fill
from stagepost.ports.session import Session
from stagepost.testing.contract.givens import (
    LONG_ID,
    NOW,
    Given,
    a_row,
    an_acceptance,
    committed,
    enqueued,
    rolled_back,
)

HERE = "@out/ledger.reserve"
THERE = "@out/ledger.settle"


def claimed(session: Session, *message_ids: str, stage: str = HERE) -> list[Claim]:
    enqueued(session, *(a_row(each, stage) for each in message_ids))
    with committed(session):
        return session.queue.claim([stage], len(message_ids), "dispatcher", NOW)


class EdgesContract(Given):
    def test_a_mark_is_removed_once(self, session: Session) -> None:
        direct = dataclasses.replace(an_acceptance("m1"), is_direct=True)
        other = an_acceptance("m2")
        with committed(session):
            session.accepted.accept([direct, other])
        with rolled_back(session):
            assert session.edge.clear_mark(direct.scope, "m1")
        with committed(session):
            assert session.edge.clear_mark(direct.scope, "m1")
            assert not session.edge.clear_mark(direct.scope, "m1")
            assert not session.edge.clear_mark(direct.scope, "m2")
            assert not session.edge.clear_mark(direct.scope, "m3")
        with committed(session):
            assert not session.edge.clear_mark(direct.scope, "m1")
            # The content stays accepted.
            assert [each.outcome for each in session.accepted.accept([direct])] == ["repeated"]

    def test_the_store_has_a_uuid_that_stays(self, session: Session, other: Session) -> None:
        assert uuid.UUID(session.edge.store()) == uuid.UUID(other.edge.store())

    def test_the_first_stamp_of_a_message_stays(self, session: Session, other: Session) -> None:
        claims = claimed(session, "m1", LONG_ID)
        with committed(session):
            session.edge.stamp(claims[:1], NOW)
        with committed(session):
            session.edge.stamp(claims, NOW + 5)
        left = other.edge.left_at(claims)
        assert left == {claims[0].message_id: NOW, claims[1].message_id: NOW + 5}

    def test_a_stamp_belongs_to_one_message_at_one_destination(self, session: Session) -> None:
        (here,) = claimed(session, "m1")
        (there,) = claimed(session, "m1", stage=THERE)
        with committed(session):
            session.edge.stamp([here], NOW)
        assert session.edge.left_at([there]) == {}
        with committed(session):
            session.edge.clear([there])
        assert session.edge.left_at([here]) == {"m1": NOW}

    def test_a_cleared_stamp_is_gone(self, session: Session) -> None:
        claims = claimed(session, "m1", "m2")
        with committed(session):
            session.edge.stamp(claims, NOW)
        with committed(session):
            session.edge.clear(claims[:1])
        assert session.edge.left_at(claims) == {claims[1].message_id: NOW}
        with rolled_back(session):
            session.edge.clear(claims)
        assert session.edge.left_at(claims) == {claims[1].message_id: NOW}

    def test_deaths_are_counted_at_the_stamp_until_an_attempt_ends(self, session: Session) -> None:
        (first, second) = claimed(session, "m1", "m2")
        with committed(session):
            assert session.edge.count_death(first) == 0
            session.edge.stamp([first, second], NOW)
        for expected in (1, 2):
            with committed(session):
                assert session.edge.count_death(first) == expected
        with committed(session):
            session.edge.forget_deaths(first)
            assert session.edge.count_death(first) == 1
            assert session.edge.count_death(second) == 1
        with committed(session):
            session.edge.clear([first])
            session.edge.stamp([first], NOW)
            assert session.edge.count_death(first) == 1

    def test_the_fill_of_a_stage_counts_what_can_run_and_what_waits_after_a_failure(self, session: Session) -> None:
        enqueued(
            session,
            *(a_row(f"ready-{n}", "pay") for n in range(4)),
            *(a_row(f"sent-with-a-delay-{n}", "pay", due_at=NOW) for n in range(4)),
            *(a_row(f"failed-{n}", "pay", failures=1, due_at=NOW) for n in range(3)),
            a_row("suspect", "pay", deaths=1, due_at=NOW),
            a_row("elsewhere", "ship"),
        )
        with committed(session):
            # Everything delayed becomes ready by a claim, so the claim is of another stage.
            session.queue.claim(["ship"], 1, "w1", NOW)
        found = session.edge.fill(["pay", "ship", "empty"], 100, 100)
        assert found == {"pay": Fill(4, 4, NOW), "ship": Fill(1, 0), "empty": Fill(0, 0)}

    def test_a_fill_is_counted_no_further_than_its_limits(self, session: Session) -> None:
        enqueued(session, *(a_row(f"ready-{n}", "pay") for n in range(9)))
        enqueued(session, *(a_row(f"failed-{n}", "pay", failures=1, due_at=NOW) for n in range(9)))
        assert session.edge.fill(["pay"], 5, 3) == {"pay": Fill(5, 3, NOW)}

    def test_destinations_are_those_of_unclaimed_outbound_rows(self, session: Session) -> None:
        assert session.edge.destinations() == []
        claimed(session, "m1")
        enqueued(session, a_row("m2", "pay"), a_row("m3", "zebra"), a_row("m4", THERE), a_row("m5", THERE))
        enqueued(session, a_row("m6", "@out/later", due_at=NOW + 9))
        assert sorted(session.edge.destinations()) == ["@out/later", THERE]

    def test_outbound_rows_are_counted_in_whatever_state_up_to_the_limit(self, session: Session) -> None:
        assert session.edge.outbound(100) == 0
        claimed(session, "m1")
        enqueued(session, a_row("m2", "pay"), a_row("m3", HERE), a_row("m4", THERE, due_at=NOW + 9))
        assert session.edge.outbound(100) == 3
        assert session.edge.outbound(2) == 2

    def test_each_process_has_one_view_of_its_broker(self, session: Session, other: Session) -> None:
        ours = EdgeView("broker@one:1", "amqp://here", "connected", NOW, "", 0, 0, NOW)
        theirs = EdgeView("broker@two:2", "amqp://here", "away", NOW + 1, "it is down", 7, 5, NOW + 1)
        with committed(session):
            session.edge.note_view(ours)
            session.edge.note_view(theirs)
        assert other.edge.views() == [ours, theirs]
        later = EdgeView("broker@one:1", "amqp://here", "blocked", NOW + 9, "no disk", 3, 2, NOW + 9)
        with committed(session):
            session.edge.note_view(later)
        assert other.edge.views() == [later, theirs]
        with committed(session):
            session.edge.forget_view("broker@nobody:3", NOW + 1)
        assert other.edge.views() == [later, theirs]
        with committed(session):
            session.edge.forget_view("broker@nobody:3", NOW + 2)
        assert other.edge.views() == [later]
        with committed(session):
            session.edge.forget_view("broker@one:1", 0)
        assert other.edge.views() == []
