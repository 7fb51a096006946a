"""Contract of ``ports.archives.Archives``: the manifests, and the rows that they take over."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from stagepost.flow.clock import HOUR, SECOND
from stagepost.ports.archives import Manifest, NumberedLine
from stagepost.ports.dead_letters import Selection
from stagepost.ports.session import Session
from stagepost.ports.store import Store
from stagepost.testing.contract.givens import (
    LONG_ID,
    NOW,
    Given,
    a_letter,
    a_row,
    a_waypoint,
    buried,
    committed,
    enqueued,
    recorded,
    rolled_back,
)

LINES = Manifest("archive", "journal", "journal-1", 0, 10, 7, "seal", "epoch:9", NOW)
LETTERS = Manifest("archive", "dead_letters", "dead_letters-1", 3, 8, 2, "seal", "", NOW + 1, True, (4, 7))


def added(session: Session, manifest: Manifest) -> bool:
    with committed(session):
        return session.archives.add(manifest)


class ArchivesContract(Given):
    """The store needs the capabilities ``archives``, ``replays`` and ``retention``."""

    def test_a_store_names_its_archive(self, session: Session, other: Session) -> None:
        assert session.archives.archive() is None
        with rolled_back(session):
            session.archives.set_archive("first")
        assert session.archives.archive() is None
        for name in ("first", "second", None):
            with committed(session):
                session.archives.set_archive(name)
            assert other.archives.archive() == name

    def test_manifests_come_back_in_the_order_in_which_they_were_written(self, session: Session) -> None:
        assert (session.archives.manifests(), session.archives.last(), session.archives.newest()) == ([], None, None)
        later = LINES._replace(folder="journal-2", first=10, next=12)
        written = [LINES, LETTERS, later, LETTERS._replace(folder="dead_letters-2")]
        for each in written:
            assert added(session, each)
        with rolled_back(session):
            session.archives.add(LETTERS)
        found = session.archives.manifests()
        assert [each._replace(id=0) for each in found] == written
        assert [each.id for each in found] == sorted({each.id for each in found})
        assert (session.archives.last(), session.archives.newest()) == (found[2], found[3])
        assert [session.archives.manifests(each.id) for each in found] == [found[1:], found[2:], found[3:], []]

    def test_manifests_have_their_ids_in_the_order_of_their_commits(self, session: Session, store: Store) -> None:
        """A reader goes on behind the last id that it saw, so no lower one may appear later."""

        def add() -> None:
            with closing(store.session()) as other:
                added(other, LETTERS._replace(folder="dead_letters-2"))

        session.begin()
        assert session.archives.add(LETTERS)
        adding = threading.Thread(target=add)
        adding.start()
        # It still waits, or has not begun to: either is well, and a commit is not.
        adding.join(0.3)
        is_waiting = adding.is_alive()
        session.commit()
        adding.join()
        assert is_waiting
        assert [each.folder for each in session.archives.manifests()] == ["dead_letters-1", "dead_letters-2"]

    def test_of_two_manifests_of_the_journal_that_begin_at_one_line_one_is_added(
        self, session: Session, other: Session
    ) -> None:
        assert added(session, LINES)
        assert not added(other, LINES._replace(folder="journal-2", next=20))
        assert [each.folder for each in other.archives.manifests()] == ["journal-1"]
        # Letters are no range.
        assert added(session, LETTERS)
        assert added(other, LETTERS._replace(folder="dead_letters-2"))

    @pytest.mark.parametrize("asked", ["flow", "by message"])
    def test_the_history_of_a_flow_has_the_ids_of_its_lines(self, session: Session, asked: str) -> None:
        lines = [a_waypoint("m1", LONG_ID), a_waypoint(LONG_ID, LONG_ID), a_waypoint("m1", LONG_ID, name="committed")]
        recorded(session, lines[0], a_waypoint("m2", "another"), *lines[1:])
        found = session.archives.history(LONG_ID if asked == "flow" else "m1")
        ids = [each.line for each in session.retention.old_lines(0, 2**62, 10) if each.flow_id == LONG_ID]
        assert found == [NumberedLine(line, waypoint) for line, waypoint in zip(ids, lines, strict=True)]
        assert session.archives.history("nobody") == []

    def test_old_letters_are_found_in_pages_and_removed_once(self, session: Session, other: Session) -> None:
        letters = [a_letter(f"m{number}", envelope=b"\x00\xff") for number in range(4)]
        buried(session, *letters)
        kept = list(session.dead_letters.select(Selection("all")))
        kept.sort(key=lambda each: each.id)
        first, second, third, fourth = (each.id for each in kept)
        assert session.archives.old_letters(third, 0, 2) == kept[:2]
        assert session.archives.old_letters(third, second, 2) == kept[2:3]
        with rolled_back(session):
            assert session.archives.remove_letters([first, third]) == [first, third]
        with committed(session):
            assert session.archives.remove_letters([third, first]) == [first, third]
        with committed(other):
            assert other.archives.remove_letters([first, second]) == [second]
        assert [each.id for each in session.dead_letters.select(Selection("all"))] == [fourth]

    def test_letters_of_an_unfinished_replay_stay(self, session: Session) -> None:
        buried(session, a_letter("m1"), a_letter("m2"))
        with committed(session):
            session.replays.freeze([Selection("message", "m1")], who="ada", at=NOW, rate=None)
        (free,) = session.archives.old_letters(2**62, 0, 10)
        assert free.letter.message_id == "m2"
        every = [each.id for each in session.dead_letters.select(Selection("all"))]
        with committed(session):
            assert session.archives.remove_letters(every) == [free.id]

    @pytest.mark.parametrize("place", ["ready", "claimed", "delayed", "suspect", "dead"])
    def test_a_message_lives_while_the_queue_or_the_dead_letters_have_it(self, session: Session, place: str) -> None:
        def lives() -> bool:
            return session.archives.is_living("m1", "flow", "pay", NOW)

        if place == "dead":
            buried(session, a_letter("another"), a_letter("m1"))
        else:
            due_at = NOW + SECOND if place in ("delayed", "suspect") else None
            deaths = 2 if place == "suspect" else 0
            enqueued(session, a_row("another"))
            assert not lives()
            enqueued(session, a_row("m1", deaths=deaths, due_at=due_at))
        if place == "claimed":
            with committed(session):
                session.queue.claim(["pay"], 10, "worker-1", NOW)
        assert lives()
        assert not session.archives.is_living("m2", "flow", "pay", NOW)

    def test_the_hour_in_which_effects_were_held_is_kept(self, session: Session) -> None:
        assert session.archives.effects_held() is None
        for hours in (1, 2):
            with committed(session):
                session.retention.count_hour(NOW + hours * HOUR)
            with committed(session):
                session.archives.hold_effects()
            assert session.archives.effects_held() == hours
