"""Archive closed ranges of the journal as Parquet on Spark, and old dead letters beside them.

Each task reads some ids, sorts them by message, and writes one file. The rows are counted and digested while they are
written, and again when they are read back.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import SystemRandom

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from pyspark_stagepost.schemas import JOURNAL
from stagepost.flow.clock import Clock
from stagepost.flow.ids import RandomIds
from stagepost.pipeline.archive_folder import ArchiveFolder, Content
from stagepost.pipeline.archiver import ArchiveFailed, ArchiveListener, Archiver, unobserved_archive
from stagepost.pipeline.failures import SPARK_ERRORS, describe_error
from stagepost.pipeline.session import job_description, require_one_host, with_settings
from stagepost.pipeline.stores import read_table
from stagepost.ports.archives import Manifest
from stagepost.ports.store import Store
from stagepost.runtime.access import Access
from stagepost.runtime.assembly import log_of
from stagepost.runtime.settings import Place
from stagepost.transaction.retention import Rules

# A look-up by a message's id reads one group of rows in each file.
GROUP_BYTES = 8 << 20
IN_MICROSECONDS = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}


class SparkWriter:
    """Implements ``archiver.RangeWriter``."""

    def __init__(self, spark: SparkSession, url: str, describe: Callable[[str], None]) -> None:
        self._spark = spark
        self._url = url
        self._describe = describe

    def write(self, first: int, next_: int, folder: Path) -> Content:
        lines = read_table(self._spark, self._url, "journal", lines=f"{first}:{next_}")
        found = Observation("archived")
        try:
            self._describe(f"writing the lines from {first} to {next_}")
            with (
                with_settings(self._spark, IN_MICROSECONDS),
                job_description(self._spark, "stagepost archive: writing"),
            ):
                sorted_lines = lines.observe(found, *_content(lines)).sortWithinPartitions("message_id", "id")
                writing = sorted_lines.write.option("compression", "zstd").option("parquet.block.size", GROUP_BYTES)
                writing.parquet(folder.absolute().as_uri())
        except SPARK_ERRORS as error:
            raise ArchiveFailed(f"Spark did not write {folder}: {describe_error(error)}") from error
        return _read(found.get)

    def read_back(self, folder: Path) -> Content:
        self._describe("reading it back")
        try:
            with job_description(self._spark, "stagepost archive: reading back"):
                lines = self._spark.read.schema(JOURNAL).parquet(folder.absolute().as_uri())
                return _read(lines.agg(*_content(lines)).collect()[0].asDict())
        except SPARK_ERRORS as error:
            raise ArchiveFailed(f"Spark could not read back {folder}: {describe_error(error)}") from error


def archive(
    spark: SparkSession,
    store: Store,
    access: Access,
    folder: Path,
    *,
    clock: Clock,
    rules: Rules | None = None,
    describe: Callable[[str], None] = lambda text: None,
    listener: ArchiveListener = unobserved_archive,
) -> list[Manifest]:
    """Archive the closed ranges of the journal that are old, and the dead letters past their retention.

    Returns the manifests that were written. The rows have left the store then, except for the lines of open flows.
    ``folder`` is the archive: driver and executors share it. It belongs to one store, and from now on the purge removes
    no line that is not in it. ``rules`` are the retentions; by default those that the apps declared.

    Raises ``DeclarationError`` for the archive of another store, ``ArchiveConflict`` beside another archiver, and
    ``ArchiveFailed`` if the files do not have what was read. Nothing is deleted then.
    """
    require_one_host(spark, Place(store.address, None))
    ids = RandomIds(clock, SystemRandom())
    opened = ArchiveFolder.make(folder, access.session.edge.store(), ids.mint)
    writer = SparkWriter(spark, store.address, describe)
    archiver = Archiver(
        access, opened, writer, clock=clock, ids=ids, log=log_of(store, clock), rules=rules, listener=listener
    )
    return list(archiver.run())


def _content(lines: DataFrame) -> tuple[Column, Column]:
    """Return the count of all rows, and a digest in any order. Ids differ, so no two rows cancel each other."""
    return F.count("*").alias("rows"), F.bit_xor(F.xxhash64(*map(F.col, lines.columns))).alias("digest")


def _read(found: dict[str, int | None]) -> Content:
    return Content(found["rows"] or 0, str(found["digest"]))
