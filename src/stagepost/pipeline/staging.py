"""Write the rows of a DataFrame to shared storage first, because Spark may compute other rows when it reads them again.

A table that is read by JDBC, a topic of Kafka, or a column of random numbers differs from one reading to the next. A
retried task would then drop rows, or start others.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from stagepost.flow.errors import DeclarationError
from stagepost.flow.texts import as_sentence
from stagepost.pipeline.failures import SPARK_ERRORS, describe_error
from stagepost.pipeline.files import escaped, is_remote, listed, repeated_names
from stagepost.pipeline.session import is_local


@contextmanager
def staged(frame: DataFrame, folder: str | None, name: str) -> Iterator[str]:
    """Write the rows as Parquet to a new folder named ``name`` in ``folder``, and yield its path or whole address.

    The new folder is deleted after the block. A killed driver leaves it behind. Without ``folder``, a temporary folder
    of this machine is used. Raises ``DeclarationError`` if executors on other machines could not read that, for columns
    of equal name, and for rows that cannot be read or written.
    """
    spark = frame.sparkSession
    twice = repeated_names(frame.columns)
    if twice:
        raise DeclarationError(f"the rows have columns of equal name: {listed(twice)}. Rename one with an alias.")
    if folder is None and not is_local(str(spark.sparkContext.master)):
        raise DeclarationError(
            "the rows cannot be staged: Spark may compute other rows when it reads them again, so they are written to "
            "shared storage first. Name a folder that driver and executors share: staging='hdfs:///tmp' or the like."
        )
    with tempfile.TemporaryDirectory(prefix="stagepost-rows-") as temporary:
        # Without file: it would be a path of Spark's default file system.
        place = _completed(spark, f"{folder or f'file:{temporary}'}/{name}")
        try:
            try:
                frame.write.parquet(place)
            except (OSError, *SPARK_ERRORS) as error:
                raise DeclarationError(
                    f"the rows cannot be read and written to {place}: {describe_error(error)}"
                ) from error
            # Spark treats each address as a pattern.
            yield escaped(place) if is_remote(place) else place
        finally:
            with suppress(*SPARK_ERRORS):
                _delete(spark, place)


def _completed(spark: SparkSession, place: str) -> str:
    """Return the whole address of a place. It is a path where Spark takes each path as one of this machine.

    ``hdfs:/tmp`` or a path may lack parts that Hadoop's settings give. Raises ``DeclarationError`` if they do not.
    """
    try:
        hadoop, conf = _hadoop(spark)
        path = hadoop.Path(place)
        found = path.getFileSystem(conf).makeQualified(path).toUri()
        scheme, default = found.getScheme(), hadoop.FileSystem.getDefaultUri(conf).getScheme()
        if scheme == default == "file":
            return str(found.getPath())
        return f"{scheme}://{found.getAuthority() or ''}{found.getPath()}"
    except SPARK_ERRORS as error:
        raise DeclarationError(
            f"the rows cannot be staged at {place}: {as_sentence(describe_error(error))} "
            "Name a folder with its whole address: "
            "staging='hdfs://HOST:PORT/tmp' or the like."
        ) from error


def _delete(spark: SparkSession, place: str) -> None:
    hadoop, conf = _hadoop(spark)
    path = hadoop.Path(place)
    path.getFileSystem(conf).delete(path, True)


def _hadoop(spark: SparkSession) -> tuple[Any, Any]:
    """Return Hadoop's package of file systems, and the session's settings of it."""
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - PySpark has no other way to Hadoop's file systems
    return jvm.org.apache.hadoop.fs, spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
