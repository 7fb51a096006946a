"""An archive without Spark, which is the same but for its writer, and all that is in a store and in its archive."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema

from pyspark_stagepost.arrow import record_batch
from pyspark_stagepost.schemas import JOURNAL
from stagepost.flow.clock import HOUR
from stagepost.flow.ids import RandomIds
from stagepost.pipeline.archive_folder import ArchiveFolder, Content
from stagepost.pipeline.archived_letters import letters_of
from stagepost.pipeline.archiver import ArchiveListener, Archiver, unobserved_archive
from stagepost.ports.archives import Manifest
from stagepost.ports.dead_letters import Selection
from stagepost.ports.export import TableQuery
from stagepost.ports.journal import WHOLE, WaypointName
from stagepost.ports.registry import driver_of
from stagepost.ports.session import Session
from stagepost.ports.store import Store, outbox_apart
from stagepost.runtime.access import Access
from stagepost.runtime.assembly import log_of
from stagepost.runtime.databases import open_store
from stagepost.testing import ManualClock
from stagepost.testing.contract.givens import NOW, a_letter, a_waypoint, committed
from stagepost.transaction.retention import Rules

KEEP = 24
RULES = Rules({"@journal": KEEP, "@dead_letters": KEEP})
SCHEMA = to_arrow_schema(JOURNAL, timezone="UTC")


class ArrowWriter:
    """Implements ``archiver.RangeWriter``. ``during`` is called while a range is written."""

    def __init__(self, url: str, during: Callable[[], None] = lambda: None) -> None:
        self._export = driver_of(url).export(url)
        self._during = during

    def write(self, first: int, next_: int, folder: Path) -> Content:
        bounds = self._export.journal_bounds(WHOLE)
        bounds = bounds._replace(low=max(bounds.low, first), high=min(bounds.high, next_))
        query = TableQuery("journal", JOURNAL.fieldNames())
        batches = [record_batch(columns, SCHEMA) for columns in self._export.read(query, bounds)]
        table = pa.Table.from_batches(batches, SCHEMA).sort_by([("message_id", "ascending"), ("id", "ascending")])
        folder.mkdir()
        self._during()
        pq.write_table(table, folder / "lines.parquet", compression="zstd")
        return Content(table.num_rows, str(sum(table["id"].to_pylist())))

    def read_back(self, folder: Path) -> Content:
        table = pq.read_table(folder / "lines.parquet")
        return Content(table.num_rows, str(sum(table["id"].to_pylist())))


@dataclass
class Shelf:
    """A store, and its archive."""

    url: str
    store: Store
    access: Access
    folder: Path
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOW + 1_000 * HOUR))

    @property
    def session(self) -> Session:
        return self.access.session

    @property
    def archive(self) -> ArchiveFolder:
        return ArchiveFolder.make(self.folder, self.session.edge.store(), RandomIds(self.clock, Random()).mint)

    def archiver(
        self, *, during: Callable[[], None] = lambda: None, listener: ArchiveListener = unobserved_archive
    ) -> Archiver:
        writer = ArrowWriter(self.url, during)
        ids = RandomIds(self.clock, Random())
        log = log_of(self.store, self.clock)
        return Archiver(
            self.access, self.archive, writer, clock=self.clock, ids=ids, log=log, rules=RULES, listener=listener
        )

    def run(self) -> list[Manifest]:
        return list(self.archiver().run())

    def write(self, *flows: str) -> None:
        """Write three lines of each flow, as of a message that was accepted and handled."""
        with committed(self.session):
            for flow in flows:
                names: Sequence[WaypointName] = ("accepted", "received", "committed")
                self.session.journal.record([a_waypoint(f"{flow}-m", flow, name=name) for name in names])

    def bury(self, *flows: str) -> None:
        with committed(self.session):
            for flow in flows:
                self.session.dead_letters.bury(a_letter(f"{flow}-m", flow_id=flow))

    def age(self) -> None:
        """Let all that is there become old, and close its range."""
        hours = self.session.retention.hours()
        for hour in range(hours, hours + KEEP + 2):
            with committed(self.session):
                self.session.retention.count_hour(NOW + hour * HOUR)
        mark = self.session.retention.mark(hours + KEEP + 2)
        assert mark is not None
        with committed(self.session):
            self.session.retention.cut(mark.line)

    def empty(self) -> None:
        """Let the queue lose its messages, as if they had been handled."""
        statement = "DELETE FROM stagepost_suspect"
        if self.url.startswith("sqlite"):
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
                connection.execute(statement)
        else:
            with psycopg.connect(self.url, autocommit=True) as connection:
                connection.execute(statement)

    # What there is

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        batches = driver_of(self.url).export(self.url).read(TableQuery(table, columns), None)
        return [row for batch in batches for row in zip(*(_values(each) for each in batch), strict=True)]

    def stored(self) -> Counter[str]:
        """The lines of each flow in the store."""
        flows = [each.flow_id for each in self.session.retention.old_lines(0, 2**62, 100_000)]
        return Counter(flows)

    def archived(self) -> list[dict[str, object]]:
        """The lines that the manifests name."""
        files = self._files("journal")
        return [row for file in files for row in pq.read_table(file).to_pylist()]

    def archived_flows(self) -> Counter[str]:
        rows = self.archived()
        assert len({row["id"] for row in rows}) == len(rows), "a line is in two parts"
        return Counter(str(row["flow_id"]) for row in rows)

    def archived_letters(self) -> list[str]:
        """The messages of the letters that count, each as often as it is there."""
        return sorted(
            each.kept.letter.message_id
            for manifest in self.session.archives.manifests()
            if manifest.kind == "dead_letters"
            for each in letters_of(self.archive.files(manifest, is_thorough=True))
            if each.kept.id not in manifest.struck
        )

    def letters(self) -> list[str]:
        return sorted(each.letter.message_id for each in self.session.dead_letters.select(Selection("all")))

    def _files(self, kind: str) -> Sequence[Path]:
        return [
            file
            for manifest in self.session.archives.manifests()
            if manifest.kind == kind
            for file in self.archive.files(manifest, is_thorough=True)
        ]


def _values(column: Any) -> list[Any]:
    values = column.to_pylist() if hasattr(column, "to_pylist") else column
    return [each.decode() if isinstance(each, bytes) else each for each in values]


@contextmanager
def opened(url: str, folder: Path) -> Iterator[Shelf]:
    store = open_store(url)
    access = Access(store.session(), ManualClock(NOW), open_apart=partial(outbox_apart, store))
    try:
        yield Shelf(url, store, access, folder)
    finally:
        access.close()
