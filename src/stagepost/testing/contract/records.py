"""Contract of the records beside the queue: accepted keys, the journal, dead letters, subscriptions, depths."""

from __future__ import annotations

import pytest
from msgspec import structs

from stagepost.flow.initiation import Acceptance
from stagepost.ports.dead_letters import LetterGroup, Selection
from stagepost.ports.journal import WaypointName
from stagepost.ports.outbox import Backlog
from stagepost.ports.queue import Depth
from stagepost.ports.session import Session
from stagepost.ports.subscriptions import Subscription
from stagepost.testing.contract.givens import (
    LONG_ID,
    LONG_STAGE,
    MEGABYTE,
    NOW,
    Given,
    a_full_waypoint,
    a_letter,
    a_row,
    a_waypoint,
    an_acceptance,
    buried,
    committed,
    recorded,
    rolled_back,
)


def lettered(session: Session, by: str = "all", value: str | int | None = None) -> list[str]:
    return [kept.letter.message_id for kept in session.dead_letters.select(Selection(by, value))]  # type: ignore[arg-type]


# Waypoints of a message between the ends of its attempts.
BETWEEN: tuple[WaypointName, ...] = ("received", "returned", "delayed", "sent")


def outcomes_of(session: Session, *acceptances: Acceptance) -> list[str]:
    return [each.outcome for each in session.accepted.accept(acceptances)]


