"""Contract of ``ports.queue.Queue``: every method."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from stagepost.flow.claim import Claim
from stagepost.ports.queue import Pending
from stagepost.ports.session import Session
from stagepost.testing.contract.givens import (
    LONG_ID,
    LONG_STAGE,
    MEGABYTE,
    NOW,
    Given,
    a_row,
    committed,
    enqueued,
    eventually,
    released,
    removed,
    rolled_back,
)

NOTHING_PENDING = Pending(ready=False, claimed=False, next_due_at=None, next_suspect_at=None)
BOTH = ["pay", "ship"]


def claimed(
    session: Session, stages: Sequence[str] = ("pay",), limit: int = 10, owner: str = "w1", now: int = 0
) -> list[Claim]:
    """Claim messages, and return them in the order of their rows; a claim promises no order. At 0 no message is due."""
    with committed(session):
        return sorted(session.queue.claim(stages, limit, owner, now))


def ids(claims: Sequence[Claim]) -> list[str]:
    return [claim.message_id for claim in claims]


# Each of these changes the one claim that is held.
WRITING_VERBS: dict[str, Callable[[Session, Claim], object]] = {
    "enqueue": lambda session, _: session.queue.enqueue([a_row("new"), a_row("later", due_at=NOW)]),
    "promote": lambda session, _: session.queue.claim(["pay"], 10, "w2", NOW),
    "claim": lambda session, _: session.queue.claim(["pay"], 10, "w2", 0),
    "claim_suspect": lambda session, _: session.queue.claim_suspect(["pay"], NOW, "w2"),
    "remove": lambda session, claim: session.queue.remove(claim),
    "release": lambda session, claim: session.queue.release(claim),
    "keep": lambda session, claim: session.queue.release(claim, kept_failures=1),
}

# A claim that differs from the one held in just one part of its fence.
BROKEN_FENCES: dict[str, Callable[[Claim], Claim]] = {
    "of another row": lambda claim: claim._replace(row=claim.row + 1_000),
    "of another owner": lambda claim: claim._replace(owner="w2"),
    "of an earlier delivery": lambda claim: claim._replace(deliveries=claim.deliveries - 1),
    "of a later delivery": lambda claim: claim._replace(deliveries=claim.deliveries + 1),
}


class QueueContract(Given):
    # enqueue and claim

    def test_what_can_run_now_is_claimed_with_everything_it_came_with(self, session: Session) -> None:
        enqueued(session, a_row("m1", flow_id="order:1", failures=2, deliveries=4, origin_at=NOW - 7, envelope=b"\x00"))
        (claim,) = claimed(session, owner="w1")
        assert claim == Claim(claim.row, "w1", 5, "pay", "m1", "order:1", 2, 0, NOW - 7, b"\x00")

    def test_each_claim_is_one_more_delivery(self, session: Session) -> None:
        enqueued(session, a_row())
        deliveries = []
        for _ in range(3):
            (claim,) = claimed(session)
            deliveries.append(claim.deliveries)
            released(session, claim)
        assert deliveries == [1, 2, 3]

    def test_of_flows_that_began_together_the_message_that_was_put_first_is_claimed_first(
        self, session: Session
    ) -> None:
        enqueued(session, *[a_row(f"m{n}") for n in range(5)])
        assert ids(claimed(session, limit=3)) == ["m0", "m1", "m2"]
        assert ids(claimed(session, limit=3)) == ["m3", "m4"]

    def test_messages_of_the_oldest_flows_are_claimed_first(self, session: Session) -> None:
        """A flow that began earlier finishes earlier, however late its next message came."""
        ages = {"m3": 1, "m0": 9, "m2": 2, "m1": 5}
        enqueued(session, *[a_row(each, BOTH[age % 2], origin_at=NOW - age) for each, age in ages.items()])
        assert sorted(ids(claimed(session, BOTH, limit=2))) == ["m0", "m1"]
        assert sorted(ids(claimed(session, BOTH, limit=1))) == ["m2"]
        assert sorted(ids(claimed(session, BOTH, limit=2))) == ["m3"]

    def test_a_claim_over_several_stages_takes_the_first_of_them_all(self, session: Session) -> None:
        rows = [a_row(f"m{n}", "ship" if n in (1, 2) else "pay") for n in range(5)]
        enqueued(session, *rows, a_row("theirs", "bill"))
        assert ids(claimed(session, BOTH, limit=3)) == ["m0", "m1", "m2"]
        assert ids(claimed(session, BOTH)) == ["m3", "m4"]

    def test_what_is_claimed_is_not_claimed_again(self, session: Session) -> None:
        enqueued(session, a_row())
        assert ids(claimed(session)) == ["m1"]
        assert claimed(session, owner="w1") == []
        assert claimed(session, owner="w2") == []

    def test_nothing_is_claimed_of_other_stages(self, session: Session) -> None:
        enqueued(session, a_row(stage="ship"), a_row(stage="pay.settle"))
        assert claimed(session, ["pay"]) == []

    def test_a_row_is_never_used_for_another_message(self, session: Session) -> None:
        """A paused owner that wakes up must not find another message in its row."""
        rows = []
        for n in range(3):
            enqueued(session, a_row(f"m{n}"))
            (claim,) = claimed(session)
            rows.append(claim.row)
            assert removed(session, claim)
        assert rows == sorted(set(rows))

    def test_messages_with_the_same_id_are_kept_apart(self, session: Session) -> None:
        enqueued(session, a_row("m1"), a_row("m1"))
        first, second = claimed(session)
        assert removed(session, first)
        assert session.queue.holds(second)

    def test_unicode_long_ids_and_big_envelopes_come_back_as_they_were(self, session: Session) -> None:
        big = bytes(range(256)) * (MEGABYTE // 256)
        enqueued(session, a_row(LONG_ID, LONG_STAGE, flow_id=LONG_ID, envelope=big))
        (claim,) = claimed(session, [LONG_STAGE], owner="wörker/" + "o" * 200)
        assert claim[1:] == ("wörker/" + "o" * 200, 1, LONG_STAGE, LONG_ID, LONG_ID, 0, 0, NOW, big)

    def test_a_thousand_messages_are_claimed_in_windows_and_each_once(self, session: Session) -> None:
        enqueued(session, *[a_row(f"m{n:04}", BOTH[n % 2]) for n in range(1_000)])
        found: list[str] = []
        while window := claimed(session, BOTH, limit=99):
            found += ids(window)
        assert found == [f"m{n:04}" for n in range(1_000)]

    # look

    def test_there_is_something_to_claim_when_a_message_can_run_now(self, session: Session) -> None:
        assert not session.queue.look(BOTH, NOW).messages
        enqueued(session, a_row(stage="ship"))
        assert session.queue.look(BOTH, NOW).messages
        assert not session.queue.look(["pay"], NOW).messages
        claimed(session, BOTH)
        assert not session.queue.look(BOTH, NOW).messages

    def test_there_is_something_to_claim_when_a_delayed_message_is_due(self, session: Session) -> None:
        enqueued(session, a_row(due_at=NOW))
        assert not session.queue.look(["pay"], NOW - 1).messages
        assert not session.queue.look(["ship"], NOW).messages
        assert session.queue.look(["pay"], NOW).messages

    def test_a_suspect_is_not_for_everybody_to_claim(self, session: Session) -> None:
        enqueued(session, a_row(deaths=1, due_at=NOW))
        assert not session.queue.look(["pay"], NOW + 1).messages
        assert claimed(session) == []

    # promote

    def test_a_delayed_message_is_claimed_only_after_it_was_promoted(self, session: Session) -> None:
        enqueued(session, a_row(failures=2, deliveries=3, due_at=NOW))
        assert claimed(session) == []
        (claim,) = claimed(session, now=NOW)
        assert (claim.failures, claim.deliveries) == (2, 4)

    def test_promotion_takes_what_is_due_earliest_first_and_no_more_than_asked(self, session: Session) -> None:
        dues = {"m3": NOW - 1, "m1": NOW - 9, "m2": NOW - 5, "not yet": NOW + 1}
        enqueued(session, *[a_row(each, due_at=due) for each, due in dues.items()])
        assert ids(claimed(session, limit=2, now=NOW)) == ["m1", "m2"]
        assert ids(claimed(session, limit=2, now=NOW)) == ["m3"]
        assert claimed(session, now=NOW) == []

    def test_promotion_over_several_stages_takes_the_earliest_of_them_all(self, session: Session) -> None:
        dues = {"m2": ("pay", NOW - 2), "m0": ("ship", NOW - 4), "m1": ("ship", NOW - 3), "theirs": ("bill", NOW - 9)}
        enqueued(session, *[a_row(each, stage, due_at=due) for each, (stage, due) in dues.items()])
        assert ids(claimed(session, BOTH, limit=2, now=NOW)) == ["m0", "m1"]
        assert ids(claimed(session, [*BOTH, "bill"])) == ["m2"]

    # claim_suspect

    def test_the_suspect_with_the_fewest_deaths_is_claimed_then_the_one_due_first(self, session: Session) -> None:
        enqueued(
            session,
            a_row("deadliest", deaths=3, due_at=NOW - 9),
            a_row("second", deaths=1, due_at=NOW - 1),
            a_row("first", deaths=1, due_at=NOW - 2),
            a_row("third", deaths=2, due_at=NOW - 8),
        )
        order = []
        with committed(session):
            while (claim := session.queue.claim_suspect(["pay"], NOW, "w1")) is not None:
                order.append(claim.message_id)
        assert order == ["first", "second", "third", "deadliest"]

    def test_a_suspect_waits_until_it_is_due(self, session: Session) -> None:
        enqueued(session, a_row("not yet", deaths=1, due_at=NOW + 1), a_row("due", deaths=2, due_at=NOW))
        with committed(session):
            claim = session.queue.claim_suspect(["pay"], NOW, "w1")
            assert claim is not None
            assert claim.message_id == "due"
            assert session.queue.claim_suspect(["pay"], NOW, "w1") is None

    def test_a_suspect_is_claimed_with_everything_it_came_with(self, session: Session) -> None:
        enqueued(session, a_row("m1", flow_id="order:1", failures=2, deaths=3, deliveries=6, due_at=NOW))
        with committed(session):
            claim = session.queue.claim_suspect(["pay"], NOW, "w1")
        assert claim is not None
        assert claim == Claim(claim.row, "w1", 7, "pay", "m1", "order:1", 2, 3, NOW, b"{}")
        assert session.queue.holds(claim)
        assert session.queue.owned("w1") == [claim]

    def test_suspects_of_other_stages_are_left_alone(self, session: Session) -> None:
        enqueued(session, a_row(stage="ship", deaths=1, due_at=NOW))
        with committed(session):
            assert session.queue.claim_suspect(["pay"], NOW, "w1") is None
            assert session.queue.claim_suspect(BOTH, NOW, "w1") is not None

    # remove, release, holds, and the fence

    def test_what_is_removed_is_gone(self, session: Session) -> None:
        enqueued(session, a_row())
        (claim,) = claimed(session)
        assert session.queue.holds(claim)
        with committed(session):
            assert session.queue.remove(claim)
            assert not session.queue.remove(claim)
        assert not session.queue.holds(claim)
        assert session.queue.pending(["pay"]) == NOTHING_PENDING

    def test_what_is_released_is_claimable_where_it_stood_and_counts_as_no_attempt(self, session: Session) -> None:
        enqueued(session, a_row("m1", failures=3), a_row("m2"))
        (claim,) = claimed(session, limit=1)
        with committed(session):
            assert session.queue.release(claim)
        assert not session.queue.holds(claim)
        (again,) = claimed(session, limit=1)
        assert (again.message_id, again.failures, again.deaths) == ("m1", 3, 0)

    @pytest.mark.parametrize("difference", BROKEN_FENCES)
    def test_a_claim_whose_fence_does_not_match_changes_nothing(self, session: Session, difference: str) -> None:
        enqueued(session, a_row())
        (claim,) = claimed(session)
        broken = BROKEN_FENCES[difference](claim)
        with committed(session):
            assert not session.queue.holds(broken)
            assert not session.queue.remove(broken)
            assert not session.queue.release(broken)
            assert not session.queue.release(broken, kept_failures=1)
        assert session.queue.holds(claim)
        assert session.queue.owned("w1") == [claim]

    def test_a_kept_message_has_a_new_claim_of_its_owner_and_its_failures(self, session: Session) -> None:
        enqueued(session, a_row("kept", failures=2), a_row("other"))
        claims = {each.message_id: each for each in claimed(session)}
        before = claims["kept"]
        with committed(session):
            assert session.queue.release(before, kept_failures=3)
        kept = before._replace(failures=3, deliveries=2)
        assert session.queue.holds(kept)
        assert not session.queue.holds(before)
        assert sorted(session.queue.owned("w1")) == sorted([kept, claims["other"]])
        released(session, kept)
        assert [(each.failures, each.deliveries) for each in claimed(session)] == [(3, 3)]

    def test_an_owner_that_claims_the_same_message_again_cannot_use_the_first_claim(self, session: Session) -> None:
        enqueued(session, a_row())
        (first,) = claimed(session)
        released(session, first)
        (second,) = claimed(session)
        with committed(session):
            assert not session.queue.remove(first)
            assert not session.queue.release(first)
        assert session.queue.holds(second)

    def test_what_was_never_claimed_cannot_be_removed_or_released(self, session: Session) -> None:
        enqueued(session, a_row())
        (claim,) = claimed(session)
        with committed(session):
            session.queue.release(claim)
            assert not session.queue.release(claim)
            assert not session.queue.remove(claim)
        assert ids(claimed(session)) == ["m1"]

    # owned, owners

    def test_an_owner_finds_what_it_holds_oldest_first(self, session: Session) -> None:
        enqueued(session, *[a_row(f"m{n}", BOTH[n % 2]) for n in range(4)])
        mine = claimed(session, BOTH, limit=3, owner="w1")
        claimed(session, BOTH, owner="w2")
        assert session.queue.owned("w1") == mine
        assert session.queue.owned("nobody") == []
        assert session.queue.owned("w1", is_unattended=True) == mine
        assert session.queue.owned("nobody", is_unattended=True) == []

    def test_every_owner_is_named_once_while_it_holds_something(self, session: Session) -> None:
        assert session.queue.owners() == []
        enqueued(session, *[a_row(f"m{n}") for n in range(5)])
        claimed(session, limit=2, owner="w2")
        (claim,) = claimed(session, limit=1, owner="wörker")
        claimed(session, limit=1, owner="w1")
        assert sorted(session.queue.owners()) == ["w1", "w2", "wörker"]
        removed(session, claim)
        assert sorted(session.queue.owners()) == ["w1", "w2"]

    # waiting_stages

    def test_every_stage_is_named_once_while_something_waits_for_it_that_can_be_claimed(self, session: Session) -> None:
        assert session.queue.waiting_stages() == []
        enqueued(session, *[a_row(f"m{n}", stage) for n, stage in enumerate(["pay", "pay", "zürich.gruß", "pay"])])
        enqueued(session, a_row("due", "delayed", due_at=NOW), a_row("died", "suspect", deaths=1, due_at=NOW))
        assert sorted(session.queue.waiting_stages()) == ["pay", "zürich.gruß"]
        claims = claimed(session, limit=9)
        assert session.queue.waiting_stages() == ["zürich.gruß"]
        released(session, claims[0])
        assert sorted(session.queue.waiting_stages()) == ["pay", "zürich.gruß"]

    # pending

    def test_pending_says_what_stands_between_these_stages_and_drained(self, session: Session) -> None:
        assert session.queue.pending(["pay"]) == NOTHING_PENDING
        assert session.queue.pending(["pay"]).is_drained
        enqueued(session, a_row())
        assert session.queue.pending(["pay"]) == Pending(True, False, None, None)
        (claim,) = claimed(session)
        assert session.queue.pending(["pay"]) == Pending(False, True, None, None)
        with committed(session):
            session.queue.remove(claim)
            session.queue.enqueue([a_row(due_at=NOW + 5), a_row(due_at=NOW + 3)])
            session.queue.enqueue([a_row(deaths=2, due_at=NOW + 4), a_row(deaths=1, due_at=NOW + 8)])
        assert session.queue.pending(["pay"]) == Pending(False, False, NOW + 3, NOW + 4)
        assert not session.queue.pending(["pay"]).is_drained
        assert session.queue.pending(["ship"]) == NOTHING_PENDING

    def test_pending_looks_at_all_the_stages_it_is_asked_about(self, session: Session) -> None:
        enqueued(session, a_row(stage="ship"), a_row(stage="ship", due_at=NOW + 1), a_row(stage="pay", due_at=NOW + 2))
        enqueued(session, a_row(stage="ship", deaths=1, due_at=NOW + 3))
        assert session.queue.pending(BOTH) == Pending(True, False, NOW + 1, NOW + 3)
        claimed(session, ["ship"])
        assert session.queue.pending(BOTH) == Pending(False, True, NOW + 1, NOW + 3)

    # changed

    def test_a_change_by_somebody_else_is_noticed(self, session: Session, other: Session) -> None:
        session.queue.changed()
        enqueued(other, a_row())
        assert eventually(session.queue.changed)
        (claim,) = claimed(other)
        session.queue.changed()
        released(other, claim)
        assert eventually(session.queue.changed)

    # Rolled back

    @pytest.mark.parametrize("verb", WRITING_VERBS)
    def test_what_is_rolled_back_has_not_happened(self, session: Session, verb: str) -> None:
        enqueued(session, a_row("held"))
        (claim,) = claimed(session)
        enqueued(session, a_row("ready"), a_row("due", due_at=NOW), a_row("died", deaths=1, due_at=NOW))

        def seen() -> object:
            queue = session.queue
            return (
                queue.pending(["pay"]),
                queue.owners(),
                queue.owned("w1"),
                queue.holds(claim),
                session.queue.depths(),
            )

        before = seen()
        with rolled_back(session):
            WRITING_VERBS[verb](session, claim)
            assert seen() != before
        assert seen() == before
