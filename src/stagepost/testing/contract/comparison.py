"""Compare a store with another one: hypothesis makes up calls, and both stores must give the same answers.

    def test_my_store_answers_as_another_one_does(tmp_path_factory):
        compare_stores(lambda: MyStore(...), lambda: AnotherStore(...))

Compare with a store that was written apart from yours, so that the two do not share a mistake easily.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from stagepost.flow.claim import Claim
from stagepost.ports.dead_letters import KeptLetter, Selection
from stagepost.ports.queue import QueueRow
from stagepost.ports.session import Session
from stagepost.ports.store import Store
from stagepost.ports.subscriptions import Subscription
from stagepost.testing.contract.givens import NOW, UndoneError, a_letter, a_row, a_waypoint, an_acceptance

STAGES = ["pay", "ship", "zürich.gruß"]
OWNERS = ["w1", "w2"]
FLOWS = ["f1", "f2"]

some_stages = st.lists(st.sampled_from(STAGES), unique=True, max_size=3)
some_owner = st.sampled_from(OWNERS)
some_flow = st.sampled_from(FLOWS)
some_topic = st.sampled_from(["prices", "orders"])
some_limit = st.integers(0, 5)
some_position = st.integers(0, 9)
some_fence = st.sampled_from(["right", "right", "right", "row", "owner", "deliveries"])


class Pair(NamedTuple):
    """The same claim in both stores. Its rows may differ, because a rollback frees row numbers in one store only."""

    ours: Claim
    theirs: Claim


def compare_stores(
    make_store: Callable[[], Store], make_other: Callable[[], Store], *, examples: int = 100, steps: int = 50
) -> None:
    """Raise ``AssertionError`` where the stores answer differently. Each call of a function makes an empty store."""

    class Comparison(StoreComparison):
        def make_stores(self) -> tuple[Store, Store]:
            return make_store(), make_other()

    run_state_machine_as_test(
        Comparison,
        settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None, report_multiple_bugs=False),
    )


def altered(claim: Claim, fence: str) -> Claim:
    match fence:
        case "row":
            return claim._replace(row=claim.row + 1_000_000)
        case "owner":
            return claim._replace(owner="nobody")
        case "deliveries":
            return claim._replace(deliveries=claim.deliveries + 1)
        case _:
            return claim


class StoreComparison(RuleBasedStateMachine):
    def make_stores(self) -> tuple[Store, Store]:
        raise NotImplementedError

    @initialize()
    def open_both(self) -> None:
        ours, theirs = self.make_stores()
        self.ours: Session = ours.session()
        self.theirs: Session = theirs.session()
        self.is_open = False
        # These are committed claims. A row whose claim was rolled back may be claimed again.
        self.claims: list[Pair] = []
        self.claims_committed: list[Pair] = []
        self.now = NOW
        self.written = 0

    def teardown(self) -> None:
        if hasattr(self, "ours"):
            self.ours.close()
            self.theirs.close()

    def both(self, ask: Callable[[Session], Any]) -> Any:
        ours, theirs = ask(self.ours), ask(self.theirs)
        assert ours == theirs
        return theirs

    def next_number(self) -> int:
        self.written += 1
        return self.written

    # Transactions

    @precondition(lambda self: not self.is_open)
    @rule(is_durable=st.booleans())
    def begin(self, is_durable: bool) -> None:
        self.both(lambda session: session.begin(is_durable=is_durable))
        self.is_open = True

    @precondition(lambda self: self.is_open)
    @rule()
    def commit(self) -> None:
        self.both(lambda session: session.commit())
        self.is_open = False
        self.claims_committed = self.claims.copy()

    @precondition(lambda self: self.is_open)
    @rule(undo=st.sampled_from(["rollback", "reconnect"]))
    def roll_back(self, undo: str) -> None:
        self.both(lambda session: getattr(session, undo)())
        self.is_open = False
        self.claims = self.claims_committed.copy()

    @precondition(lambda self: self.is_open)
    @rule(stage=st.sampled_from(STAGES), owner=some_owner, raises=st.booleans())
    def in_an_atomic_block(self, stage: str, owner: str, raises: bool) -> None:
        row, key = self.row(stage, 0, 0, None), f"k{self.next_number()}"

        def change(session: Session) -> None:
            with suppress(UndoneError), session.atomic():
                session.queue.enqueue([row])
                session.queue.claim([stage], 1, owner, 0)
                session.accepted.accept([an_acceptance(key, stage)])
                session.journal.record([a_waypoint(key, "f1")])
                session.dead_letters.bury(a_letter(key, flow_id="f1"))
                if raises:
                    raise UndoneError

        self.both(change)

    # The queue

    def row(self, stage: str, failures: int, deaths: int, wait: int | None) -> QueueRow:
        """Make a row. No two are due at the same moment, because no store promises their order."""
        number = self.next_number()
        due_at = None if wait is None and not deaths else self.now + (wait or 0) * 1_000 + number
        origin_at = NOW - number % 7
        return a_row(
            f"m{number}", stage, failures=failures, deaths=deaths, due_at=due_at, origin_at=origin_at, flow_id="f1"
        )

    @precondition(lambda self: self.is_open)
    @rule(
        stage=st.sampled_from(STAGES),
        failures=st.integers(0, 2),
        deaths=st.sampled_from([0, 0, 0, 1, 2]),
        waits=st.lists(st.one_of(st.none(), st.integers(-3, 3)), min_size=1, max_size=4),
    )
    def enqueue(self, stage: str, failures: int, deaths: int, waits: list[int | None]) -> None:
        rows = [self.row(stage, failures, deaths, wait) for wait in waits]
        self.both(lambda session: session.queue.enqueue(rows))

    @precondition(lambda self: self.is_open)
    @rule(stages=some_stages, limit=some_limit, owner=some_owner)
    def claim(self, stages: list[str], limit: int, owner: str) -> None:
        ours = sorted(self.ours.queue.claim(stages, limit, owner, self.now))
        theirs = sorted(self.theirs.queue.claim(stages, limit, owner, self.now))
        assert [each[1:] for each in ours] == [each[1:] for each in theirs]
        self.claims += map(Pair, ours, theirs)

    @precondition(lambda self: self.is_open)
    @rule(stages=some_stages, owner=some_owner)
    def claim_suspect(self, stages: list[str], owner: str) -> None:
        ours = self.ours.queue.claim_suspect(stages, self.now, owner)
        theirs = self.theirs.queue.claim_suspect(stages, self.now, owner)
        if ours is None or theirs is None:
            assert ours is theirs
        else:
            assert ours[1:] == theirs[1:]
            self.claims.append(Pair(ours, theirs))

    @precondition(lambda self: self.is_open and self.claims)
    @rule(position=some_position, fence=some_fence, verb=st.sampled_from(["remove", "release", "holds"]))
    def use_a_claim(self, position: int, fence: str, verb: str) -> None:
        pair = self.claims[position % len(self.claims)]
        ours = getattr(self.ours.queue, verb)(altered(pair.ours, fence))
        theirs = getattr(self.theirs.queue, verb)(altered(pair.theirs, fence))
        assert (verb, ours) == (verb, theirs)

    @rule(milliseconds=st.integers(0, 3))
    def time_passes(self, milliseconds: int) -> None:
        self.now += milliseconds * 1_000

    @rule(stages=some_stages)
    def look_at_the_queue(self, stages: list[str]) -> None:
        self.both(lambda session: session.queue.look(stages, self.now))
        self.both(lambda session: session.queue.pending(stages))

    @rule(owner=some_owner)
    def look_at_owners(self, owner: str) -> None:
        self.both(lambda session: sorted(session.queue.owners()))
        self.both(lambda session: sorted(session.queue.waiting_stages()))
        self.both(lambda session: [each[1:] for each in session.queue.owned(owner)])

    # Records

    @precondition(lambda self: self.is_open)
    @rule(key=st.integers(0, 5), stage=st.sampled_from(STAGES), content=st.integers(0, 1))
    def accept(self, key: int, stage: str, content: int) -> None:
        self.both(lambda session: session.accepted.accept([an_acceptance(f"k{key}", stage, body=b"%d" % content)]))

    @precondition(lambda self: self.is_open)
    @rule(flows=st.lists(some_flow, max_size=3))
    def record(self, flows: list[str]) -> None:
        waypoints = [a_waypoint(f"m{self.next_number()}", flow, node=flow) for flow in flows]
        self.both(lambda session: session.journal.record(waypoints))

    @precondition(lambda self: self.is_open)
    @rule(topic=some_topic, subscriber=st.sampled_from(STAGES), app=some_owner, ends=st.booleans())
    def subscribe(self, topic: str, subscriber: str, app: str, ends: bool) -> None:
        if ends:
            self.both(lambda session: session.subscriptions.remove(topic, subscriber))
        else:
            self.both(lambda session: session.subscriptions.put(Subscription(topic, subscriber, app)))

    @rule(topics=st.lists(some_topic, unique=True))
    def look_at_subscriptions(self, topics: list[str]) -> None:
        self.both(lambda session: sorted(session.subscriptions.listed(topics)))

    @rule(flow=some_flow, message=st.integers(0, 40))
    def look_at_the_journal(self, flow: str, message: int) -> None:
        self.both(lambda session: session.journal.history(flow))
        self.both(lambda session: session.journal.history(f"m{message}"))
        self.both(lambda session: session.journal.since(0).committed)

    @precondition(lambda self: self.is_open)
    @rule(flow=some_flow, fingerprint=st.sampled_from(["aaaaaaaaaaaa", "bbbbbbbbbbbb"]), stage=st.sampled_from(STAGES))
    def bury(self, flow: str, fingerprint: str, stage: str) -> None:
        number = self.next_number()
        letter = a_letter(f"m{number}", flow_id=flow, fingerprint=fingerprint, stage=stage, dead_at=NOW + number)
        self.both(lambda session: session.dead_letters.bury(letter))

    @precondition(lambda self: self.is_open)
    @rule(position=st.integers(0, 5))
    def remove_dead_letter(self, position: int) -> None:
        def dig(session: Session) -> bool:
            kept = list(session.dead_letters.select(Selection("all")))
            return session.dead_letters.remove(kept[position].id if position < len(kept) else -1)

        self.both(dig)

    @rule(
        selection=st.sampled_from(
            [
                Selection("all"),
                Selection("flow", "f1"),
                Selection("group", "aaaaaaaaaaaa"),
                Selection("message", "m3"),
                Selection("id", 0),
            ]
        )
    )
    def look_at_letters(self, selection: Selection) -> None:
        def read(session: Session) -> list[KeptLetter]:
            return [KeptLetter(0, kept.letter) for kept in session.dead_letters.select(selection)]

        self.both(read)

    @rule()
    def look_at_groups(self) -> None:
        self.both(
            lambda session: [
                (each.fingerprint, each.stage, each.reason, each.count, each.first_at, each.last_at)
                for each in session.dead_letters.groups()
            ]
        )

    @invariant()
    def both_stand_the_same(self) -> None:
        if hasattr(self, "ours"):
            assert (self.ours.is_begun, self.theirs.is_begun) == (self.is_open, self.is_open)
            self.both(lambda session: session.queue.depths())
