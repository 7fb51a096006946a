"""An audit that continues from a state finds the same as a full one, and a state counts when the store names it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
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
from stagepost.cli.audit_series import LEFT_BEHIND_SECONDS, AuditConflict
from stagepost.flow.clock import SECOND, to_microseconds
from stagepost.flow.errors import DeclarationError
from stagepost.pipeline.jobs import audit as audit_job
from stagepost.pipeline.jobs.audit import AuditTerms
from stagepost.pipeline.jobs.audit_state import (
    AuditState,
    AuditStateUnusable,
    check_written,
)
from stagepost.pipeline.report.advice import LetterFacts
from stagepost.pipeline.report.audit_report import AuditReport
from stagepost.pipeline.report.growth import StoreSize
from stagepost.ports.audits import AuditFinding
from stagepost.ports.export import DiskUsage
from stagepost.ports.journal import Position, Waypoint, WaypointName
from stagepost.ports.session import Session
from stagepost.testing.contract.givens import a_letter, committed
from tests.pipeline.audit_turns import REST, Auditor, a_turn, end_a_turn, parts_of_a_state
from tests.pipeline.books import SqliteBooks, orders
from tests.pipeline.commands import Cli
from tests.pipeline.journal import BEGIN

YEAR = 366 * 86_400
BEGAN = to_microseconds(BEGIN)
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


def ending(name: str, *waypoints: WaypointName, at: int = BEGAN) -> list[Waypoint]:
    """A flow of one message."""
    attempts = {"accepted": 0}
    return [Waypoint(each, at, "n", "pay", f"{name}-m", name, attempts.get(each, 1), at) for each in waypoints]


def write_poison(going: Auditor, session: Session) -> None:
    """Nine flows that end well, and five that die."""
    for n in range(9):
        going.write(ending(f"well{n}", "accepted", "received", "committed"))
    for n in range(5):
        going.write(ending(f"bad{n}", "accepted", "received", "dead"))
        letter = a_letter(f"bad{n}-m", flow_id=f"bad{n}", dead_at=BEGAN)
        with committed(session):
            session.dead_letters.bury(replace(letter, origin_at=BEGAN))


def groups(session: Session) -> list[LetterFacts]:
    return [LetterFacts(each, "E: it failed") for each in session.dead_letters.groups()]


def verdicts(report: AuditReport) -> list[tuple[int, str]]:
    return [(row["letters"], row["verdict"]) for row in report.dead_letters]


@pytest.mark.more
def test_a_verdict_counts_the_messages_that_a_state_has_forgotten(
    auditor: Callable[[int], Auditor], session: Session
) -> None:
    going = auditor(0)
    write_poison(going, session)
    for _ in range(3):
        assert verdicts(going.go_on(letters=groups(session))) == [(5, "poison")]
        assert going.kept() == [f"bad{n}" for n in range(5)]
    assert verdicts(going.full(letters=groups(session))) == [(5, "poison")]


def as_written_before(state: AuditState, columns: dict[str, list[str]]) -> None:
    """Write the state as an earlier version did, without these columns of its parts."""
    for part, names in columns.items():
        for file in (state.folder / part).glob("*.parquet"):
            rest = pq.ParquetFile(file).read().drop_columns(names)
            pq.write_table(rest, file, use_deprecated_int96_timestamps=True)
            # Spark compares the file with its old digest.
            file.with_name(f".{file.name}.crc").unlink()
    written = state.folder / "state.json"
    summary = json.loads(written.read_text())
    for name in ("settled_before", "settled_hours", "sizes", "provisional"):
        del summary[name]
    written.write_text(json.dumps(summary))


@pytest.mark.more
def test_an_audit_continues_from_a_state_of_an_earlier_version(
    auditor: Callable[[int], Auditor], session: Session
) -> None:
    """It counts what that state has, and has no verdict that rests on what the state lacks."""
    going = auditor(0)
    write_poison(going, session)
    going.write(ending("lost", "accepted", "received"))
    going.write(ending("early", "accepted", "received", "committed", at=BEGAN - 3_600 * SECOND))
    going.go_on()
    assert going.state is not None
    lacks = {"messages": ["confirms", "doubts", "direct"], "facts": ["doubted", "edited"]}
    as_written_before(going.state, lacks)
    going.state = AuditState.read(going.state.folder, 60)
    # It has another window, so no line of this version is among those of the state.
    going.write(ending("new", "accepted", "received", "committed", at=BEGAN + 3_600 * SECOND))
    full = going.full()
    report = going.go_on(letters=groups(session))
    assert verdicts(report) == [(5, "unclear")]
    assert full.lost_count == 1
    assert {**told(report), "dead_letters": []} == told(full)
    # The next state is of this version, and knows that messages of that hour were forgotten.
    assert verdicts(going.go_on(letters=groups(session))) == [(5, "unclear")]


def test_the_growth_of_a_store_without_messages_is_unknown(auditor: Callable[[int], Auditor]) -> None:
    """Its journal has no age."""
    growth = auditor(0).full(store=StoreSize(DiskUsage(2**20, 2**30))).growth
    assert (growth["store_bytes_per_day"], growth["days_to_full"]) == (None, None)
    assert growth["unknown"][0].startswith("the growth in bytes: the journal is younger than an hour")


# Which state counts

FINDING = AuditFinding("lost", "s", "m", "f")


@pytest.fixture
def session(books: SqliteBooks) -> Any:
    with closing(engine_of(books.app).access().session) as made:
        yield made


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
    end_a_turn(tmp_path / "states", session, 1)
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
