"""Contract of ``ports.cursors.Cursors``: how far the journal's named readers have read."""

from __future__ import annotations

from stagepost.ports.cursors import EXPIRY, Cursor
from stagepost.ports.journal import Position
from stagepost.ports.session import Session
from stagepost.testing.contract.givens import LONG_ID, NOW, Given, committed, rolled_back


def at(number: int, epoch: str = "e1") -> Position:
    return Position(number, epoch)


class CursorsContract(Given):
    """The store needs the capabilities ``export`` and ``cursors``."""

    def test_a_reader_without_a_cursor_has_none(self, session: Session) -> None:
        assert session.cursors.find("unknown") is None

    def test_a_reader_keeps_its_first_position_however_often_it_begins(self, session: Session) -> None:
        for number, now in ((5, NOW), (9, NOW + 1)):
            with committed(session):
                session.cursors.add(LONG_ID, at(number), now)
        found = session.cursors.find(LONG_ID)
        assert found == Cursor(at(5), at(5), NOW)
        assert found.position.epoch == found.first.epoch == "e1"

    def test_a_cursor_moves_forward_and_never_back(self, session: Session) -> None:
        with committed(session):
            session.cursors.add("one", at(5), NOW)
            session.cursors.add("two", at(5), NOW)
        for number, seen in ((9, 9), (7, 9), (9, 9), (4, 9), (10, 10)):
            with committed(session):
                session.cursors.advance("one", at(number), NOW + number)
            found = session.cursors.find("one")
            assert found is not None
            assert (found.first, found.position) == (5, seen)
        assert session.cursors.find("two") == Cursor(at(5), at(5), NOW)

    def test_a_position_of_another_epoch_moves_no_cursor(self, session: Session) -> None:
        with committed(session):
            session.cursors.add("one", at(5), NOW)
            session.cursors.advance("one", at(99, "e2"), NOW + 1)
        assert session.cursors.find("one") == Cursor(at(5), at(5), NOW)

    def test_a_cursor_expires_when_its_reader_is_not_there_for_long(self, session: Session) -> None:
        with committed(session):
            session.cursors.add("one", at(5), NOW)
            session.cursors.use("one", NOW + 10)
            session.cursors.use("one", NOW + 3)
        found = session.cursors.find("one")
        assert found == Cursor(at(5), at(5), NOW + 10)
        assert not found.has_expired(NOW + 10 + EXPIRY)
        assert found.has_expired(NOW + 11 + EXPIRY)

    def test_a_cursor_that_was_rolled_back_is_none(self, session: Session) -> None:
        with rolled_back(session):
            session.cursors.add("one", at(5), NOW)
        assert session.cursors.find("one") is None
