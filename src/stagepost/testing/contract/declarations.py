"""Contract of ``ports.declarations.Declarations``: the stages that apps declare, and messages at undeclared ones."""

from __future__ import annotations

from stagepost.ports.declarations import Declaration, Undeclared
from stagepost.ports.session import Session
from stagepost.testing.contract.givens import LONG_STAGE, NOW, Given, a_row, committed, rolled_back

PAY = Declaration("pay", "pay", "shop")
SETTLE = Declaration("pay.settle", "pay", "shop")
LONG = Declaration(LONG_STAGE, LONG_STAGE, "shop", dropped_at=NOW)


def put(session: Session, *declarations: Declaration) -> None:
    with committed(session):
        session.declarations.lock()
        session.declarations.put(declarations)


class DeclarationsContract(Given):
    def test_declarations_come_back_as_they_were_put(self, session: Session, other: Session) -> None:
        assert session.declarations.listed() == []
        put(session, LONG, SETTLE, PAY)
        assert set(other.declarations.listed()) == {PAY, SETTLE, LONG}

    def test_a_later_declaration_of_a_stage_takes_the_place_of_the_one_before(self, session: Session) -> None:
        put(session, PAY, LONG)
        later = PAY._replace(endpoint="pay.all", app="store", dropped_at=NOW)
        put(session, later, LONG._replace(dropped_at=None))
        assert set(session.declarations.listed()) == {later, LONG._replace(dropped_at=None)}

    def test_a_sender_finds_what_is_declared_and_not_dropped(self, session: Session) -> None:
        put(session, PAY, SETTLE, LONG)
        with committed(session):
            assert session.declarations.declared(["pay", "pay.settle", LONG_STAGE, "ship"]) == {"pay", "pay.settle"}
        assert session.declarations.declared([]) == set()

    def test_declarations_that_were_rolled_back_are_gone(self, session: Session) -> None:
        with rolled_back(session):
            session.declarations.put([PAY])
        assert session.declarations.listed() == []

    def test_what_waits_in_any_way_where_no_app_declares_the_stage_is_found(self, session: Session) -> None:
        assert session.declarations.undeclared() == []
        with committed(session):
            for stage in ("pay", "ship", "mail", LONG_STAGE):
                for n in range(3):
                    session.queue.enqueue([a_row(f"{stage}{n}", stage)])
            session.queue.enqueue([a_row("delayed", "later", due_at=NOW + 9), a_row("settle", "pay.settle")])
            session.queue.enqueue([a_row("suspect", "deadly", deaths=1, due_at=NOW)])
            session.queue.enqueue([a_row("claimed", "claimed")])
            session.queue.claim(["claimed"], 1, "w1", 0)
        put(session, PAY, LONG, SETTLE._replace(app="bank"), Declaration("nothing waits", "nothing waits", "shop", NOW))
        assert session.declarations.undeclared() == sorted(
            [
                Undeclared("ship", None, None),
                Undeclared("mail", None, None),
                Undeclared("later", None, None),
                Undeclared("deadly", None, None),
                Undeclared(LONG_STAGE, "shop", NOW),
            ]
        )