class RecordsContract(Given):
    # accept

    def test_a_key_is_let_in_once(self, session: Session) -> None:
        first = an_acceptance("m1", body=b'{"n":1}')
        again = an_acceptance("m1", body=b'{"n":1}', run_id="run-2")
        with committed(session):
            verdicts = session.accepted.accept([first, first])
        with committed(session):
            verdicts += session.accepted.accept([again])
        assert [(each.outcome, each.digest) for each in verdicts] == [
            ("started", first.digest),
            ("repeated", first.digest),
            ("repeated", first.digest),
        ]

    def test_a_key_that_stood_for_other_content_is_a_conflict_and_stays_what_it_was(self, session: Session) -> None:
        first, second = an_acceptance(body=b'{"n":1}'), an_acceptance(body=b'{"n":2}')
        with committed(session):
            session.accepted.accept([first])
            (verdict,) = session.accepted.accept([second])
        assert (verdict.outcome, verdict.digest) == ("conflict", first.digest)
        with committed(session):
            assert outcomes_of(session, first) == ["repeated"]
            assert outcomes_of(session, an_acceptance("m0"), second, first, an_acceptance("m2")) == [
                "started",
                "conflict",
                "repeated",
                "started",
            ]

    def test_the_run_that_brought_the_content_is_told_with_every_verdict(self, session: Session) -> None:
        first, other = an_acceptance("m1", run_id="run-1"), an_acceptance("m1", body=b"[]", run_id="run-2")
        with committed(session):
            verdicts = session.accepted.accept([first, first, other, an_acceptance("m2")])
            verdicts += session.accepted.accept([other, first, an_acceptance("m2", run_id="run-1")])
        assert [(each.outcome, each.run_id) for each in verdicts] == [
            ("started", "run-1"),
            ("repeated", "run-1"),
            ("conflict", "run-1"),
            ("started", None),
            ("conflict", "run-1"),
            ("repeated", "run-1"),
            ("repeated", None),
        ]

    def test_the_same_key_is_let_in_once_for_each_target(self, session: Session) -> None:
        with committed(session):
            outcomes = outcomes_of(session, *(an_acceptance("m1", to) for to in ("pay", "ship", "pay")))
        assert outcomes == ["started", "started", "repeated"]

    def test_of_several_with_one_key_the_first_is_let_in(self, session: Session) -> None:
        first, second = an_acceptance(body=b'{"n":1}'), an_acceptance(body=b'{"n":2}')
        with committed(session):
            assert outcomes_of(session, first, second, first) == ["started", "conflict", "repeated"]
        with committed(session):
            assert outcomes_of(session, second, first) == ["conflict", "repeated"]

    def test_a_key_whose_acceptance_was_rolled_back_is_new(self, session: Session) -> None:
        with rolled_back(session):
            session.accepted.accept([an_acceptance(body=b'{"n":1}')])
        with committed(session):
            assert outcomes_of(session, an_acceptance(body=b'{"n":2}')) == ["started"]

    def test_long_keys_in_any_script_are_told_apart(self, session: Session) -> None:
        with committed(session):
            outcomes = outcomes_of(
                session, *(an_acceptance(key, LONG_STAGE) for key in (LONG_ID, LONG_ID[:-1], LONG_ID))
            )
        assert outcomes == ["started", "started", "repeated"]

    # Subscriptions

    def test_who_subscribes_to_a_topic_is_told_to_those_who_ask_for_it(self, session: Session) -> None:
        billing, shipping = Subscription("prices", "billing", "books"), Subscription("prices", LONG_STAGE, "depot")
        orders = Subscription("orders", "billing", "books")
        with committed(session):
            for each in (billing, shipping, orders):
                session.subscriptions.put(each)
            assert sorted(session.subscriptions.listed(["prices"])) == sorted([billing, shipping])
        assert session.subscriptions.listed(["orders", "no such topic"]) == [orders]
        assert sorted(session.subscriptions.listed(["prices", "orders"])) == sorted([billing, shipping, orders])
        assert session.subscriptions.listed([]) == []

    def test_who_subscribes_again_is_subscribed_once_for_the_app_that_said_so_last(self, session: Session) -> None:
        for app in ("books", "books", "ledger"):
            with committed(session):
                session.subscriptions.put(Subscription("prices", "billing", app))
        assert session.subscriptions.listed(["prices"]) == [Subscription("prices", "billing", "ledger")]

    def test_a_subscription_is_ended_once(self, session: Session) -> None:
        kept = Subscription("orders", "billing", "books")
        with committed(session):
            session.subscriptions.put(Subscription("prices", "billing", "books"))
            session.subscriptions.put(kept)
        with committed(session):
            assert session.subscriptions.remove("prices", "billing")
            assert not session.subscriptions.remove("prices", "billing")
        assert session.subscriptions.listed(["prices", "orders"]) == [kept]

    def test_subscribing_and_ending_it_are_undone_with_the_transaction(self, session: Session) -> None:
        before = Subscription("prices", "billing", "books")
        with committed(session):
            session.subscriptions.put(before)
        with rolled_back(session):
            session.subscriptions.put(Subscription("prices", "shipping", "depot"))
            session.subscriptions.remove("prices", "billing")
        assert session.subscriptions.listed(["prices"]) == [before]

    def test_a_subscription_is_others_to_see_when_it_is_committed(self, session: Session, other: Session) -> None:
        subscription = Subscription("prices", "billing", "books")
        with committed(session):
            session.subscriptions.put(subscription)
            session.journal.record([])
            assert other.subscriptions.listed(["prices"]) == []
        assert other.subscriptions.listed(["prices"]) == [subscription]

    # The journal

    def test_a_flows_history_is_in_the_order_it_was_written(self, session: Session) -> None:
        with committed(session):
            session.journal.record([a_waypoint("m2"), a_waypoint("m1")])
            session.journal.record([a_waypoint("theirs", "other flow")])
            session.journal.record([])
        recorded(session, a_waypoint("m0"))
        assert [each.message_id for each in session.journal.history("flow")] == ["m2", "m1", "m0"]
        assert session.journal.history("no such flow") == []

    def test_a_waypoint_comes_back_as_it_was_written(self, session: Session) -> None:
        written = [a_waypoint(), a_full_waypoint(), structs.replace(a_waypoint(LONG_ID), detail="", ms=0.0, bytes=0)]
        recorded(session, *written)
        assert session.journal.history("flow") == written

    def test_the_flow_of_a_message_is_found_by_its_id(self, session: Session) -> None:
        recorded(session, a_waypoint("m1", "order:1"), a_waypoint("m2", LONG_ID))
        assert [each.flow_id for each in session.journal.history("m1")] == ["order:1"]
        assert [each.flow_id for each in session.journal.history("m2")] == [LONG_ID]
        assert session.journal.history("m3") == []

    def test_the_latest_lines_of_a_message_are_its_own_and_in_their_order(self, session: Session) -> None:
        first, second, third = (structs.replace(a_waypoint("m1"), attempt=attempt) for attempt in range(3))
        recorded(session, first, a_waypoint("m2"), second, third)
        assert session.journal.history("m1", 2) == [second, third]
        assert session.journal.history("m1", 100) == [first, second, third]
        # A flow's id is no message's.
        assert session.journal.history("flow", 100) == []

    def test_what_was_committed_since_a_line_of_the_journal_is_counted_by_node(self, session: Session) -> None:
        assert session.circuits.last_line() == 0
        recorded(session, a_waypoint("before", node="n1"))
        line = session.journal.position()
        assert session.journal.since(line).committed == {}
        assert session.journal.since(line).lines == Backlog(0, None)
        with committed(session):
            session.journal.record(
                [a_waypoint(node="n1"), a_waypoint(node="n2"), a_waypoint(node="n1"), a_full_waypoint()]
            )
        assert session.journal.since(line).committed == {"n1": 2, "n2": 1}
        assert session.journal.since(line).lines == Backlog(4, NOW)
        assert session.journal.since(0).committed == {"n1": 3, "n2": 1}

    @pytest.mark.parametrize("end", ["committed", "failed", "died", "dead"])
    def test_an_attempt_that_ended_since_a_line_of_the_journal_is_seen(
        self, session: Session, end: WaypointName
    ) -> None:
        recorded(session, a_waypoint(name=end))
        line = session.journal.position()
        recorded(session, *[a_waypoint(name=each) for each in BETWEEN])
        assert not session.journal.since(line).has_ended
        recorded(session, a_waypoint(name=end))
        assert session.journal.since(line).has_ended

    # Depths

    def test_depths_count_what_waits_runs_and_was_set_aside_by_stage(self, session: Session) -> None:
        assert session.queue.depths() == []
        with committed(session):
            session.queue.enqueue([a_row(f"m{n}", origin_at=NOW + n) for n in range(3)])
            session.queue.claim(["pay"], 1, "w1", 0)
            session.queue.enqueue([a_row("delayed", due_at=NOW + 9, origin_at=NOW - 3) for _ in range(3)])
            session.queue.enqueue([a_row("suspect", deaths=1, due_at=NOW, origin_at=NOW - 4) for _ in range(4)])
            session.queue.enqueue([a_row("other", LONG_STAGE, origin_at=NOW + 5)])
            for _ in range(5):
                session.dead_letters.bury(a_letter())
            session.dead_letters.bury(a_letter(stage="ship"))
        assert {each.stage: each for each in session.queue.depths()} == {
            "pay": Depth("pay", ready=2, claimed=1, delayed=3, suspect=4, dead=5, oldest_at=NOW - 4),
            "ship": Depth("ship", ready=0, claimed=0, delayed=0, suspect=0, dead=1, oldest_at=None),
            LONG_STAGE: Depth(LONG_STAGE, ready=1, claimed=0, delayed=0, suspect=0, dead=0, oldest_at=NOW + 5),
        }


