"""Read a journal whole on Spark: the lines of its archive, and behind them those of the store.

The archive has all lines with ids below its last part's end. The store still has those of open flows, which are not
read a second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pyspark_stagepost.options import NUMBER_MAX
from pyspark_stagepost.schemas import JOURNAL
from stagepost.flow.urls import shown_url
from stagepost.pipeline.archive_folder import ArchiveConflict, ArchiveFolder
from stagepost.pipeline.stores import read_table
from stagepost.ports.journal import Position
from stagepost.ports.registry import driver_of
from stagepost.ports.session import Session


@dataclass(frozen=True, slots=True)
class ArchivedJournal:
    """The archived lines of a store's journal.

    ``files``     Parquet files
    ``next``      all lines with ids below it are archived, as far as they were not purged before
    ``rows``      the number of their lines
    ``since_gap``  the files behind the last lines that were purged and are in no part; None without such a gap
    ``mark``      the store's purge mark
    """

    files: Sequence[Path]
    next: int
    rows: int
    since_gap: Sequence[Path] | None
    mark: Position | None

    @property
    def is_whole(self) -> bool:
        return self.since_gap is None

    def lines(self, spark: SparkSession, files: Sequence[Path] | None = None) -> DataFrame:
        """Return the lines of the files, by default of all of them."""
        wanted = self.files if files is None else files
        return spark.read.schema(JOURNAL).parquet(*(each.absolute().as_uri() for each in wanted))

    def check_unmoved(self, url: str) -> None:
        """Raise ``ArchiveConflict`` if lines left the store since the archive was looked at. Call it after a read."""
        if driver_of(url).export(url).purged_until() != self.mark:
            raise ArchiveConflict(
                f"lines of {shown_url(url)} were archived or purged while they were read, so nothing is proved. Run "
                "the command again."
            )


def coverage(url: str, archived: ArchivedJournal | None) -> dict[str, Any]:
    """Return what a full audit, whose reads have ended, says of lines that left the store. Raises as above."""
    if archived is None:
        return {"has_gap": driver_of(url).export(url).purged_until() is not None}
    archived.check_unmoved(url)
    return {"archived": archived.rows, "has_gap": not archived.is_whole}


def archived_journal(folder: Path, session: Session) -> ArchivedJournal:
    """Find the parts of the journal in the archive of a store. Call it before the journal's position is taken.

    Raises ``DeclarationError`` for the archive of another store, and ``ArchiveUnusable`` for a part that was changed.
    """
    archive = ArchiveFolder.find(folder, session.edge.store())
    mark = session.retention.purged_until()
    manifests = session.archives.manifests()
    ours = archive.identity.archive
    files: list[Path] = []
    since_gap: list[Path] | None = None
    rows, next_, has_gap = 0, 0, False
    for each in manifests:
        has_gap = has_gap or each.has_gap
        if each.kind != "journal":
            continue
        found = archive.files(each) if each.archive == ours else []
        if has_gap or each.archive != ours:
            # Lines are missing in this part, or it is elsewhere.
            since_gap = []
        elif since_gap is not None:
            since_gap += found
        files += found
        rows += each.rows if each.archive == ours else 0
        next_, has_gap = each.next, False
    if has_gap or (mark is not None and not (manifests and manifests[-1].covers(mark))):
        # Lines were purged after the last part was written.
        since_gap = []
    return ArchivedJournal(files, next_, rows, since_gap, mark)


def read_journal(
    spark: SparkSession, url: str, columns: Sequence[str], archived: ArchivedJournal | None, **options: str | int
) -> DataFrame:
    """Read the journal of a store, and of its archive if there is one. The options are those of the data source."""
    if archived is None or not archived.files:
        return read_table(spark, url, "journal", columns, **options)
    stored = read_table(spark, url, "journal", columns, lines=f"{archived.next}:{NUMBER_MAX}", **options)
    return archived.lines(spark).select(*columns).unionByName(stored)
