"""An audit that continues from a state finds the same as a full one, and a state counts when the store names it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from stagepost.app.app import engine_of
from stagepost.cli.audit import AuditCommand
from stagepost.cli.audit_series import LEFT_BEHIND_SECONDS, AuditConflict, AuditSeries
from stagepost.flow.clock import SECOND, to_microseconds
from stagepost.flow.errors import DeclarationError
from stagepost.pipeline.jobs import audit as audit_job
from stagepost.pipeline.jobs.audit import AuditTerms, audit
from stagepost.pipeline.jobs.audit_state import (
    AuditState,
    AuditStateUnusable,
    check_written,
)
from stagepost.pipeline.report.audit_report import AuditReport
from stagepost.ports.audits import AuditFinding
from stagepost.ports.journal import Position, Waypoint, WaypointName
from stagepost.ports.session import Session
from stagepost.testing import ManualClock
from stagepost.testing.contract.givens import a_letter, committed
from tests.pipeline.books import SqliteBooks, orders
from tests.pipeline.commands import Cli
from tests.pipeline.journal import BEGIN

YEAR = 366 * 86_400
BEGAN = to_microseconds(BEGIN)
NOW = BEGAN + 86_400 * SECOND
# What can befall a message: most end well, some are lost, doubled, dead, edited, or late copies.
FATES: list[list[Any]] = [
    *[["received", "committed"]] * 12,
    ["received", "failed", "delayed", "received", "committed"],
    ["received", "committed", "committed"],
    ["received", "committed", "duplicate"],
    ["received"],
    [],
    ["received", "failed", "dead"],
    ["received", "expired"],
    ["received", "dead", "edited"],
]


def flow(number: int, chance: Random) -> list[Waypoint]:
    """The history of a flow of one to four messages, of which one may have been sent twice."""
    origin = BEGAN + number * 7 * SECOND
    lines: list[Waypoint] = []
    cause = None
    for step in range(chance.randrange(1, 5)):
        fate = chance.choice(FATES)
        names = ["accepted" if cause is None else "sent", *fate]
        for twin in range(2 if cause is not None and chance.random() < 0.05 else 1):
            message = f"m{number}-{step}-{twin}"
            for name in names:
                made: dict[str, Any] = (
                    {"cause_id": cause, "kind": "next", "ordinal": 0} if name in ("accepted", "sent") else {}
                )
                at = origin + len(lines) * 1_000 + chance.randrange(900)
                key = (f"worker@here:{chance.randrange(3)}", f"s{step}", message, f"f{number}")
                ms = chance.random() if name == "committed" else None
                # A line of sending has an attempt only where no row proves the message.
                attempt = 0 if name in ("accepted", "sent") else 1
                lines.append(Waypoint(name, at, *key, attempt, origin, bytes=100, ms=ms, **made))
        if "committed" not in fate:
            break
        cause = message
    return lines


def history(flows: int, chance: Random) -> list[list[Waypoint]]:
    return [flow(number, chance) for number in range(flows)]


class Auditor:
    """Writes a journal in parts, and audits it after each."""

    def __init__(self, spark: SparkSession, session: Session, url: str, folder: Path, terms: AuditTerms) -> None:
        self._spark, self._session, self._url, self._folder, self._terms = spark, session, url, folder, terms
        self._states = 0
        self.state: AuditState | None = None

    def write(self, lines: Sequence[Waypoint]) -> None:
        self._session.begin()
        self._session.journal.record(lines)
        self._session.commit()

    def full(self) -> AuditReport:
        return self._audit()

    def go_on(self, until: Position | None = None, at: int = NOW) -> AuditReport:
        self._states += 1
        folder = self._folder / str(self._states)
        report = self._audit(until, at, former=self.state, save_to=folder)
        self.state = AuditState.read(folder, self._terms.window_seconds)
        return report

    def kept(self) -> list[str]:
        """The flows whose messages the state has."""
        assert self.state is not None
        rows = self.state.messages(self._spark).select("flow_id").distinct().collect()
        return sorted(row.flow_id for row in rows)

    def position(self) -> Position:
        return self._session.journal.position()

    def _audit(self, until: Position | None = None, at: int = NOW, **options: Any) -> AuditReport:
        until = until or self.position()
        return audit(self._spark, self._url, until=until, at=at, terms=self._terms, **options)


@pytest.fixture
def auditor(spark: SparkSession, books: SqliteBooks, tmp_path: Path) -> Callable[[int], Auditor]:
    def make(keep_seconds: int) -> Auditor:
        session = engine_of(books.app).access().session
        return Auditor(spark, session, books.url, tmp_path, AuditTerms(keep_seconds=keep_seconds))

    return make


def told(report: AuditReport) -> dict[str, Any]:
    """All that both kinds of audit tell, without an order in what is listed."""
    found = report.as_dict()
    for name in ("continued_from", "reopened", "has_gap"):
        del found[name]
    for name in ("lost", "doubled", "stuck"):
        found[name] = sorted(found[name], key=str)
    return found


@pytest.mark.more
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_an_audit_that_continues_tells_the_same_as_a_full_one(auditor: Callable[[int], Auditor], seed: int) -> None:
    """However the lines are divided among the audits, within the retention."""
    chance = Random(seed)
    lines = [each for part in history(40, chance) for each in part]
    chance.shuffle(lines)
    cuts = sorted(chance.sample(range(1, len(lines)), 1 if seed == 1 else 3))
    going = auditor(10 * YEAR)
    for begin, end in zip([0, *cuts], [*cuts, len(lines)], strict=True):
        going.write(lines[begin:end])
        report = going.go_on()
    full = going.full()
    assert report.continued_from is not None
    assert full.lost_count > 0
    assert full.doubled_count > 0
    assert told(report) == told(full)


@pytest.mark.more
def test_settled_flows_are_forgotten_and_still_counted(auditor: Callable[[int], Auditor]) -> None:
    chance = Random(5)
    parts = history(60, chance)
    going = auditor(0)
    for begin in (0, 20, 40):
        going.write([each for part in parts[begin : begin + 20] for each in part])
        report = going.go_on()
    full = going.full()
    assert told(report) == told(full)
    assert going.state is not None
    # Flows that ended well are gone from the state, and those with a finding stay.
    assert 0 < going.state.summary.messages < sum(row["sent"] for row in full.stages) / 2


@pytest.mark.more
def test_a_dead_flow_is_forgotten_when_its_letter_has_left_the_store(
    auditor: Callable[[int], Auditor], session: Session
) -> None:
    def lines(name: str, *waypoints: WaypointName) -> list[Waypoint]:
        return [Waypoint(each, BEGAN, "n", "pay", f"{name}-m", name, 1, BEGAN) for each in waypoints]

    going = auditor(0)
    names = ["aged", "lives", "replayed"]
    for name in names:
        going.write(lines(name, "accepted", "received", "dead"))
    with committed(session):
        for name in ("aged", "replayed", "lives"):
            session.dead_letters.bury(a_letter(f"{name}-m", flow_id=name, dead_at=BEGAN))
    going.go_on()
    assert going.kept() == names
    until = going.position()
    going.write(lines("replayed", "replayed", "received", "committed"))
    (lives,) = session.dead_letters.ids_of(["lives"])
    with committed(session):
        assert session.retention.remove_letters(lives - 1, 99) == 2
    going.go_on(until)
    # The letter of the third flow has left the table too. Newer lines of the journal tell that it was replayed.
    assert going.kept() == ["lives", "replayed"]
    report = going.go_on()
    assert going.kept() == ["lives"]
    assert (report.flows["dead"], report.lost_count) == (2, 0)
    assert told(report) == told(going.full())


# Which state counts

FINDING = AuditFinding("lost", "s", "m", "f")


@pytest.fixture
def session(books: SqliteBooks) -> Any:
    with closing(engine_of(books.app).access().session) as made:
        yield made


def a_turn(folder: Path, session: Session) -> AuditSeries:
    """A turn whose state is on the disk."""
    made = AuditSeries.begin(folder, session, ManualClock())
    made.folder.mkdir()
    return made


def test_a_state_counts_when_the_store_names_it_and_replaces_its_predecessor(tmp_path: Path, session: Session) -> None:
    first = a_turn(tmp_path / "states", session)
    assert first.former is None
    first.end(session, [], Position(7, "e"), 1)
    second = a_turn(tmp_path / "states", session)
    assert second.former == (str(first.folder), "e:7")
    second.end(session, [FINDING], Position(9, "e"), 2)
    assert not first.folder.exists()
    assert second.folder.exists()
    assert [each.finding for each in session.audits.findings(9)] == [FINDING]


def test_a_crash_before_the_store_names_a_state_changes_nothing(tmp_path: Path, session: Session) -> None:
    first = a_turn(tmp_path, session)
    first.end(session, [], Position(7), 1)
    crashed = a_turn(tmp_path, session)
    third = a_turn(tmp_path, session)
    assert third.former == crashed.former == (str(first.folder), "7")
    third.end(session, [], Position(8), 2)
    # It may still run. It is removed when it is old.
    assert crashed.folder.exists()
    old = int((crashed.folder.stat().st_mtime + LEFT_BEHIND_SECONDS + 60) * SECOND)
    a_turn(tmp_path, session).end(session, [], Position(9), old)
    assert not crashed.folder.exists()


def test_of_two_audits_at_once_the_second_fails_and_keeps_nothing(tmp_path: Path, session: Session) -> None:
    first, second = a_turn(tmp_path, session), a_turn(tmp_path, session)
    first.end(session, [], Position(7), 1)
    with pytest.raises(AuditConflict, match="Run it again: it continues from that state"):
        second.end(session, [FINDING], Position(8), 2)
    assert session.audits.findings(9) == []
    assert (first.folder.exists(), second.folder.exists()) == (True, False)
    assert a_turn(tmp_path, session).former == (str(first.folder), "7")


def test_a_folder_that_goes_meanwhile_does_not_disturb_an_audit_that_has_committed(
    tmp_path: Path, session: Session
) -> None:
    made = a_turn(tmp_path, session)
    (tmp_path / f"audit-{UUID(int=0)}").symlink_to(tmp_path / "gone")
    made.end(session, [], Position(7), 1)
    assert a_turn(tmp_path, session).former == (str(made.folder), "7")


def parts_of_a_state(folder: Path, messages: int) -> Path:
    for name in ("messages", "facts", "flows"):
        (folder / name).mkdir()
        pq.write_table(pa.table({"row": list(range(messages))}), folder / name / "part-0.parquet")
    return folder


REST = '"messages":3,"nodes":{},"work":{},"final":{}}'


def test_other_folders_beside_the_states_are_left_alone(tmp_path: Path, session: Session) -> None:
    other = tmp_path / "audit-notes"
    other.mkdir()
    a_turn(tmp_path, session).end(session, [], Position(7), 10**18)
    assert other.exists()


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        (None, "cannot be read"),
        ("{}", "cannot be read"),
        (f'{{"format":9,"until":"7","window_seconds":60,{REST}', "another version"),
        (f'{{"format":1,"until":"7","window_seconds":10,{REST}', "--window 10"),
    ],
)
def test_a_state_that_cannot_be_used_is_named_with_its_remedy(tmp_path: Path, text: str | None, remedy: str) -> None:
    if text is not None:
        (tmp_path / "state.json").write_text(text)
    with pytest.raises(AuditStateUnusable, match=remedy) as caught:
        AuditState.read(tmp_path, 60)
    assert str(tmp_path) in str(caught.value)


def test_a_state_that_lost_a_file_is_refused(tmp_path: Path) -> None:
    """The audit would miss the open messages of that file, and could say that nothing is lost."""
    (parts_of_a_state(tmp_path, 3) / "state.json").write_text(f'{{"format":1,"until":"7","window_seconds":60,{REST}')
    assert AuditState.read(tmp_path, 60).summary.messages == 3
    more = tmp_path / "messages" / "part-1.parquet"
    pq.write_table(pa.table({"row": [3]}), more)
    with pytest.raises(AuditStateUnusable, match=r"lacks files, or has others. It held 3 messages. Restore the folder"):
        AuditState.read(tmp_path, 60)
    more.unlink()
    (tmp_path / "flows" / "part-0.parquet").unlink()
    with pytest.raises(AuditStateUnusable, match="lacks files"):
        AuditState.read(tmp_path, 60)


def test_a_state_of_another_epoch_is_refused_with_the_remedy_for_an_audit(tmp_path: Path) -> None:
    (parts_of_a_state(tmp_path, 3) / "state.json").write_text(f'{{"format":1,"until":"e:70","window_seconds":60,{REST}')
    with pytest.raises(AuditStateUnusable, match=r"ends at e:70, and the journal at f:99, in another epoch.*--state"):
        AuditState.read(tmp_path, 60).check_end(Position(99, "f"))


def test_a_state_of_a_journal_that_is_shorter_now_is_refused(tmp_path: Path) -> None:
    (parts_of_a_state(tmp_path, 3) / "state.json").write_text(f'{{"format":1,"until":"e:70","window_seconds":60,{REST}')
    state = AuditState.read(tmp_path, 60)
    for until in (1, 70, 71):
        state.check_end(Position(until, "e"))
    with pytest.raises(AuditStateUnusable, match="ends at e:70, and the journal at e:69: the store was restored"):
        state.check_end(Position(69, "e"))


def test_an_audit_that_continues_does_not_look_into_the_archive(
    tmp_path: Path, session: Session, books: SqliteBooks
) -> None:
    gone = str(tmp_path / "gone")
    command = AuditCommand(audit_job, AuditTerms(), books.url, tmp_path / "states", None, gone, None, None)
    with pytest.raises(DeclarationError, match="is no archive"):
        command.begin()
    first = a_turn(tmp_path / "states", session)
    (parts_of_a_state(first.folder, 3) / "state.json").write_text(
        f'{{"format":1,"until":"1","window_seconds":60,{REST}'
    )
    first.end(session, [], Position(1), 1)
    assert command.begin().store.archived is None


def test_a_state_of_which_executors_wrote_a_part_elsewhere_is_refused(tmp_path: Path) -> None:
    """The next audit would miss the open messages of that part, and could say that nothing is lost."""
    check_written(parts_of_a_state(tmp_path, 3), 3)
    with pytest.raises(AuditStateUnusable, match=r"of 4 messages this machine sees 3.*that the driver and all exec"):
        check_written(tmp_path, 4)
    (tmp_path / "facts" / "part-0.parquet").unlink()
    with pytest.raises(AuditStateUnusable, match="is not whole"):
        check_written(tmp_path, 3)


def test_a_state_without_messages_is_whole(tmp_path: Path) -> None:
    check_written(parts_of_a_state(tmp_path, 0), 0)


@pytest.mark.more
def test_the_command_continues_where_it_ended(cli: Cli, books: SqliteBooks, tmp_path: Path) -> None:
    states = str(tmp_path / "states")
    books.start(orders(3))
    books.drain()
    first = cli.audit("--state", states)
    assert (first.code, first.json["continued_from"]) == (0, None)
    books.start(orders(2, name="more"))
    books.change("DELETE FROM stagepost_ready WHERE flow_id = 'more1'")
    second = cli.audit("--state", states)
    assert (second.code, second.json["lost_count"], second.json["flows"]["flows"]) == (1, 1, 5)
    assert second.json["continued_from"] is not None
    assert second.json["waypoints"] == books.number("SELECT count(*) FROM stagepost_journal")
    assert len(list((tmp_path / "states").iterdir())) == 1
    refused = cli.audit("--state", states, "--window", "10")
    assert (refused.code, refused.is_one_paragraph) == (2, True)