class LettersContract(Given):
    def test_a_dead_letter_comes_back_as_it_was_buried(self, session: Session) -> None:
        letter = a_letter(LONG_ID, flow_id=LONG_ID, stage=LONG_STAGE, envelope=bytes(range(256)) * (MEGABYTE // 256))
        buried(session, letter)
        (kept,) = session.dead_letters.select(Selection("all"))
        assert kept.letter == letter

    @pytest.mark.parametrize(
        ("by", "value", "expected"),
        [
            ("all", None, ["m1", "m2", "m3"]),
            ("message", "m2", ["m2"]),
            ("flow", "f1", ["m1", "m3"]),
            ("group", "bbbbbbbbbbbb", ["m2", "m3"]),
            ("message", "f1", []),
            ("flow", "nobody's", []),
            ("group", "m1", []),
            ("id", 4711, []),
        ],
    )
    def test_dead_letters_are_selected_oldest_first(
        self, session: Session, by: str, value: str | int | None, expected: list[str]
    ) -> None:
        buried(
            session,
            a_letter("m1", flow_id="f1", fingerprint="aaaaaaaaaaaa"),
            a_letter("m2", flow_id="f2", fingerprint="bbbbbbbbbbbb"),
            a_letter("m3", flow_id="f1", fingerprint="bbbbbbbbbbbb"),
        )
        assert lettered(session, by, value) == expected

    def test_the_ids_of_the_dead_letters_of_flows_are_found(self, session: Session) -> None:
        buried(
            session,
            *[
                a_letter(message_id, flow_id=flow_id)
                for message_id, flow_id in (("m1", "f1"), ("m2", LONG_ID), ("m3", "f3"), ("m4", "f1"))
            ],
        )
        by_message = {kept.letter.message_id: kept.id for kept in session.dead_letters.select(Selection("all"))}
        found = session.dead_letters.ids_of(["f1", LONG_ID, "nobody's"])
        assert sorted(found) == sorted(by_message[each] for each in ("m1", "m2", "m4"))
        assert session.dead_letters.ids_of([]) == []

    def test_a_dead_letter_is_selected_by_the_id_it_is_kept_under(self, session: Session) -> None:
        buried(session, a_letter("m1"), a_letter("m2"))
        for kept in session.dead_letters.select(Selection("all")):
            assert list(session.dead_letters.select(Selection("id", kept.id))) == [kept]

    @pytest.mark.parametrize(("by", "value"), [("all", None), ("flow", "flow"), ("group", "0123456789ab")])
    def test_many_dead_letters_are_all_found(self, session: Session, by: str, value: str | None) -> None:
        """There are more than fit on one page of a store's reads."""
        wanted = [f"m{n:04}" for n in range(1_001)]
        buried(session, *[a_letter(each, envelope=b"") for each in wanted])
        assert lettered(session, by, value) == wanted

    def test_a_dead_letter_is_exhumed_once(self, session: Session) -> None:
        buried(session, a_letter("m1"), a_letter("m2"))
        first, second = session.dead_letters.select(Selection("all"))
        with committed(session):
            assert session.dead_letters.remove(first.id)
            assert not session.dead_letters.remove(first.id)
        assert list(session.dead_letters.select(Selection("all"))) == [second]

    def test_dead_letters_may_be_exhumed_while_they_are_read(self, session: Session) -> None:
        buried(session, *[a_letter(f"m{n}", envelope=b"") for n in range(450)])
        with committed(session):
            exhumed = [session.dead_letters.remove(kept.id) for kept in session.dead_letters.select(Selection("all"))]
        assert exhumed == [True] * 450
        assert lettered(session) == []

    def test_an_id_is_not_given_to_another_dead_letter(self, session: Session) -> None:
        """An operator who noted an id, and replays it later, must not replay another letter."""
        seen = []
        for n in range(3):
            buried(session, a_letter(f"m{n}"))
            (kept,) = session.dead_letters.select(Selection("all"))
            seen.append(kept.id)
            with committed(session):
                session.dead_letters.remove(kept.id)
        assert seen == sorted(set(seen))

    def test_burying_and_exhuming_are_undone_with_the_transaction(self, session: Session) -> None:
        buried(session, a_letter("m1"))
        (kept,) = session.dead_letters.select(Selection("all"))
        with rolled_back(session):
            session.dead_letters.bury(a_letter("m2"))
            session.dead_letters.remove(kept.id)
            assert lettered(session) == ["m2"]
        assert lettered(session) == ["m1"]

    def test_dead_letters_of_one_kind_at_one_place_are_a_group(self, session: Session) -> None:
        places = ["aaaaaaaaaaaa", "bbbbbbbbbbbb", "aaaaaaaaaaaa", "aaaaaaaaaaaa"]
        buried(
            session,
            *[a_letter(f"m{n}", fingerprint=place, dead_at=NOW + n) for n, place in enumerate(places)],
            a_letter("m4", fingerprint="aaaaaaaaaaaa", stage="ship", dead_at=NOW + 4),
        )
        by_message = {kept.letter.message_id: kept.id for kept in session.dead_letters.select(Selection("all"))}
        assert session.dead_letters.groups() == [
            LetterGroup("aaaaaaaaaaaa", "pay", "exhausted", 3, NOW, NOW + 3, by_message["m3"]),
            LetterGroup("aaaaaaaaaaaa", "ship", "exhausted", 1, NOW + 4, NOW + 4, by_message["m4"]),
            LetterGroup("bbbbbbbbbbbb", "pay", "exhausted", 1, NOW + 1, NOW + 1, by_message["m1"]),
        ]

    def test_there_are_no_groups_without_dead_letters(self, session: Session) -> None:
        assert session.dead_letters.groups() == []
