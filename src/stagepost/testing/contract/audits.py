"""Contract of ``ports.audits.Audits``: each finding is kept once, and one state is named."""

from __future__ import annotations

from stagepost.ports.audits import AuditFinding, KeptFinding, NamedState
from stagepost.ports.session import Session
from stagepost.testing.contract.givens import LONG_ID, NOW, Given, committed, rolled_back

LOST = AuditFinding("lost", "pay", "m1", "order:1")
DOUBLED = AuditFinding("doubled", "pay", "m1", "order:1", "two commits of one message")
LONG = AuditFinding("stuck", LONG_ID, LONG_ID, LONG_ID, "zwölf")


class AuditsContract(Given):
    def test_findings_come_back_with_the_latest_first(self, session: Session) -> None:
        with committed(session):
            session.audits.note([LOST, LONG], NOW)
            session.audits.note([DOUBLED], NOW + 1)
        kept = [KeptFinding(DOUBLED, NOW + 1, NOW + 1), KeptFinding(LOST, NOW, NOW), KeptFinding(LONG, NOW, NOW)]
        assert session.audits.findings(10) == kept
        assert session.audits.findings(1) == kept[:1]

    def test_a_finding_that_is_found_again_is_one_finding(self, session: Session) -> None:
        with committed(session):
            session.audits.note([LOST], NOW)
        with committed(session):
            session.audits.note([LOST, LOST], NOW + 5)
        assert session.audits.findings(10) == [KeptFinding(LOST, NOW, NOW + 5)]

    def test_a_finding_that_was_rolled_back_is_not_kept(self, session: Session) -> None:
        with rolled_back(session):
            session.audits.note([LOST], NOW)
        assert session.audits.findings(10) == []

    def test_a_series_continues_from_the_state_that_was_named_last(self, session: Session) -> None:
        first, second = NamedState("/states/1", "e:10"), NamedState("/states/2", "e:20")
        assert session.audits.state("nightly") is None
        with committed(session):
            assert session.audits.name_state("nightly", None, first, NOW)
        assert session.audits.state("nightly") == first
        with committed(session):
            assert session.audits.name_state("nightly", first, second, NOW)
            assert session.audits.name_state("hourly", None, first, NOW)
        assert (session.audits.state("nightly"), session.audits.state("hourly")) == (second, first)

    def test_a_state_that_begins_elsewhere_than_the_named_one_ended_is_not_named(self, session: Session) -> None:
        first, second, third = (NamedState(f"/states/{each}", f"e:{each}") for each in (1, 2, 3))
        with committed(session):
            assert not session.audits.name_state("nightly", first, second, NOW)
            assert session.audits.name_state("nightly", None, first, NOW)
            assert not session.audits.name_state("nightly", None, second, NOW)
            assert session.audits.name_state("nightly", first, second, NOW)
            assert not session.audits.name_state("nightly", first, third, NOW)
            assert not session.audits.name_state("nightly", second._replace(position="e:9"), third, NOW)
        assert session.audits.state("nightly") == second

    def test_a_state_that_was_rolled_back_is_not_named(self, session: Session) -> None:
        with rolled_back(session):
            session.audits.name_state("nightly", None, NamedState("/states/1", "e:10"), NOW)
        assert session.audits.state("nightly") is None
