"""Bulk initiation from a folder that files keep coming into: each micro-batch of files is a run.

Spark's stream carries the names of the files alone, and its checkpoint holds which of them are done. The rows are read
as ``initiate`` reads files, by the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile

from pyspark.sql import DataFrame, SparkSession

from stagepost.flow.errors import DeclarationError, StagepostError
from stagepost.flow.texts import as_sentence
from stagepost.pipeline.failures import SPARK_ERRORS, describe_error
from stagepost.pipeline.files import is_remote, unique_files
from stagepost.pipeline.frames import run_of_batch
from stagepost.pipeline.jobs.initiate import InitiationFailed, InitiationPlan, initiate
from stagepost.pipeline.jobs.records import literal
from stagepost.pipeline.session import require_one_host
from stagepost.ports.runs import RunCounts

# The schema of Spark's whole files. Only the path is read.
WHOLE_FILES = "path string, modificationTime timestamp, length bigint, content binary"
# The driver holds the names of a run's files.
FILES_A_BATCH = 1_000
# By default Spark skips a file whose own time is a week before the newest one's, which a rename keeps.
EVER = "36500d"


def initiate_files(
    spark: SparkSession,
    plan: InitiationPlan,
    folder: str,
    *,
    checkpoint: str,
    id_columns: Sequence[str],
    flow_prefix: str,
    separator: str = ",",
    is_endless: bool = True,
    on_batch: Callable[[str, RunCounts], None] = lambda run_id, counts: None,
) -> None:
    """Start a flow for each row of each file that is in ``folder`` or comes into it.

    A run's id is ``QUERY:BATCH``, and ``plan``'s is not used. ``on_batch`` gets the counts of each run that ended.
    ``is_endless=False`` returns when the files that are there now are done. Raises the errors of ``initiate``.
    """
    require_one_host(spark, plan.place)
    failures: list[StagepostError] = []

    def start(batch: DataFrame, number: int) -> None:
        files = sorted(_name(path) for (path,) in batch.collect())
        run_id = run_of_batch(batch, number)
        try:
            counts = initiate(
                batch.sparkSession,
                replace(plan, run_id=run_id),
                files,
                id_columns=id_columns,
                flow_prefix=flow_prefix,
                separator=separator,
                source=f"{len(files)} files of {folder}",
            )
        except StagepostError as error:
            # Spark would keep the text of its trace alone.
            failures.append(error)
            raise
        on_batch(run_id, counts)

    files = spark.readStream.schema(WHOLE_FILES).options(maxFilesPerTrigger=FILES_A_BATCH, maxFileAge=EVER)
    try:
        names = files.format("binaryFile").load(literal(folder)).select("path")
        writer = names.writeStream.foreachBatch(start).option("checkpointLocation", checkpoint)
        (writer if is_endless else writer.trigger(availableNow=True)).start().awaitTermination()
    except SPARK_ERRORS as error:
        if failures:
            raise failures[0] from error
        raise InitiationFailed(
            f"the stream of {folder} ended: {as_sentence(describe_error(error))} "
            "Run the same command again, which continues."
        ) from error


def check_folder(folders: Sequence[str], checkpoint: str | None) -> str:
    """Check the folder of a stream without Spark, and return it. Raises ``DeclarationError``."""
    if len(folders) != 1:
        raise DeclarationError("--stream takes one folder, whose files are read as they come")
    if checkpoint is None:
        raise DeclarationError("--stream needs --checkpoint FOLDER, where Spark keeps which files are done")
    (folder,) = unique_files(folders)
    if is_remote(folder):
        return folder
    if not Path(folder).is_dir():
        raise DeclarationError(f"{folder} is no folder; --stream reads the files that come into a folder")
    # Where Spark finds that folder, paths are those of this machine. It also takes file:/folder as an address.
    if ":/" not in checkpoint:
        _make_checkpoint(Path(checkpoint))
    return folder


def _make_checkpoint(folder: Path) -> None:
    """Make the folder, and write a file there, because Spark would name no reason. Raises ``DeclarationError``."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise DeclarationError(
            f"--checkpoint {folder}: it cannot be written: {as_sentence(error.strerror)} "
            "Change its permissions, or name another folder."
        ) from error


def _name(path: str) -> str:
    """Return a file's name as ``unique_files`` takes it: a path of this machine, or an address."""
    return "/" + path.removeprefix("file:").lstrip("/") if path.startswith("file:") else path
