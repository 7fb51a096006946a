"""The audit while the store changes under it: what moves is never called lost."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from stagepost.flow.clock import SystemClock
from stagepost.pipeline import archived_journal
from stagepost.pipeline.jobs import audit_search
from stagepost.pipeline.jobs.audit import AuditFailed, AuditTerms, audit
from stagepost.pipeline.report.audit_report import AuditReport
from stagepost.pipeline.stores import read_table
from stagepost.ports.dead_letters import Selection
from stagepost.recovery.editing import envelope_of
from stagepost.transaction.editing import edit
from stagepost.transaction.queue_commit import QueueCommit
from stagepost.transaction.replaying import freeze, run_replay
from tests.pipeline.books import SqliteBooks, orders
from tests.pipeline.commands import Commands
from tests.pipeline.shop import module_of
from tests.processes import ROOT
from tests.waiting import wait_until


def report(spark: SparkSession, books: SqliteBooks) -> AuditReport:
    until = books.number("SELECT coalesce(max(id), 0) FROM stagepost_journal") + 1
    return audit(spark, books.url, until=until, at=SystemClock().now(), terms=AuditTerms())


# Step by step: what happens right before each of the three reads

READS = ("journal", "places", "journal's head")


def patch_reads(patch: pytest.MonkeyPatch, read: Callable[..., DataFrame]) -> None:
    for module in (archived_journal, audit_search):
        patch.setattr(module, "read_table", read)


@contextmanager
def before_each_read(monkeypatch: pytest.MonkeyPatch, happens: Callable[[str], None]) -> Iterator[None]:
    real = read_table
    reads = iter(READS)

    def read(spark: SparkSession, url: str, table: str, *arguments: Any, **options: Any) -> DataFrame:
        happens(next(reads))
        return real(spark, url, table, *arguments, **options)

    with monkeypatch.context() as patch:
        patch_reads(patch, read)
        yield
    # The head is read only if a message seems to be missing.
    assert list(reads) in ([], [READS[-1]])


class Ready:
    def wait(self, seconds: float) -> bool:
        return True


class Mover:
    """Moves messages, a few at a time, as workers and operators do."""

    def __init__(self, books: SqliteBooks) -> None:
        self._healthy = books.harness("shop.order", "shop.stock", "shop.order.pack", "shop.done")
        self._broken = books.harness("shop.broken")

    def claim(self) -> None:
        assert self._healthy.claim_one() is not None

    def commit(self) -> None:
        for _ in range(3):
            assert self._healthy.run_one() is not None

    def bury(self) -> None:
        assert self._broken.drain()

    def revive(self) -> None:
        """One is edited, the others are replayed."""
        access, clock = self._broken.access, SystemClock()
        changed, *others = access.session.dead_letters.select(Selection("all"))
        envelope = envelope_of(changed.letter)
        queue_commit = QueueCommit(access.session, clock, "cli")
        assert edit(
            queue_commit, changed, envelope, envelope.messages, message_id=f"{changed.letter.message_id}-2", who="test"
        )
        assert others
        replay = freeze(access.session, [Selection("all")], clock=clock, who="test")
        assert replay is not None
        assert [len(each.letters) for each in run_replay(queue_commit, replay, stop=Ready(), who="test")] == [
            len(others)
        ]

    def close(self) -> None:
        self._healthy.close()
        self._broken.close()


MOVES = ("claim", "bury", "revive", "commit")


@pytest.mark.parametrize("first", MOVES)
def test_what_moves_between_the_reads_is_not_lost(
    spark: SparkSession, books: SqliteBooks, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Each move happens before each read, over the four runs of this."""
    books.start_broken("dead0", "dead1")
    mover = Mover(books)
    mover.bury()
    books.start(orders(10))
    books.start_broken("dying0", "dying1")
    begin = MOVES.index(first)
    moves = iter([*MOVES[begin:], *MOVES[:begin]])
    with before_each_read(monkeypatch, lambda read: getattr(mover, next(moves))()):
        found = report(spark, books)
    mover.close()
    assert (found.lost, found.doubled) == ([], [])
    assert found.is_clean


