"""Contract of ``ports.retention.Retention``: counted hours, and the ids that are old by them."""

from __future__ import annotations

import pytest

from stagepost.flow.clock import HOUR
from stagepost.ports.audits import AuditFinding
from stagepost.ports.business_keys import KeyRow
from stagepost.ports.dead_letters import Selection
from stagepost.ports.inbox import InboxRow
from stagepost.ports.outbox import NO_BACKLOG
from stagepost.ports.queue import QueueRow
from stagepost.ports.retention import FIRST, FIRST_HANDLED, FIRST_KEY, OldHandled, OldId, OldKey
from stagepost.ports.runs import Quarantined
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


def handle(session: Session, stage: str, message_id: str, *, is_marked: bool) -> None:
    with committed(session):
        session.inbox.admit(InboxRow(stage, message_id, "digest", NOW, NOW))
        if is_marked:
            session.inbox.mark(stage, message_id)


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

    def test_marked_rows_of_the_inbox_are_found_by_age_and_others_stay(self, session: Session) -> None:
        for stage, message_id in (("pay", "b"), ("pay", "a"), ("ship", "a")):
            handle(session, stage, message_id, is_marked=True)
        handle(session, "pay", "c", is_marked=False)
        counted(session, 0)
        handle(session, "pay", LONG_ID, is_marked=True)
        retention = session.retention
        assert sorted(retention.inbox_stages()) == ["pay", "ship"]
        assert retention.old_handled("pay", 0, FIRST_HANDLED, 9) == [OldHandled(0, "a"), OldHandled(0, "b")]
        assert retention.old_handled("pay", 1, OldHandled(0, "a"), 9) == [OldHandled(0, "b"), OldHandled(1, LONG_ID)]
        assert (retention.oldest_handled("pay"), retention.oldest_handled("unknown")) == (0, None)
        with committed(session):
            assert retention.remove_handled("pay", 0, ["a", "c", LONG_ID]) == 1
        assert session.inbox.find("pay", "a") is None
        assert None not in (session.inbox.find("pay", "c"), session.inbox.find("ship", "a"))

    def test_business_keys_are_found_and_removed_by_age(self, session: Session) -> None:
        def admit(*keys: str, stage: str = "pay") -> None:
            with committed(session):
                for key in keys:
                    session.business_keys.admit(KeyRow(stage, key, f"m-{key}", "digest", NOW, None))

        admit("b", "a")
        admit("a", stage="ship")
        counted(session, 0)
        admit(LONG_ID)
        retention = session.retention
        assert sorted(retention.key_stages()) == ["pay", "ship"]
        assert retention.old_keys("pay", 0, FIRST_KEY, 9) == [OldKey(0, "a", "m-a"), OldKey(0, "b", "m-b")]
        assert retention.old_keys("pay", 1, OldKey(0, "a", ""), 1) == [OldKey(0, "b", "m-b")]
        assert (retention.oldest_key("pay"), retention.oldest_key("unknown")) == (0, None)
        with committed(session):
            assert retention.remove_keys("pay", 0, ["a", LONG_ID, "unknown"]) == 1
        assert [each.key for each in retention.old_keys("pay", 1, FIRST_KEY, 9)] == ["b", LONG_ID]
        assert session.business_keys.find("ship", "a") is not None

    def test_the_flow_of_a_message_is_found_in_the_journal(self, session: Session) -> None:
        recorded(session, a_waypoint("m1", "flow"), a_waypoint("m1", "flow"), a_waypoint(LONG_ID, "other"))
        assert session.retention.flows_of(["m1", LONG_ID, "unknown"]) == {"m1": "flow", LONG_ID: "other"}

    def test_old_dead_letters_go_except_those_of_an_unfinished_replay(self, session: Session) -> None:
        buried(session, a_letter("m1", flow_id="a"), a_letter("m2", flow_id="b"))
        with committed(session):
            session.replays.freeze([Selection("flow", "b")], who="ada", at=NOW, rate=None)
        counted(session, 0)
        buried(session, a_letter("m3", flow_id="c"))
        mark = session.retention.mark(1)
        assert mark is not None
        with committed(session):
            assert session.retention.remove_letters(mark.letter, 9) == 1
        assert [each.letter.message_id for each in session.dead_letters.select(Selection("all"))] == ["m2", "m3"]

    def test_old_replays_go_when_no_letter_of_them_is_left(self, session: Session) -> None:
        buried(session, a_letter("m1"))
        with committed(session):
            session.replays.freeze([Selection("flow", "unknown")], who="ada", at=NOW, rate=None)
            kept = session.replays.freeze([Selection("all")], who="ada", at=NOW, rate=None)
        counted(session, 0)
        mark = session.retention.mark(1)
        assert mark is not None
        with committed(session):
            assert session.retention.remove_replays(mark.replay, 9) == 1
        assert [each.id for each in session.replays.listed()] == [kept.id]

    def test_a_run_goes_with_its_quarantined_rows_and_last_of_all(self, session: Session) -> None:
        with committed(session):
            for run in ("old", "again", "new"):
                session.runs.begin(run, "pay", "file", NOW)
                session.runs.quarantine(run, [Quarantined("file", n, "bad", None, "row") for n in range(3)])
        counted(session, 0)
        with committed(session):
            session.runs.begin("again", "pay", "file", NOW)
            session.runs.begin("new", "pay", "file", NOW)
        assert session.retention.old_runs(0, 9) == ["old"]
        for removed in (2, 2):
            with committed(session):
                assert session.retention.remove_run("old", 0, 2) == removed
        assert session.runs.quarantined("old", 9, ("", 0)) == []
        assert len(session.runs.quarantined("new", 9, ("", 0))) == 3
        assert session.retention.old_runs(9, 9) == ["again", "new"]

    def test_a_finding_is_as_old_as_the_audit_that_found_it_last(self, session: Session) -> None:
        findings = [AuditFinding("lost", "pay", each, "flow", "") for each in ("a", "b")]
        with committed(session):
            session.audits.note(findings, NOW)
        counted(session, 0)
        with committed(session):
            session.audits.note(findings[1:], NOW)
        with committed(session):
            assert session.retention.remove_findings(0, 9) == 1
        assert [each.finding.message_id for each in session.audits.findings(9)] == ["b"]

    def test_the_oldest_row_of_each_kind_is_told_by_its_hour(self, session: Session) -> None:
        nothing = dict.fromkeys(("journal", "dead_letters", "replays", "runs", "findings"))
        assert session.retention.oldest() == nothing
        counted(session, 0)
        recorded(session, a_waypoint())
        counted(session, 1)
        buried(session, a_letter())
        assert session.retention.oldest() == nothing | {"journal": 1, "dead_letters": 2}

    def test_the_bytes_of_rows_are_told_by_kind(self, session: Session) -> None:
        assert set(session.retention.row_bytes().values()) == {0}
        accepted(session, "a", "b")
        recorded(session, a_waypoint("a"))
        buried(session, a_letter("a"))
        told = session.retention.row_bytes()
        assert {kind for kind, size in told.items() if size} == {"ids", "journal", "dead_letters"}
        assert all(100 < told[kind] < 2_000 for kind in ("ids", "journal", "dead_letters"))

    def test_the_rows_that_no_age_clears_are_counted(self, session: Session) -> None:
        counted(session, 1, 2, 3)
        with committed(session):
            session.retention.note_consumer("c1", "amqp://here", ["pay", "ship"])
        told = session.retention.table_rows(10)
        assert told["hours of housekeeping"] == 3
        assert told["addresses at brokers"] == 2
        assert told["subscriptions"] == told["departures"] == 0

    def test_an_open_range_of_the_journal_is_cut_only_if_it_has_lines(self, session: Session) -> None:
        is_divided = session.retention.ends_at() is not None
        for lines, ranges in ((0, 0), (1, 1), (0, 1)):
            recorded(session, *[a_waypoint()] * lines)
            with committed(session):
                session.retention.cut(2**62)
            closed = session.retention.closed_ranges()
            assert len(closed) == (ranges if is_divided else 0)
        assert all(each.first < each.next for each in closed)
