"""Contract of ``ports.replays.Replays``: replays, and the remaining letters of their frozen sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from stagepost.ports.dead_letters import KeptLetter, LetterGroup, Selection
from stagepost.ports.replays import Chunk, Period, Replay, Selections
from stagepost.ports.session import Session
from stagepost.testing.contract.givens import LONG_ID, NOW, Given, a_letter, buried, committed, rolled_back

ALL = [Selection("all")]


def freeze(session: Session, wanted: Selections = ALL, *, rate: float | None = None) -> Replay:
    with committed(session):
        return session.replays.freeze(wanted, who="olga", at=NOW, rate=rate)


def take(session: Session, replay: Replay, after: int = 0, limit: int = 1_000) -> Chunk:
    with committed(session):
        return session.replays.take(replay.id, after, limit)


def messages(letters: Sequence[KeptLetter]) -> list[str]:
    return [kept.letter.message_id for kept in letters]


def numbered(session: Session, count: int) -> list[KeptLetter]:
    buried(session, *[a_letter(f"m{n:04}", envelope=b"") for n in range(count)])
    return list(session.dead_letters.select(Selection("all")))


class ReplaysContract(Given):
    @pytest.mark.parametrize(
        ("wanted", "expected"),
        [
            (ALL, ["m1", "m2", "m3", "m4"]),
            ([Selection("message", "m2")], ["m2"]),
            ([Selection("flow", "f1")], ["m1", "m3"]),
            ([Selection("group", "bbbbbbbbbbbb")], ["m2", "m3"]),
            ([Selection("flow", "nobody's")], []),
            ([Selection("flow", "f1"), Selection("group", "bbbbbbbbbbbb")], ["m1", "m2", "m3"]),
            ([Period()], ["m1", "m2", "m3", "m4"]),
            ([Period(since=NOW + 2)], ["m2", "m3", "m4"]),
            ([Period(until=NOW + 3)], ["m1", "m2"]),
            ([Period(NOW + 2, NOW + 4)], ["m2", "m3"]),
            ([Period(NOW + 3, NOW + 3)], []),
        ],
        ids=str,
    )
    def test_what_is_frozen_is_what_was_asked_for_each_once(
        self, session: Session, wanted: Selections, expected: list[str]
    ) -> None:
        buried(
            session,
            a_letter("m1", flow_id="f1", fingerprint="aaaaaaaaaaaa", dead_at=NOW + 1),
            a_letter("m2", flow_id="f2", fingerprint="bbbbbbbbbbbb", dead_at=NOW + 2),
            a_letter("m3", flow_id="f1", fingerprint="bbbbbbbbbbbb", dead_at=NOW + 3),
            a_letter("m4", flow_id="f3", fingerprint="cccccccccccc", dead_at=NOW + 4),
        )
        replay = freeze(session, wanted)
        assert replay.letters == len(expected)
        assert messages(take(session, replay).letters) == expected

    def test_letters_are_frozen_by_the_ids_they_are_kept_under(self, session: Session) -> None:
        kept = numbered(session, 4)
        replay = freeze(
            session, [Selection("id", kept[3].id), Selection("id", kept[1].id), Selection("id", kept[3].id)]
        )
        assert replay.letters == 2
        assert take(session, replay) == Chunk([kept[1].id, kept[3].id], [kept[1], kept[3]])

    def test_a_replay_is_kept_as_it_was_asked_for(self, session: Session) -> None:
        numbered(session, 2)
        first = freeze(session, rate=2.5)
        second = freeze(session, [Selection("flow", LONG_ID), Period(since=NOW)])
        assert first == Replay(first.id, "olga", NOW, "all", 2.5, 2)
        assert second == Replay(
            second.id, "olga", NOW, f"flow {LONG_ID}, dead since 2023-11-14T22:13:20Z", None, 2, replayed=0, gone=0
        )
        assert first.id < second.id
        assert session.replays.listed() == [first, second]
        assert session.replays.find(second.id) == second

    def test_what_dies_later_is_not_in_the_set(self, session: Session) -> None:
        numbered(session, 1)
        replay = freeze(session)
        buried(session, a_letter("later"))
        assert messages(take(session, replay).letters) == ["m0000"]
        assert take(session, replay) == Chunk([], [])
        assert messages(list(session.dead_letters.select(Selection("all")))) == ["later"]

    def test_a_set_is_taken_off_in_chunks_in_order_and_the_letters_go_with_it(self, session: Session) -> None:
        kept = numbered(session, 1_050)
        replay = freeze(session)
        with committed(session):
            first = session.replays.take(replay.id, 0, 50)
            second = session.replays.take(replay.id, first.ids[-1], 1_000)
        assert [*first.letters, *second.letters] == kept
        assert list(session.dead_letters.select(Selection("all"))) == []

    def test_only_what_is_beyond_a_letter_is_taken(self, session: Session) -> None:
        kept = numbered(session, 4)
        replay = freeze(session)
        assert take(session, replay, kept[1].id).letters == kept[2:]
        assert take(session, replay).letters == kept[:2]

    def test_a_letter_that_is_no_longer_there_is_gone(self, session: Session) -> None:
        kept = numbered(session, 3)
        replay = freeze(session)
        with committed(session):
            session.dead_letters.remove(kept[1].id)
        chunk = take(session, replay)
        assert (chunk.ids, chunk.letters, chunk.gone) == ([each.id for each in kept], [kept[0], kept[2]], 1)

    def test_a_letter_of_two_sets_is_gone_for_the_second(self, session: Session) -> None:
        numbered(session, 2)
        first, second = freeze(session), freeze(session)
        assert take(session, first).gone == 0
        assert take(session, second).gone == 2

    def test_a_chunk_that_is_rolled_back_is_in_the_set_again_and_its_letters_are_there(self, session: Session) -> None:
        kept = numbered(session, 3)
        replay = freeze(session)
        with rolled_back(session):
            session.replays.take(replay.id, 0, 2)
            session.replays.advance(replay.id, 2, 0)
        assert list(session.dead_letters.select(Selection("all"))) == kept
        assert session.replays.find(replay.id) == replay
        assert take(session, replay).letters == kept

    def test_a_replay_that_is_rolled_back_was_never_asked_for(self, session: Session) -> None:
        numbered(session, 2)
        with rolled_back(session):
            replay = session.replays.freeze(ALL, who="olga", at=NOW, rate=None)
        assert session.replays.find(replay.id) is None
        assert session.replays.listed() == []
        assert take(session, replay).ids == []

    def test_what_became_of_its_letters_is_counted(self, session: Session) -> None:
        numbered(session, 9)
        replay, other = freeze(session), freeze(session)
        with committed(session):
            session.replays.advance(replay.id, 3, 1)
        with committed(session):
            session.replays.advance(replay.id, 2, 0)
        found = session.replays.find(replay.id)
        assert found == replace(replay, replayed=5, gone=1)
        assert found.left == 3
        assert session.replays.find(other.id) == other

    def test_what_is_left_is_told_by_group(self, session: Session) -> None:
        places = ["aaaaaaaaaaaa", "bbbbbbbbbbbb", "aaaaaaaaaaaa"]
        buried(session, *[a_letter(f"m{n}", fingerprint=place, dead_at=NOW + n) for n, place in enumerate(places)])
        kept = list(session.dead_letters.select(Selection("all")))
        replay, other = freeze(session), freeze(session, [Selection("message", "m1")])
        take(session, replay, limit=1)
        assert session.replays.groups(replay.id) == [
            LetterGroup("aaaaaaaaaaaa", "pay", "exhausted", 1, NOW + 2, NOW + 2, kept[2].id),
            LetterGroup("bbbbbbbbbbbb", "pay", "exhausted", 1, NOW + 1, NOW + 1, kept[1].id),
        ]
        assert [each.fingerprint for each in session.replays.groups(other.id)] == ["bbbbbbbbbbbb"]

    def test_a_replay_that_nobody_asked_for_is_none(self, session: Session) -> None:
        numbered(session, 1)
        assert session.replays.find(2**40) is None
        assert session.replays.groups(2**40) == []
