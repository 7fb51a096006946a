"""Contract of ``ports.circuits.Circuits``: failures in a row, paused stages, and the claims that these allow."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stagepost.flow.claim import Claim
from stagepost.ports.circuits import GIVEN_UP_PROBES, CircuitBreaker, End, Pause, Probe
from stagepost.ports.queue import Look, Pending, QueueRow
from stagepost.ports.session import Session
from stagepost.recovery.pausing import with_probe
from stagepost.testing.contract.givens import (
    LONG_ID,
    LONG_STAGE,
    NOW,
    Given,
    a_row,
    a_waypoint,
    committed,
    enqueued,
    recorded,
    released,
    removed,
    rolled_back,
)

BOTH = ["pay", "ship"]
NOTHING = Look(messages=False, probes=False)


def kept(session: Session, breaker: CircuitBreaker) -> CircuitBreaker:
    with committed(session):
        session.circuits.lock(breaker.stage)
        session.circuits.keep(breaker)
    return breaker


def paused(session: Session, stage: str = "pay", *, at: int = NOW, probes: int = 0) -> CircuitBreaker:
    return kept(session, CircuitBreaker(stage, ("m1",), 7, "ValueError: no", Pause(NOW, at, probes)))


def claimed(session: Session, stages: Sequence[str] = BOTH) -> list[str]:
    with committed(session):
        return sorted(claim.message_id for claim in session.queue.claim(stages, 10, "w1", NOW))


def probed(session: Session, end: End = "oldest", now: int = 0) -> Claim | None:
    with committed(session):
        return session.circuits.claim_probe("pay", "w1", end, now)


def probe_at_work(session: Session) -> Claim:
    """Pause the stage ``pay`` with two waiting messages, and claim its probe."""
    enqueued(session, a_row("m1"), a_row("m2"))
    breaker = paused(session)
    claim = probed(session)
    assert claim is not None
    assert breaker.pause is not None
    kept(session, with_probe(breaker, breaker.pause, Probe(claim.row, claim.message_id)))
    return claim


def turns(session: Session, count: int, end: End = "oldest") -> list[str]:
    """Probe ``count`` times, give each claim back, and return the ids of the probed messages."""
    found = []
    for _ in range(count):
        claim = probed(session, end)
        assert claim is not None
        found.append(claim.message_id)
        released(session, claim)
    return found


class CircuitsContract(Given):
    # Kept failures

    @pytest.mark.parametrize(
        "breaker",
        [
            CircuitBreaker("pay"),
            CircuitBreaker("pay", ("m1", "m2"), 12, "ValueError: no"),
            CircuitBreaker(LONG_STAGE, (LONG_ID, 'quoted "', "a,b"), 2**60, "Fehler: größer\nals gedacht"),
            CircuitBreaker("pay", ("m1",), 1, "", Pause(NOW, NOW + 1)),
            CircuitBreaker("pay", ("m1",), 1, "", Pause(NOW, NOW + 1, 5, Probe(77, "m1"))),
        ],
        ids=["none", "some", "long", "paused", "probed"],
    )
    def test_a_circuit_breaker_is_found_as_it_was_kept(
        self, session: Session, other: Session, breaker: CircuitBreaker
    ) -> None:
        kept(session, breaker)
        with committed(other):
            assert other.circuits.lock(breaker.stage) == breaker
        assert session.circuits.paused() == ([breaker] if breaker.pause else [])

    def test_a_stage_that_never_failed_has_an_empty_one(self, session: Session) -> None:
        with committed(session):
            assert session.circuits.lock("pay") == CircuitBreaker("pay")
        assert session.circuits.paused() == []

    def test_one_that_is_forgotten_is_as_if_it_had_never_failed(self, session: Session) -> None:
        paused(session)
        ship = paused(session, "ship")
        with committed(session):
            assert session.circuits.forget("pay")
            assert not session.circuits.forget("nobody")
        assert session.circuits.paused() == [ship]
        with committed(session):
            assert session.circuits.lock("pay") == CircuitBreaker("pay")

    def test_what_is_rolled_back_was_not_kept(self, session: Session) -> None:
        with rolled_back(session):
            session.circuits.lock("pay")
            session.circuits.keep(CircuitBreaker("pay", ("m1",), 1, "", Pause(NOW, NOW)))
        assert session.circuits.paused() == []

    # has_succeeded

    def test_a_stage_has_succeeded_where_it_committed_after_that_line(self, session: Session) -> None:
        recorded(session, a_waypoint("m1", name="committed"), a_waypoint("m2", name="failed"))
        last = session.circuits.last_line()
        assert session.circuits.has_succeeded("pay", last - 2)
        assert not session.circuits.has_succeeded("pay", last - 1)
        assert not session.circuits.has_succeeded("ship", 0)

    def test_a_success_is_found_behind_whatever_its_neighbours_have_written_since(self, session: Session) -> None:
        recorded(session, a_waypoint("m0", name="failed"), a_waypoint("m1", name="committed"))
        line = session.circuits.last_line()
        recorded(session, *[a_waypoint(f"n{n}", stage="busy", name="committed") for n in range(12_000)])
        assert session.circuits.has_succeeded("pay", line - 1)
        assert not session.circuits.has_succeeded("pay", line)

    # Claims of paused stages

    def test_nothing_of_a_paused_stage_is_claimed_and_all_of_the_others(self, session: Session) -> None:
        enqueued(session, a_row("m1"), a_row("m2", due_at=NOW), a_row("m3", "ship"))
        paused(session, at=NOW + 5)
        assert session.queue.look(["pay"], NOW) == NOTHING
        assert session.queue.look(BOTH, NOW) == Look(messages=True, probes=False)
        assert claimed(session) == ["m3"]
        assert session.queue.look(BOTH, NOW) == NOTHING

    def test_a_probe_can_be_made_when_its_time_has_come_and_something_waits(self, session: Session) -> None:
        paused(session, at=NOW + 5)
        assert session.queue.look(BOTH, NOW + 5) == NOTHING
        enqueued(session, a_row("m1", due_at=NOW + 7))
        assert session.queue.look(BOTH, NOW + 5) == NOTHING
        assert session.queue.look(BOTH, NOW + 7) == Look(messages=False, probes=True)
        enqueued(session, a_row("m2"))
        assert session.queue.look(BOTH, NOW + 4) == NOTHING
        assert session.queue.look(BOTH, NOW + 5) == Look(messages=False, probes=True)
        assert session.queue.look(["ship"], NOW + 5) == NOTHING

    def test_while_a_probe_is_at_work_there_is_no_other_and_afterwards_it_is_looked_after(
        self, session: Session
    ) -> None:
        claim = probe_at_work(session)
        assert session.circuits.is_claimed(claim.row)
        assert session.queue.look(BOTH, NOW) == NOTHING
        removed(session, claim)
        assert not session.circuits.is_claimed(claim.row)
        assert session.queue.look(BOTH, NOW) == Look(messages=False, probes=True)

    def test_those_are_due_whose_time_has_come(self, session: Session) -> None:
        pay = paused(session, at=NOW + 1)
        paused(session, "ship", at=NOW + 2)
        kept(session, CircuitBreaker("fails", ("m1",), 1, ""))
        with committed(session):
            assert session.circuits.due([*BOTH, "fails"], NOW) == []
            assert session.circuits.due([*BOTH, "fails"], NOW + 1) == [pay]
            assert [each.stage for each in session.circuits.due(BOTH, NOW + 2)] == BOTH
            assert session.circuits.due(["fails"], NOW + 2) == []

    # claim_probe

    def test_a_probe_is_claimed_like_any_message(self, session: Session) -> None:
        enqueued(session, a_row("m1", failures=2, deliveries=3))
        claim = probed(session)
        assert claim is not None
        assert (claim.owner, claim.deliveries, claim.failures) == ("w1", 4, 2)
        assert session.queue.holds(claim)
        assert session.queue.owned("w1") == [claim]
        assert probed(session) is None

    @pytest.mark.parametrize(
        ("end", "expected"), [("oldest", ["new", "newer", "old"]), ("newest", ["newer", "new", "old"])]
    )
    def test_fewest_failures_come_first_and_then_the_flow_at_that_end(
        self, session: Session, end: End, expected: list[str]
    ) -> None:
        enqueued(
            session,
            a_row("old", failures=2, origin_at=NOW - 9),
            a_row("new", failures=1, origin_at=NOW - 1),
            a_row("newer", failures=1, origin_at=NOW),
            a_row("elsewhere", "ship"),
            a_row("later", due_at=NOW),
        )
        assert turns(session, 3, end) == expected

    def test_a_delayed_message_is_probed_when_it_is_due(self, session: Session) -> None:
        enqueued(session, a_row("later", due_at=NOW))
        assert probed(session, now=NOW - 1) is None
        claim = probed(session, now=NOW)
        assert claim is not None
        assert claim.message_id == "later"

    def test_nobody_has_a_second_turn_before_all_others_had_one(self, session: Session) -> None:
        enqueued(session, a_row("m1"), a_row("m2", origin_at=NOW + 1))
        assert turns(session, 1) == ["m1"]
        enqueued(session, a_row("m3", failures=5, origin_at=NOW + 2))
        assert turns(session, 5) == ["m2", "m3", "m1", "m2", "m3"]

    def test_turns_are_forgotten_with_the_pause(self, session: Session) -> None:
        paused(session)
        enqueued(session, a_row("m1"), a_row("m2", origin_at=NOW + 1))
        assert turns(session, 1) == ["m1"]
        with committed(session):
            session.circuits.forget("pay")
        assert turns(session, 1) == ["m1"]

    # pending

    def test_what_waits_at_a_paused_stage_waits_for_its_probe(self, session: Session) -> None:
        paused(session, at=NOW + 5)
        assert session.queue.pending(BOTH) == Pending(False, False, None, None)
        enqueued(session, a_row("m1", due_at=NOW + 7))
        assert session.queue.pending(BOTH) == Pending(False, False, NOW + 7, None)
        enqueued(session, a_row("m2", due_at=NOW + 3))
        assert session.queue.pending(BOTH) == Pending(False, False, NOW + 5, None)
        enqueued(session, a_row("m3"), a_row("m4", "ship", due_at=NOW + 4))
        assert session.queue.pending(BOTH) == Pending(False, False, NOW + 4, None)
        assert session.queue.pending(["pay"]) == Pending(False, False, NOW + 5, None)

    def test_while_a_probe_is_at_work_it_is_what_is_waited_for(self, session: Session) -> None:
        probe_at_work(session)
        assert session.queue.pending(BOTH) == Pending(False, True, None, None)

    def test_it_is_stalled_when_only_stages_are_left_whose_probes_failed(self, session: Session) -> None:
        enqueued(session, a_row("m1", due_at=NOW))
        paused(session, probes=GIVEN_UP_PROBES - 1)
        assert session.queue.pending(BOTH).stalled_probes is None
        paused(session, probes=GIVEN_UP_PROBES)
        assert session.queue.pending(BOTH).stalled_probes == GIVEN_UP_PROBES
        assert not session.queue.pending(BOTH).is_drained
        for row in (a_row("r", "ship"), a_row("d", "ship", due_at=NOW + 9), a_row("s", "ship", deaths=1, due_at=NOW)):
            enqueued(session, row)
            assert session.queue.pending(BOTH).stalled_probes is None
            assert session.queue.pending(["pay"]).stalled_probes == GIVEN_UP_PROBES
        paused(session, "ship", probes=GIVEN_UP_PROBES + 4)
        assert session.queue.pending(BOTH).stalled_probes == 2 * GIVEN_UP_PROBES + 4

    @pytest.mark.parametrize("row", [a_row("m1"), a_row("m1", deaths=1, due_at=NOW)], ids=["ready", "suspect"])
    def test_it_is_not_stalled_while_anything_runs_or_where_nothing_waits(
        self, session: Session, row: QueueRow
    ) -> None:
        paused(session, probes=GIVEN_UP_PROBES)
        assert session.queue.pending(BOTH).stalled_probes is None
        enqueued(session, row, a_row("m2", "ship"))
        assert claimed(session) == ["m2"]
        assert session.queue.pending(BOTH).stalled_probes is None
        assert session.queue.pending(["pay"]).stalled_probes == GIVEN_UP_PROBES
