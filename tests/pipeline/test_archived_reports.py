"""Audit and reconcile over a journal whose old lines are in the archive."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stagepost.cli.archives import archives_by_store
from stagepost.flow.clock import HOUR, SystemClock
from stagepost.flow.errors import DeclarationError
from stagepost.pipeline import frames
from stagepost.pipeline.archive_folder import ArchiveConflict, ArchiveFolder
from stagepost.pipeline.archived_journal import archived_journal
from stagepost.ports.archives import Manifest
from stagepost.ports.journal import Position
from stagepost.ports.registry import driver_of
from stagepost.ports.session import Session
from stagepost.runtime.purge_service import purge_all
from stagepost.store.sqlite.store import SqliteStore
from stagepost.testing.contract.givens import NOW, a_letter, buried, committed
from stagepost.transaction.retention import Rules
from tests.pipeline.archives import KEEP, RULES, Shelf
from tests.pipeline.books import Books, SqliteBooks, orders
from tests.pipeline.commands import Cli
from tests.pipeline.postgres_books import PostgresBooks
from tests.pipeline.test_archive_command import age, archived
from tests.pipeline.test_reconcile_command import Service, reconcile, row_of
from tests.pipeline.test_reconcile_rows import Bank


def count_hours(session: Session) -> None:
    """Let all lines of the journal become old."""
    with committed(session):
        session.retention.declare("tests", {"@journal": KEEP})
    for hour in range(KEEP + 2):
        with committed(session):
            session.retention.count_hour(SystemClock().now() + hour * HOUR)


def check_audit(cli: Cli, books: Books, folder: Path) -> None:
    """Audit a store before and after its journal was archived. Both find the same."""
    books.start(orders(20))
    books.start_broken("broken")
    books.drain()
    names = ("waypoints", "flows", "lost_count", "doubled_count")
    before = cli.audit().json
    assert (before["clean"], before["has_gap"], before["flows"]["dead"]) == (True, False, 1)
    age(books)
    archived(cli, folder)
    # The letter is archived, and the store still has its lines.
    after = cli.audit().json
    assert (after["clean"], after["has_gap"], after["flows"]) == (
        True,
        True,
        {"flows": 1, "completed": 0, "dead": 1, "under_way": 0},
    )
    whole = cli.audit("--archive", str(folder)).json
    assert {name: whole[name] for name in names} == {name: before[name] for name in names}
    assert (whole["archived"], whole["has_gap"]) == (before["waypoints"], False)


@pytest.mark.more
def test_an_audit_finds_the_same_in_the_archive(cli: Cli, books: SqliteBooks, tmp_path: Path) -> None:
    check_audit(cli, books, tmp_path / "archive")
    shown = cli("audit")
    assert "earlier waypoints were purged or archived" in shown.out
    other = SqliteBooks(tmp_path / "other.db")
    refused = cli("audit", "--archive", str(tmp_path / "archive"), url=other.url)
    assert (refused.code, "is of another store" in refused.err) == (2, True)


@pytest.mark.more
def test_an_audit_of_postgres_finds_the_same_in_the_archive(
    cli: Cli, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    books = PostgresBooks(request.getfixturevalue("new_postgres")())
    cli._books = books
    check_audit(cli, books, tmp_path / "archive")


@pytest.mark.more
def test_services_are_reconciled_over_their_archives(cli: Cli, tmp_path: Path) -> None:
    """The archive proves what the store cannot, and a message that never arrived is lost."""
    payments = Service(f"sqlite:///{tmp_path}/payments.db", "payments.pay")
    ledger = Service(f"sqlite:///{tmp_path}/ledger.db", "ledger.book")
    payments.leave(["m1", "m2", "lost"])
    payments.leave(["later"], seconds=1_200)
    ledger.record("arrived", "ledger.book", ["m1", "m2"])
    ledger.record("arrived", "ledger.book", ["later"], seconds=1_200)
    with closing(ledger.session()) as session:
        count_hours(session)
    folder = tmp_path / "archive"
    assert cli("archive", str(folder), url=ledger.url).code == 0
    without = reconcile(cli, payments, "--with", ledger.url)
    found = row_of(without, "ledger.book")
    assert (found["sent"], "ok" in found, "lost" in found) == (4, False, False)
    answer = reconcile(cli, payments, "--with", ledger.url, "--archive", str(folder))
    found = row_of(answer, "ledger.book")
    assert (found["sent"], found["ok"], found["lost"], "unprovable" in found) == (4, 3, 1, False)
    assert [each["message_id"] for each in answer.json["lost"]] == ["lost"]
    third = Service(f"sqlite:///{tmp_path}/third.db", "third.stage")
    refused = reconcile(cli, payments, "--with", third.url, "--archive", str(folder))
    assert (refused.code, "which is not compared" in refused.err) == (2, True)


@pytest.mark.more
def test_rows_are_reconciled_over_the_archive(cli: Cli, spark: SparkSession, tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "bank.db")
    bank = Bank(f"sqlite:///{tmp_path}/bank.db", store)
    bank.pay({"1": None, "2": None})
    with closing(store.session()) as session:
        count_hours(session)
    folder = tmp_path / "archive"
    assert cli("archive", str(folder), url=bank.url).code == 0
    bank.pay({"3": None})
    rows = spark.createDataFrame([(1,), (2,), (3,), (4,)], "key int")
    report = frames.reconcile(rows, bank.url, "pay", id_columns=["key"], archive=folder)
    assert {name: number for name, number in report.counts.items() if number} == {"ok": 3, "lost": 1}
    without = frames.reconcile(rows, bank.url, "pay", id_columns=["key"])
    assert {name: number for name, number in without.counts.items() if number} == {"ok": 1, "unprovable": 3}


@pytest.mark.parametrize(
    ("end", "purged", "is_covered"),
    [
        ("", None, True),
        ("", Position(1, "e1"), False),
        ("e1:5", None, True),
        ("e1:5", Position(5, "e1"), True),
        ("e1:5", Position(6, "e1"), False),
        # After a restore the numbers of two epochs cannot be compared.
        ("e1:5", Position(4, "e2"), False),
    ],
)
def test_a_part_covers_a_purge_mark_of_its_epoch(end: str, purged: Position | None, is_covered: bool) -> None:
    part = Manifest("archive", "journal", "journal-1", 0, 10, 7, "seal", end, NOW)
    assert part.covers(purged) == is_covered


def test_of_two_archives_of_one_store_none_is_left_out_silently(tmp_path: Path) -> None:
    first, second, other = (str(tmp_path / name) for name in ("first", "second", "other"))
    for folder, store in ((first, "shop"), (second, "shop"), (other, "bank")):
        ArchiveFolder.make(Path(folder), store, lambda: "archive")
    assert archives_by_store([first, other]) == {"shop": Path(first), "bank": Path(other)}
    with pytest.raises(DeclarationError, match=f"{first} and {second} are both of the store shop"):
        archives_by_store([first, other, second])


def test_a_gap_in_the_archive_is_told(shelf: Shelf) -> None:
    def look() -> tuple[bool, int | None]:
        found = archived_journal(shelf.folder, shelf.session)
        return found.is_whole, None if found.since_gap is None else len(found.since_gap)

    def archive(flow: str) -> None:
        shelf.write(flow)
        shelf.age()
        shelf.run()

    archive("first")
    archive("second")
    assert look() == (True, None)
    # The archive is ended, and a purge removes lines for good.
    shelf.write("gone")
    shelf.age()
    with committed(shelf.session):
        shelf.session.archives.set_archive(None)
    list(purge_all(shelf.access, rules=RULES))
    assert look() == (False, 0)
    # On PostgreSQL letters are archived before the next lines. Their part is not the one with the gap.
    shelf.bury("letter")
    shelf.age()
    shelf.run()
    archive("third")
    archive("fourth")
    assert look() == (False, 2 if shelf.url.startswith("sqlite") else 1)


def test_lines_that_leave_the_store_during_a_report_end_it(shelf: Shelf) -> None:
    shelf.write("first")
    shelf.age()
    shelf.run()
    found = archived_journal(shelf.folder, shelf.session)
    found.check_unmoved(shelf.url)
    shelf.write("second")
    shelf.age()
    shelf.run()
    with pytest.raises(ArchiveConflict, match="were archived or purged while they were read"):
        found.check_unmoved(shelf.url)


def test_letters_that_leave_by_age_leave_the_latest_death(shelf: Shelf) -> None:
    export = driver_of(shelf.url).export(shelf.url)
    assert export.letters_removed() is None
    buried(shelf.session, a_letter("a", dead_at=NOW + 7), a_letter("b", dead_at=NOW + 5))
    shelf.age()
    list(purge_all(shelf.access, rules=Rules({"@dead_letters": KEEP})))
    assert export.letters_removed() == NOW + 7
    buried(shelf.session, a_letter("c", dead_at=NOW + 6))
    shelf.age()
    shelf.run()
    assert export.letters_removed() == NOW + 7
    buried(shelf.session, a_letter("d", dead_at=NOW + 9))
    shelf.age()
    shelf.run()
    assert export.letters_removed() == NOW + 9
