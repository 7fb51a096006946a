"""Contract of ``ports.runs.Runs``: the books of bulk runs."""

from __future__ import annotations

from stagepost.ports.runs import Quarantined, Run, RunCounts, TaskAttempt
from stagepost.ports.session import Session
from stagepost.testing.contract.givens import LONG_ID, NOW, Given, committed, rolled_back

ROWS = [
    Quarantined("a.csv", 2, "no amount", "order:2", '{"n": "zwölf"}'),
    Quarantined("a.csv", 10, "no flow id", None, "{}"),
    Quarantined("b.csv", 1, "conflict", LONG_ID, "{}"),
]


def counts(started: int, repeated: int = 0, quarantined: int = 0) -> RunCounts:
    return RunCounts(None, started, repeated, quarantined)


class RunsContract(Given):
    def test_a_run_counts_what_its_tasks_brought(self, session: Session) -> None:
        with committed(session):
            assert session.runs.begin("run", "pay", "a.csv", NOW) == 1
            session.runs.count(TaskAttempt("run", 1, 0, 5), counts(3, 2, 1))
            session.runs.count(TaskAttempt("run", 1, 1, 6), counts(11, 1))
            session.runs.begin("another", "pay", "a.csv", NOW)
            session.runs.count(TaskAttempt("another", 1, 0, 7), counts(99, 99, 99))
        assert session.runs.counts("run") == RunCounts(None, 14, 3, 1)
        assert not session.runs.counts("run").is_balanced

    def test_a_run_has_ended_when_it_is_known_how_many_rows_came_in(self, session: Session) -> None:
        with committed(session):
            start = session.runs.begin("run", "pay", "a.csv", NOW)
            session.runs.count(TaskAttempt("run", start, 0, 1), counts(3, 2, 1))
            session.runs.end("run", start, 6, NOW + 1)
        assert session.runs.counts("run") == RunCounts(6, 3, 2, 1)
        assert session.runs.counts("run").is_balanced

    def test_an_unknown_run_has_brought_nothing(self, session: Session) -> None:
        assert session.runs.counts("nobody's") == counts(0)
        assert session.runs.quarantined("nobody's", 10) == []

    def test_a_later_attempt_replaces_the_counts_of_its_task_and_an_earlier_one_does_not(
        self, session: Session
    ) -> None:
        with committed(session):
            start = session.runs.begin("run", "pay", "a.csv", NOW)
            session.runs.count(TaskAttempt("run", start, 0, 1), counts(3))
            session.runs.count(TaskAttempt("run", start, 1, 2), counts(10))
            session.runs.count(TaskAttempt("run", start, 0, 3), counts(1))
            session.runs.count(TaskAttempt("run", start, 0, 3), counts(4, 1))
            session.runs.count(TaskAttempt("run", start, 0, 1), counts(3, 3, 3))
        assert session.runs.counts("run") == counts(14, 1)

    def test_only_the_start_that_ended_last_is_summed(self, session: Session) -> None:
        with committed(session):
            for start, started in ((1, 3), (2, 5)):
                assert session.runs.begin("run", "pay", "a.csv", NOW) == start
                session.runs.count(TaskAttempt("run", start, 0, 1), counts(started))
                assert session.runs.counts("run") == counts(started)
            session.runs.end("run", 2, 5, NOW)
            assert session.runs.begin("run", "pay", "a.csv", NOW) == 3
            session.runs.count(TaskAttempt("run", 3, 0, 1), counts(1))
            # A task of a driver that is gone may still write.
            session.runs.count(TaskAttempt("run", 1, 7, 1), counts(1))
        assert session.runs.counts("run") == RunCounts(5, 5, 0, 0)

    def test_a_start_that_was_thought_dead_changes_nothing_when_it_ends_after_a_later_one(
        self, session: Session
    ) -> None:
        with committed(session):
            for start in (1, 2):
                assert session.runs.begin("run", "pay", "a.csv", NOW) == start
                session.runs.count(TaskAttempt("run", start, 0, 1), counts(5))
            session.runs.end("run", 2, 5, NOW)
            session.runs.end("run", 1, 5, NOW + 1)
        assert session.runs.counts("run") == RunCounts(5, 5, 0, 0)

    def test_counts_that_were_rolled_back_count_nothing(self, session: Session) -> None:
        with rolled_back(session):
            start = session.runs.begin("run", "pay", "a.csv", NOW)
            session.runs.count(TaskAttempt("run", start, 0, 1), counts(3, 2, 1))
            session.runs.quarantine("run", ROWS)
            session.runs.end("run", start, 6, NOW)
        assert session.runs.counts("run") == counts(0)
        assert session.runs.quarantined("run", 10) == []
        with committed(session):
            assert session.runs.begin("run", "pay", "a.csv", NOW) == 1

    def test_a_row_is_quarantined_once_by_its_run(self, session: Session) -> None:
        with committed(session):
            session.runs.quarantine("run", ROWS[:2])
        with committed(session):
            session.runs.quarantine("run", [ROWS[1]._replace(reason="later"), ROWS[2]])
        assert session.runs.quarantined("run", 10) == ROWS

    def test_quarantined_rows_are_read_on_from_a_row(self, session: Session) -> None:
        with committed(session):
            session.runs.quarantine("run", ROWS)
        assert session.runs.quarantined("run", 1, ("a.csv", 2)) == [ROWS[1]]
        assert session.runs.quarantined("run", 10, ("a.csv", 10)) == [ROWS[2]]
        assert session.runs.quarantined("run", 10, ("b.csv", 1)) == []

    def test_runs_with_quarantined_rows_are_listed_newest_first(self, session: Session) -> None:
        with committed(session):
            for number, name in enumerate(("first", "clean", "second", "third")):
                start = session.runs.begin(name, "pay", f"{name}.csv", NOW + number)
                session.runs.count(TaskAttempt(name, start, 0, 1), counts(0, 0, 1))
                if name != "clean":
                    session.runs.quarantine(name, ROWS[:1])
        found = session.runs.with_quarantine(2)
        assert found == [
            Run("third", "pay", "third.csv", NOW + 3, counts(0, 0, 1)),
            Run("second", "pay", "second.csv", NOW + 2, counts(0, 0, 1)),
        ]

    def test_quarantined_rows_come_back_by_file_and_record(self, session: Session) -> None:
        with committed(session):
            session.runs.quarantine("run", [ROWS[2], ROWS[1], ROWS[0]])
            session.runs.quarantine("another", ROWS[:1])
        assert session.runs.quarantined("run", 10) == ROWS
