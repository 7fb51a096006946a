"""Contract of ``ports.effects.Effects``, in sessions that commit while a stage's transaction is open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from stagepost.flow.effects import EffectId
from stagepost.ports.effects import NO_EFFECTS, EffectFigures
from stagepost.ports.session import Session
from stagepost.ports.store import Store
from stagepost.testing.contract.givens import LONG_ID, NOW, Given, committed, rolled_back

CARD = EffectId("m1", "pay", 0, "", "card", 0)
MAIL = EffectId("m1", "pay", 0, "insure", "mail", 1)


class EffectsContract(Given):
    @pytest.fixture
    def apart(self, store: Store) -> Iterator[Session]:
        with closing(store.apart.session()) as session:
            yield session

    def test_its_commits_do_not_wait_for_an_open_transaction(self, session: Session, apart: Session) -> None:
        session.begin()
        with committed(apart):
            apart.effects.add(CARD, "order:1", 0, "d", b"{}")
        session.rollback()
        assert [each.id for each in apart.effects.of_flow("order:1")] == [CARD]

    def test_it_exists_from_the_first_session_on(self, store: Store, apart: Session) -> None:
        assert store.apart.exists

    def test_the_highest_token_of_a_message_is_kept(self, apart: Session) -> None:
        with committed(apart):
            assert apart.effects.raise_token("m1", "pay", 2)
        with committed(apart):
            assert apart.effects.raise_token("m1", "pay", 2)
            assert not apart.effects.raise_token("m1", "pay", 1)
            assert apart.effects.raise_token("m1", "book", 1)
            assert apart.effects.raise_token("m1", "pay", 3)

    def test_an_effect_is_found_with_its_intents(self, apart: Session) -> None:
        with committed(apart):
            row = apart.effects.add(CARD, "order:1", 0, "d", b"{}")
            other = apart.effects.add(MAIL, "order:1", 0, "d", b"{}")
            first = apart.effects.intend(row, 1, "shop/1", "worker@a", NOW, is_repeat=False)
            second = apart.effects.intend(row, 2, "shop/2", "worker@b", NOW + 1, is_repeat=True)
        found = apart.effects.find(CARD)
        assert found is not None
        assert (found.row, found.id, found.flow_id, found.digest, found.request) == (row, CARD, "order:1", "d", b"{}")
        assert (found.result, found.ending) == (None, None)
        assert found.intents == [
            (first, 1, "shop/1", "worker@a", NOW, False, False, False),
            (second, 2, "shop/2", "worker@b", NOW + 1, True, False, False),
        ]
        assert [each.row for each in apart.effects.of_message("m1", "pay")] == [row, other]
        assert apart.effects.find(CARD._replace(ordinal=1)) is None
        assert apart.effects.of_message("m2", "pay") == []

    def test_the_latest_generation_is_found(self, apart: Session) -> None:
        with committed(apart):
            apart.effects.end(apart.effects.add(CARD, "order:1", 0, "d", b"{}"), "undone")
            apart.effects.add(CARD, "order:1", 1, "e", b"{}")
        found = apart.effects.find(CARD)
        assert found is not None
        assert (found.generation, found.digest, found.ending) == (1, "e", None)
        assert [each.generation for each in apart.effects.of_message("m1", "pay")] == [0, 1]

    def test_a_first_result_stays(self, apart: Session) -> None:
        with committed(apart):
            row = apart.effects.add(CARD, "order:1", 0, "d", b"{}")
            apart.effects.keep(row, b'{"id":"c1"}')
            apart.effects.keep(row, b'{"id":"c2"}')
        found = apart.effects.find(CARD)
        assert found is not None
        assert found.result == b'{"id":"c1"}'

    def test_intents_are_withdrawn_one_by_one_and_up_to_one(self, apart: Session) -> None:
        with committed(apart):
            row = apart.effects.add(CARD, "order:1", 0, "d", b"{}")
            rows = [apart.effects.intend(row, n, "w", "n", NOW, is_repeat=False) for n in range(4)]
            apart.effects.withdraw_one(rows[3])
            apart.effects.withdraw(row, rows[1])
        found = apart.effects.find(CARD)
        assert found is not None
        assert [each.row for each in found.unknown] == [rows[2]]

    def test_the_attempts_up_to_a_token_end(self, apart: Session) -> None:
        with committed(apart):
            row = apart.effects.add(CARD, "order:1", 0, "d", b"{}")
            other = apart.effects.add(CARD._replace(message_id="m2"), "order:1", 0, "d", b"{}")
            for each in (row, other):
                for token in (1, 2, 3):
                    apart.effects.intend(each, token, "w", "n", NOW, is_repeat=False)
            apart.effects.end_intents("m1", "pay", 2)
        ended = [[each.is_over for each in found.intents] for found in apart.effects.of_flow("order:1")]
        assert ended == [[True, True, False], [False, False, False]]

    def test_the_figures_count_what_is_in_doubt(self, apart: Session) -> None:
        assert apart.effects.figures() == NO_EFFECTS
        with committed(apart):
            rows = [apart.effects.add(CARD._replace(ordinal=n), "order:1", 0, "d", b"{}") for n in range(4)]
            unknown, known, doubted, withdrawn = rows
            for each in rows:
                apart.effects.intend(each, 1, "w", "n", NOW + each, is_repeat=each == known)
            apart.effects.keep(known, b"{}")
            apart.effects.end(doubted, "doubted")
            apart.effects.withdraw(withdrawn, 2**62)
        assert apart.effects.figures() == EffectFigures(1, NOW + unknown, 1, 1)

    def test_what_was_rolled_back_is_not_kept(self, apart: Session) -> None:
        with rolled_back(apart):
            apart.effects.add(CARD, "order:1", 0, "d", b"{}")
            apart.effects.raise_token("m1", "pay", 9)
        assert apart.effects.find(CARD) is None
        with committed(apart):
            assert apart.effects.raise_token("m1", "pay", 1)

    def test_long_names_are_kept(self, apart: Session) -> None:
        wanted = EffectId(LONG_ID, LONG_ID, 3, LONG_ID, LONG_ID, 7)
        with committed(apart):
            apart.effects.add(wanted, LONG_ID, 0, "d" * 64, b"\x00\xff")
        found = apart.effects.find(wanted)
        assert found is not None
        assert (found.id, found.request) == (wanted, b"\x00\xff")

    def test_tokens_are_found_in_the_order_in_which_they_came_first_and_removed_unless_raised(
        self, apart: Session
    ) -> None:
        for message_id in ("m2", "m1", LONG_ID):
            with committed(apart):
                apart.effects.raise_token(message_id, "pay", 1)
        with committed(apart):
            apart.effects.raise_token("m2", "pay", 2)
        found = apart.effects.tokens(0, 9)
        assert [each[1:] for each in found] == [("m2", "pay", 2), ("m1", "pay", 1), (LONG_ID, "pay", 1)]
        assert apart.effects.tokens(found[0].row, 1) == found[1:2]
        with committed(apart):
            apart.effects.raise_token("m1", "pay", 2)
        with committed(apart):
            assert apart.effects.remove_tokens(found) == 2
        assert [each[1:] for each in apart.effects.tokens(0, 9)] == [("m1", "pay", 2)]

    def test_the_effects_of_a_flow_are_removed_with_intents_and_tokens(self, apart: Session) -> None:
        with committed(apart):
            for message_id, flow in (("m1", "ended"), ("m2", LONG_ID)):
                apart.effects.raise_token(message_id, "pay", 5)
                row = apart.effects.add(CARD._replace(message_id=message_id), flow, 0, "d", b"{}")
                apart.effects.intend(row, 5, "shop/1", "worker@a", NOW, is_repeat=True)
        rows = apart.effects.flows(0, 9)
        assert [flow for _, flow in rows] == ["ended", LONG_ID]
        assert apart.effects.flows(rows[0][0], 1) == [rows[1]]
        with committed(apart):
            assert apart.effects.remove_flows(["ended", "unknown"], 2**62) == 1
        assert [flow for _, flow in apart.effects.flows(0, 9)] == [LONG_ID]
        assert apart.effects.figures().repeated == 1
        with committed(apart):
            assert apart.effects.raise_token("m1", "pay", 1)
            assert not apart.effects.raise_token("m2", "pay", 4)
