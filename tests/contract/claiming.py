"""Claims on the queue, as ``transaction.claiming`` makes them, beside the session whose commit they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from stagepost.flow.claim import Claim
from stagepost.flow.clock import SECOND
from stagepost.flow.errors import LeaseLost
from stagepost.flow.initiation import Outgoing
from stagepost.ports.dead_letters import DeadLetter
from stagepost.ports.journal import Waypoint
from stagepost.runtime.access import Access
from stagepost.testing.clock import ManualClock
from stagepost.testing.contract.givens import (
    LONG_ID,
    LONG_STAGE,
    MEGABYTE,
    NOW,
    a_letter,
    an_outgoing,
    committed,
    eventually,
)
from stagepost.transaction.enqueueing import attempt_of, new_row, row_again, row_revived

MakeAccess = Callable[[], Access]

NODE = "worker@host:1"
MANY = 1_203

BROKEN_FENCES: dict[str, Callable[[Claim], Claim]] = {
    "of another row": lambda claim: claim._replace(row=claim.row + 1_000),
    "of another owner": lambda claim: claim._replace(owner="w2"),
    "of another delivery": lambda claim: claim._replace(deliveries=claim.deliveries + 1),
}


def put(access: Access, *outgoing: tuple[Outgoing, bytes]) -> None:
    with committed(access.session):
        enqueue(access, *outgoing)


def enqueue(access: Access, *outgoing: tuple[Outgoing, bytes]) -> None:
    access.session.queue.enqueue([new_row(each, data, each.envelope.to) for each, data in outgoing])


def revive(access: Access, letter: DeadLetter, *, deaths: int) -> None:
    access.session.queue.enqueue([row_revived(letter, NOW, deaths=deaths)])


def claim_all(access: Access, *, owner: str = "w1") -> list[Claim]:
    return access.claimer.claim(["pay"], 100, owner, NODE)


def ids(claims: list[Claim]) -> list[str]:
    return [claim.message_id for claim in claims]


def defer(access: Access, claim: Claim, *, due_at: int = NOW, failures: int = 0, deaths: int = 0) -> bool:
    with committed(access.session):
        return deferred(access, claim, due_at=due_at, failures=failures, deaths=deaths)


def deferred(access: Access, claim: Claim, *, due_at: int, failures: int, deaths: int) -> bool:
    if not access.session.queue.remove(claim):
        return False
    access.session.queue.enqueue([row_again(claim, due_at, failures, deaths)])
    return True


def suspected(access: Access, message_id: str, *, deaths: int, due_at: int = NOW) -> None:
    """Put, claim and defer it as one that has died."""
    put(access, an_outgoing(message_id))
    (claim,) = claim_all(access)
    assert defer(access, claim, due_at=due_at, deaths=deaths)


class ClaimingContract:
    """``make_access`` gives ways into one and the same place, which is new and empty for each test."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock(NOW)

    @pytest.fixture
    def access(self, make_access: MakeAccess) -> Iterator[Access]:
        access = make_access()
        yield access
        access.session.close()

    @pytest.fixture
    def other(self, make_access: MakeAccess) -> Iterator[Access]:
        access = make_access()
        yield access
        access.session.close()

    # put and claim

    def test_what_was_put_is_claimed_with_its_bytes_as_they_were(self, access: Access) -> None:
        outgoing, data = an_outgoing("m1", flow_id="order:1", body=b'{"n":1}')
        put(access, (outgoing, data))
        (claim,) = claim_all(access)
        assert claim == Claim(claim.row, "w1", 1, "pay", "m1", "order:1", 0, 0, NOW, data)
        assert (attempt_of(claim), claim.deliveries > 1) == (1, False)

    def test_what_was_put_and_rolled_back_is_never_claimed(self, access: Access) -> None:
        access.session.begin()
        enqueue(access, an_outgoing("never"), an_outgoing("never, later", due_at=NOW))
        access.session.rollback()
        assert claim_all(access) == []
        assert access.claimer.pending(["pay"]).is_drained

    def test_claims_come_in_the_order_they_were_put_and_no_more_than_asked(self, access: Access) -> None:
        put(access, *[an_outgoing(f"m{n:02}") for n in range(20)])
        first = access.claimer.claim(["pay"], 12, "w1", NODE)
        rest = access.claimer.claim(["pay"], 12, "w1", NODE)
        assert ids(first + rest) == [f"m{n:02}" for n in range(20)]
        assert len(rest) == len(range(12, 20))

    def test_messages_of_the_oldest_flows_are_claimed_first(self, access: Access) -> None:
        ages = {"m3": 1, "m0": 9, "m2": 2, "m1": 5}
        put(access, *[an_outgoing(each, origin_at=NOW - age) for each, age in ages.items()])
        first = access.claimer.claim(["pay"], 3, "w1", NODE)
        rest = access.claimer.claim(["pay"], 3, "w1", NODE)
        assert (ids(first), ids(rest)) == (["m0", "m1", "m2"], ["m3"])

    def test_a_claim_is_for_the_stages_it_names(self, access: Access) -> None:
        put(access, an_outgoing("m1"), an_outgoing("m2", "ship"), an_outgoing("m3", "bill"))
        assert ids(access.claimer.claim(["ship", "bill"], 9, "w1", NODE)) == ["m2", "m3"]
        assert ids(claim_all(access)) == ["m1"]

    def test_a_claim_is_seen_by_others_at_once_and_leaves_no_transaction_open(
        self, access: Access, other: Access
    ) -> None:
        put(access, an_outgoing())
        (claim,) = claim_all(access)
        assert not access.session.is_begun
        assert claim_all(other, owner="w2") == []
        assert other.session.queue.owned("w1") == [claim]
        assert other.session.queue.owners() == ["w1"]

    def test_a_claim_is_written_into_the_journal(self, access: Access) -> None:
        put(access, an_outgoing("m1"), an_outgoing("m2", flow_id="another"))
        claim_all(access)
        assert access.session.journal.history("flow") == [
            Waypoint("received", NOW, NODE, "pay", "m1", "flow", 1, NOW),
        ]

    def test_claiming_where_nothing_waits_writes_nothing(self, access: Access, other: Access) -> None:
        other.session.queue.changed()
        assert claim_all(access) == []
        assert access.claimer.claim_suspect(["pay"], "w1", NODE) is None
        assert not access.session.is_begun
        assert access.session.circuits.last_line() == 0

    def test_unicode_long_ids_and_big_envelopes_arrive_as_they_were_sent(self, access: Access) -> None:
        outgoing, data = an_outgoing(LONG_ID, LONG_STAGE, flow_id=LONG_ID, body=b'"' + b"x" * MEGABYTE + b'"')
        put(access, (outgoing, data))
        (claim,) = access.claimer.claim([LONG_STAGE], 1, "w1", NODE)
        assert (claim.message_id, claim.flow_id, claim.stage) == (LONG_ID, LONG_ID, LONG_STAGE)
        assert claim.envelope == data

    # Delay

    def test_a_delayed_message_is_claimed_when_it_is_due_and_not_before(
        self, access: Access, clock: ManualClock
    ) -> None:
        put(access, an_outgoing("m1", due_at=NOW + SECOND))
        clock.advance_to(NOW + SECOND - 1)
        assert claim_all(access) == []
        assert access.claimer.pending(["pay"]).next_due_at == NOW + SECOND
        clock.advance_to(NOW + SECOND)
        assert ids(claim_all(access)) == ["m1"]

    def test_what_waits_for_its_time_holds_up_nobody(self, access: Access) -> None:
        put(access, an_outgoing("later", due_at=NOW + SECOND), an_outgoing("now"))
        assert ids(claim_all(access)) == ["now"]

    def test_a_crowd_that_comes_due_together_is_claimed_whole_and_each_once(
        self, access: Access, clock: ManualClock
    ) -> None:
        put(access, *[an_outgoing(f"m{n:04}", due_at=NOW + n) for n in range(MANY)])
        clock.advance_to(NOW + MANY)
        found: list[str] = []
        while window := claim_all(access):
            found += ids(window)
        assert sorted(found) == [f"m{n:04}" for n in range(MANY)]

    # take

    def test_what_was_taken_is_gone_when_the_transaction_commits(self, access: Access, other: Access) -> None:
        put(access, an_outgoing())
        (claim,) = claim_all(access)
        with committed(access.session):
            access.session.queue.take(claim)
        assert not other.session.queue.holds(claim)
        assert access.claimer.pending(["pay"]).is_drained

    def test_what_was_taken_is_still_held_when_the_transaction_rolls_back(self, access: Access) -> None:
        put(access, an_outgoing())
        (claim,) = claim_all(access)
        access.session.begin()
        access.session.queue.take(claim)
        access.session.rollback()
        assert access.session.queue.holds(claim)
        assert access.session.queue.owned("w1") == [claim]

    def test_what_a_taker_puts_commits_or_rolls_back_with_what_it_takes(self, access: Access) -> None:
        put(access, an_outgoing("m1"))
        (claim,) = claim_all(access)
        access.session.begin()
        access.session.queue.take(claim)
        enqueue(access, an_outgoing("m2"))
        access.session.rollback()
        assert claim_all(access, owner="w2") == []
        with committed(access.session):
            access.session.queue.take(claim)
            enqueue(access, an_outgoing("m2"))
        assert ids(claim_all(access, owner="w2")) == ["m2"]
        assert access.session.queue.owned("w1") == []

    def test_several_are_taken_with_one_commit(self, access: Access) -> None:
        put(access, *(an_outgoing(f"m{at}") for at in range(3)))
        claims = claim_all(access)
        with committed(access.session):
            access.session.queue.take(*claims[:2])
        assert [access.session.queue.holds(each) for each in claims] == [False, False, True]

    @pytest.mark.parametrize("difference", BROKEN_FENCES)
    def test_none_of_several_is_taken_where_the_fence_of_one_does_not_match(
        self, access: Access, difference: str
    ) -> None:
        put(access, *(an_outgoing(f"m{at}") for at in range(3)))
        first, second, third = claim_all(access)
        with pytest.raises(LeaseLost), committed(access.session):  # noqa: PT012 - the later call may raise
            access.session.queue.take(first, BROKEN_FENCES[difference](second), third)
            enqueue(access, an_outgoing("never"))
        assert access.session.queue.owned("w1") == [first, second, third]

    @pytest.mark.parametrize("difference", BROKEN_FENCES)
    def test_nothing_is_taken_deferred_or_released_where_the_fence_does_not_match(
        self, access: Access, difference: str
    ) -> None:
        put(access, an_outgoing())
        (claim,) = claim_all(access)
        broken = BROKEN_FENCES[difference](claim)
        with pytest.raises(LeaseLost), committed(access.session):  # noqa: PT012 - the later call may raise
            access.session.queue.take(broken)
            enqueue(access, an_outgoing("never"))
        with committed(access.session):
            assert not deferred(access, broken, due_at=NOW, failures=1, deaths=0)
        access.claimer.release([broken], NODE)
        assert not access.session.queue.holds(broken)
        assert access.session.queue.owned("w1") == [claim]
        assert "returned" not in [each.waypoint for each in access.session.journal.history("flow")]

    # defer

    def test_a_deferred_message_comes_again_when_it_is_due_with_its_counts(
        self, access: Access, clock: ManualClock
    ) -> None:
        put(access, an_outgoing("m1", flow_id="order:1"))
        (claim,) = claim_all(access)
        assert defer(access, claim, due_at=NOW + SECOND, failures=1)
        assert not access.session.queue.holds(claim)
        assert claim_all(access) == []
        clock.advance_to(NOW + SECOND)
        (again,) = claim_all(access)
        assert again[2:] == (2, "pay", "m1", "order:1", 1, 0, NOW, claim.envelope)
        assert (attempt_of(again), again.deliveries > 1) == (2, True)

    def test_a_message_is_deferred_once(self, access: Access) -> None:
        put(access, an_outgoing())
        (claim,) = claim_all(access)
        assert defer(access, claim, failures=1)
        assert not defer(access, claim, failures=1)
        assert len(claim_all(access)) == 1

    def test_deferring_that_is_rolled_back_leaves_the_message_held(self, access: Access) -> None:
        put(access, an_outgoing())
        (claim,) = claim_all(access)
        access.session.begin()
        deferred(access, claim, due_at=NOW, failures=1, deaths=0)
        access.session.rollback()
        assert access.session.queue.owned("w1") == [claim]
        assert claim_all(access) == []

    # Suspects

    def test_what_has_died_is_claimed_alone_and_only_alone(self, access: Access) -> None:
        suspected(access, "m1", deaths=1)
        suspected(access, "m2", deaths=1)
        assert claim_all(access) == []
        claim = access.claimer.claim_suspect(["pay"], "w1", NODE)
        assert claim is not None
        assert (claim.message_id, claim.deaths, claim.deliveries, attempt_of(claim)) == ("m1", 1, 2, 2)
        assert access.session.queue.owned("w1") == [claim]
        assert not access.session.is_begun

    def test_suspects_are_claimed_with_the_fewest_deaths_first(self, access: Access) -> None:
        for message_id, deaths in (("three", 3), ("one", 1), ("two", 2)):
            suspected(access, message_id, deaths=deaths)
        found = []
        while (claim := access.claimer.claim_suspect(["pay"], "w1", NODE)) is not None:
            found.append(claim.message_id)
        assert found == ["one", "two", "three"]

    def test_a_suspect_waits_out_its_pause(self, access: Access, clock: ManualClock) -> None:
        suspected(access, "m1", deaths=1, due_at=NOW + SECOND)
        clock.advance_to(NOW + SECOND - 1)
        assert access.claimer.claim_suspect(["pay"], "w1", NODE) is None
        assert access.claimer.pending(["pay"]).next_suspect_at == NOW + SECOND
        clock.advance_to(NOW + SECOND)
        assert access.claimer.claim_suspect(["pay"], "w1", NODE) is not None

    def test_claiming_a_suspect_is_written_into_the_journal(self, access: Access) -> None:
        suspected(access, "m1", deaths=1)
        access.claimer.claim_suspect(["pay"], "w1", NODE)
        assert access.session.journal.history("flow")[-1] == Waypoint(
            "received", NOW, NODE, "pay", "m1", "flow", 2, NOW, detail="alone"
        )

    def test_suspects_of_other_stages_are_left_alone(self, access: Access) -> None:
        suspected(access, "m1", deaths=1)
        assert access.claimer.claim_suspect(["ship"], "w1", NODE) is None

    def test_a_suspect_that_is_given_back_is_a_suspect_still(self, access: Access) -> None:
        suspected(access, "m1", deaths=2)
        claim = access.claimer.claim_suspect(["pay"], "w1", NODE)
        assert claim is not None
        access.claimer.release([claim], NODE)
        assert claim_all(access) == []
        again = access.claimer.claim_suspect(["pay"], "w2", NODE)
        assert again is not None
        assert (again.message_id, again.failures, again.deaths, again.deliveries) == ("m1", 0, 2, 3)

    # revive

    def test_a_dead_letters_message_comes_back_as_it_came_with_its_failures_forgotten(self, access: Access) -> None:
        letter = a_letter("m1", flow_id="order:1")
        with committed(access.session):
            revive(access, letter, deaths=0)
        (claim,) = claim_all(access)
        assert claim[2:] == (letter.deliveries + 1, "pay", "m1", "order:1", 0, 0, letter.origin_at, letter.envelope)

    def test_a_message_that_had_killed_its_process_comes_back_as_a_suspect(self, access: Access) -> None:
        with committed(access.session):
            revive(access, a_letter("m1"), deaths=1)
        assert claim_all(access) == []
        claim = access.claimer.claim_suspect(["pay"], "w1", NODE)
        assert claim is not None
        assert (claim.message_id, claim.failures, claim.deaths) == ("m1", 0, 1)

    def test_reviving_that_is_rolled_back_has_not_happened(self, access: Access) -> None:
        access.session.begin()
        revive(access, a_letter("m1"), deaths=0)
        access.session.rollback()
        assert access.claimer.pending(["pay"]).is_drained

    # release

    def test_what_is_given_back_is_claimable_at_once_and_counts_as_no_attempt(self, access: Access) -> None:
        put(access, an_outgoing("m1"), an_outgoing("m2"))
        claims = claim_all(access)
        access.claimer.release(claims, NODE)
        again = claim_all(access, owner="w2")
        assert [(each.message_id, attempt_of(each), each.deliveries) for each in again] == [("m1", 1, 2), ("m2", 1, 2)]

    def test_giving_back_is_written_into_the_journal(self, access: Access) -> None:
        put(access, an_outgoing("m1"))
        access.claimer.release(claim_all(access), NODE)
        assert access.session.journal.history("flow")[-1] == Waypoint(
            "returned", NOW, NODE, "pay", "m1", "flow", 1, NOW
        )
        assert not access.session.is_begun

    def test_of_several_that_are_given_back_only_those_still_held_are(self, access: Access, other: Access) -> None:
        put(access, an_outgoing("m1"), an_outgoing("m2"))
        lost, held = claim_all(access)
        with committed(other.session):
            other.session.queue.take(lost)
        access.claimer.release([lost, held], NODE)
        returned = [each.message_id for each in access.session.journal.history("flow") if each.waypoint == "returned"]
        assert returned == ["m2"]
        assert ids(claim_all(access)) == ["m2"]

    def test_giving_back_nothing_writes_nothing(self, access: Access) -> None:
        access.claimer.release([], NODE)
        assert access.session.circuits.last_line() == 0

    # owned, owners, changed

    def test_each_owner_finds_what_it_holds(self, access: Access) -> None:
        put(access, *[an_outgoing(f"m{n}") for n in range(3)])
        mine = access.claimer.claim(["pay"], 2, "w1", NODE)
        theirs = access.claimer.claim(["pay"], 2, "w2", NODE)
        assert access.session.queue.owned("w1") == mine
        assert access.session.queue.owned("w2") == theirs
        assert sorted(access.session.queue.owners()) == ["w1", "w2"]

    def test_what_others_put_is_noticed(self, access: Access, other: Access) -> None:
        access.session.queue.changed()
        put(other, an_outgoing())
        assert eventually(access.session.queue.changed)