def test_what_is_truly_lost_is_found_though_all_else_moves_and_what_comes_to_be_meanwhile_is_not_in_it(
    spark: SparkSession, books: SqliteBooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    books.start(orders(6))
    books.change("DELETE FROM stagepost_ready WHERE flow_id = 'o3'")
    mover = Mover(books)

    def happens(read: str) -> None:
        mover.commit()
        books.start(orders(1, name=read))

    with before_each_read(monkeypatch, happens):
        found = report(spark, books)
    mover.close()
    assert [row["flow_id"] for row in found.lost] == ["o3"]
    assert (found.waypoints, found.flows["flows"]) == (6, 6)


# At full speed

PRODUCER = """
import sys
from pathlib import Path
from tests.pipeline.books import SqliteBooks, orders
books, stop, folder = SqliteBooks(Path(sys.argv[1])), Path(sys.argv[2]), sys.argv[3]
number = 0
while not stop.exists():
    number += 1
    books.start([
        *orders(20, name=f"a{number}-"),
        *orders(1, "fail", entries=1, name=f"b{number}-"),
        *orders(1, f"fail-once={folder}/failed{number}", name=f"c{number}-"),
    ])
    books.start(orders(2, name=f"d{number}-"), delay=0.2)
"""

AUDITS = 3


@pytest.mark.more
def test_an_audit_of_a_store_at_work_calls_nothing_lost_and_nothing_doubled(
    spark: SparkSession, commands: Commands, books: SqliteBooks, tmp_path: Path
) -> None:
    audited_at_work(spark, commands, books, tmp_path, audits=AUDITS)


def audited_at_work(spark: SparkSession, commands: Commands, books: SqliteBooks, folder: Path, *, audits: int) -> None:
    """For longer campaigns: so many audits while flows start, run, fail and die at full speed."""
    stop = folder / "stop"
    producer = commands.run([sys.executable, "-c", PRODUCER, str(books.path), str(stop), str(folder)], {}, ROOT)
    worker = commands.start("worker", module_of(folder), "--threads", "2", "--log-level", "CRITICAL")
    wait_until(lambda: books.committed() > 200 and books.letters(), "the worker works")
    for _ in range(audits):
        before = books.committed()
        found = report(spark, books)
        assert (found.lost, found.doubled) == ([], [])
        assert found.is_clean
        assert books.committed() > before
        assert producer.is_running()
        assert worker.is_running()
    stop.touch()
    assert producer.answer().code == 0
    assert books.waypoints("dead") > 0


# While executors are lost, with what they had read

LOST = PySparkException("Job aborted: [CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND] Checkpoint block rdd_21_0 not found!")


@pytest.mark.more
def test_reads_that_an_executor_took_along_are_made_again(
    spark: SparkSession, books: SqliteBooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of those that show the store of one moment, in their order: what has moved since the first ones is found
    where it is now. On a cluster: ``test_cluster``."""
    books.start(orders(6))
    books.change("DELETE FROM stagepost_ready WHERE flow_id = 'o3'")
    mover = Mover(books)
    reads: list[str] = []
    real = read_table

    def read(spark: SparkSession, url: str, table: str, *arguments: Any, **options: Any) -> DataFrame:
        reads.append("head" if "from" in options else table)
        if len(reads) == 3:
            mover.commit()
            raise LOST
        return real(spark, url, table, *arguments, **options)

    patch_reads(monkeypatch, read)
    found = report(spark, books)
    mover.close()
    assert reads == ["journal", "places", "head", "places", "head"]
    assert [row["flow_id"] for row in found.lost] == ["o3"]
    assert found.waypoints == 6


def test_an_audit_that_loses_executors_again_and_again_says_so_and_what_to_do(
    spark: SparkSession, books: SqliteBooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(spark: SparkSession, url: str, table: str, *arguments: Any, **options: Any) -> DataFrame:
        if table == "places":
            raise LOST
        return read_table(spark, url, table, *arguments, **options)

    books.start(orders(1))
    patch_reads(monkeypatch, read)
    with pytest.raises(AuditFailed) as caught:
        report(spark, books)
    assert str(caught.value) == (
        "executors were lost in each of 5 readings of the queue and the dead letters, so nothing is proved. Run the "
        "audit again when the cluster keeps its executors for longer, or on one machine, without --master."
    )
