"""Contract of ``ports.retention.Retention``: counted hours, and the ids that are old by them."""

from __future__ import annotations

import pytest

from stagepost.flow.clock import HOUR
from stagepost.ports.outbox import NO_BACKLOG
from stagepost.ports.queue import QueueRow
from stagepost.ports.retention import FIRST, OldId
from stagepost.ports.session import Session
from stagepost.testing.contract.givens import (
    LONG_ID,
    NOW,
    Given,
    a_letter,
    a_row,
    a_waypoint,
    an_acceptance,
    buried,
    committed,
    enqueued,
    recorded,
    rolled_back,
)


def accepted(session: Session, *keys: str, to: str = "pay") -> None:
    with committed(session):
        session.accepted.accept([an_acceptance(each, to) for each in keys])


def counted(session: Session, *hours: int) -> None:
    for hour in hours:
        with committed(session):
            session.retention.count_hour(NOW + hour * HOUR)


class RetentionContract(Given):
    """The store needs the capability ``retention``."""

    def test_an_hour_of_the_clock_is_counted_once_whoever_counts_it(self, session: Session, other: Session) -> None:
        assert session.retention.hours() == 0
        for counter, moment, is_new, hours in (
            (session, NOW, True, 1),
            (other, NOW + 5, False, 1),
            (other, NOW + HOUR, True, 2),
            # The clock leaps forward and back.
            (session, NOW + 900 * HOUR, True, 3),
            (session, NOW + HOUR + 5, False, 3),
            (session, NOW - 900 * HOUR, True, 4),
        ):
            assert counter.retention.is_counted(moment) is not is_new
            with committed(counter):
                assert counter.retention.count_hour(moment) is is_new
            assert session.retention.is_counted(moment)
            assert session.retention.hours() == hours

    def test_an_hour_that_was_rolled_back_is_not_counted(self, session: Session) -> None:
        with rolled_back(session):
            assert session.retention.count_hour(NOW)
        assert session.retention.hours() == 0

    def test_ids_are_found_by_the_hours_that_were_counted_when_they_were_accepted(self, session: Session) -> None:
        accepted(session, "b", "a")
        counted(session, 0, 1)
        accepted(session, LONG_ID)
        counted(session, 2)
        accepted(session, "new")
        assert session.retention.old_ids("pay", 2, FIRST, 9) == [
            OldId(0, "a", "flow"),
            OldId(0, "b", "flow"),
            OldId(2, LONG_ID, "flow"),
        ]
        assert session.retention.old_ids("pay", 1, FIRST, 1) == [OldId(0, "a", "flow")]
        assert session.retention.old_ids("pay", 2, OldId(0, "a", "flow"), 1) == [OldId(0, "b", "flow")]
        assert session.retention.old_ids("ship", 2, FIRST, 9) == []
        assert session.retention.oldest_id("pay") == 0
        assert session.retention.oldest_id("ship") is None

    def test_scopes_are_those_that_have_ids(self, session: Session) -> None:
        assert session.retention.scopes() == []
        accepted(session, "a", "b", to="pay")
        accepted(session, "a", to="gateway:orders shop")
        assert sorted(session.retention.scopes()) == ["gateway:orders shop", "pay"]

    def test_only_old_ids_are_removed(self, session: Session) -> None:
        accepted(session, "old", "pinned")
        accepted(session, "old", to="ship")
        counted(session, 0)
        accepted(session, "new")
        with committed(session):
            assert session.retention.remove_ids("pay", 0, ["old", "new", "unknown"]) == 1
        assert [each.key for each in session.retention.old_ids("pay", 9, FIRST, 9)] == ["pinned", "new"]
        assert [each.key for each in session.retention.old_ids("ship", 9, FIRST, 9)] == ["old"]
        with committed(session):
            (verdict,) = session.accepted.accept([an_acceptance("old")])
        assert verdict.outcome == "started"

    def test_ids_that_wait_in_the_outbox_are_left_out(self, session: Session) -> None:
        if session.outbox.backlog() is NO_BACKLOG:
            pytest.skip("the store has no outbox")
        accepted(session, "held", "sent")
        accepted(session, "held", to="ship")
        with committed(session):
            session.outbox.hold([an_acceptance("held")], NOW, "node")
        assert [each.key for each in session.retention.old_ids("pay", 0, FIRST, 9)] == ["sent"]
        assert [each.key for each in session.retention.old_ids("ship", 0, FIRST, 9)] == ["held"]

    @pytest.mark.parametrize(
        "row",
        [
            a_row(flow_id=LONG_ID),
            a_row(flow_id=LONG_ID, due_at=NOW + HOUR),
            a_row(flow_id=LONG_ID, deaths=1, due_at=NOW),
        ],
        ids=["ready", "delayed", "suspect"],
    )
    def test_a_flow_is_open_while_the_queue_has_a_message_of_it(self, session: Session, row: QueueRow) -> None:
        recorded(session, a_waypoint(flow_id=LONG_ID, name="accepted"), a_waypoint(flow_id="ended"))
        enqueued(session, row, a_row("m2", flow_id="another"))
        assert session.retention.open_flows(["ended", LONG_ID, "unknown"]) == {LONG_ID}

    def test_a_flow_is_open_while_its_message_is_claimed(self, session: Session) -> None:
        enqueued(session, a_row())
        with committed(session):
            (claim,) = session.queue.claim(["pay"], 1, "w1", NOW)
        assert session.retention.open_flows(["flow", "another"]) == {"flow"}
        with committed(session):
            session.queue.remove(claim)
        assert session.retention.open_flows(["flow", "another"]) == set()

    def test_a_flow_is_open_while_a_dead_letter_lives(self, session: Session) -> None:
        buried(session, a_letter())
        assert session.retention.open_flows(["flow", "another"]) == {"flow"}
