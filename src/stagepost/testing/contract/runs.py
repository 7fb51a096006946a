"""Contract of ``ports.runs.Runs``: the books of bulk runs."""

from __future__ import annotations

from stagepost.ports.runs import Quarantined, RunCounts
from stagepost.ports.session import Session
from stagepost.testing.contract.givens import LONG_ID, NOW, Given, committed, rolled_back

ROWS = [
    Quarantined("a.csv", 2, "no amount", "order:2", '{"n": "zwölf"}'),
    Quarantined("a.csv", 10, "no flow id", None, "{}"),
    Quarantined("b.csv", 1, "conflict", LONG_ID, "{}"),
]


class RunsContract(Given):
    def test_a_run_counts_what_its_chunks_brought(self, session: Session) -> None:
        with committed(session):
            session.runs.begin("run", "pay", "a.csv", NOW)
            session.runs.add_chunk("run", 0, 0, RunCounts(None, 3, 2, 1))
            session.runs.add_chunk("run", 0, 1, RunCounts(None, 10, 0, 0))
            session.runs.add_chunk("run", 1, 0, RunCounts(None, 1, 1, 0))
            session.runs.add_chunk("another", 0, 0, RunCounts(None, 99, 99, 99))
        assert session.runs.counts("run") == RunCounts(None, 14, 3, 1)
        assert not session.runs.counts("run").is_balanced

    def test_a_run_has_ended_when_it_is_known_how_many_rows_came_in(self, session: Session) -> None:
        with committed(session):
            session.runs.begin("run", "pay", "a.csv", NOW)
            session.runs.add_chunk("run", 0, 0, RunCounts(None, 3, 2, 1))
            session.runs.end("run", 6, NOW + 1)
        assert session.runs.counts("run") == RunCounts(6, 3, 2, 1)
        assert session.runs.counts("run").is_balanced

    def test_an_unknown_run_has_brought_nothing(self, session: Session) -> None:
        assert session.runs.counts("nobody's") == RunCounts(None, 0, 0, 0)
        assert session.runs.quarantined("nobody's", 10) == []

    def test_a_chunk_is_known_by_its_run_its_task_and_its_number(self, session: Session) -> None:
        with committed(session):
            session.runs.add_chunk("run", 1, 2, RunCounts(None, 0, 0, 0))
        places = [("run", 1, 2), ("run", 2, 1), ("run", 1, 1), ("another", 1, 2)]
        assert [session.runs.has_chunk(*each) for each in places] == [True, False, False, False]

    def test_a_chunk_that_was_rolled_back_counts_nothing(self, session: Session) -> None:
        with rolled_back(session):
            session.runs.begin("run", "pay", "a.csv", NOW)
            session.runs.add_chunk("run", 0, 0, RunCounts(None, 3, 2, 1))
            session.runs.quarantine("run", ROWS)
            session.runs.end("run", 6, NOW)
        assert session.runs.counts("run") == RunCounts(None, 0, 0, 0)
        assert not session.runs.has_chunk("run", 0, 0)
        assert session.runs.quarantined("run", 10) == []

    def test_quarantined_rows_come_back_by_file_and_record(self, session: Session) -> None:
        with committed(session):
            session.runs.quarantine("run", [ROWS[2], ROWS[1], ROWS[0]])
            session.runs.quarantine("another", ROWS[:1])
        assert session.runs.quarantined("run", 10) == ROWS
