"""Write the rows of a DataFrame to shared storage first, because Spark may compute other rows when it reads them again.

A table that is read by JDBC, a topic of Kafka, or a column of random numbers differs from one reading to the next. A
retried task would then drop rows, or start others.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark.sql import DataFrame, SparkSession

from stagepost.flow.errors import DeclarationError
from stagepost.pipeline.failures import SPARK_ERRORS, describe_error
from stagepost.pipeline.files import listed, repeated_names
from stagepost.pipeline.session import is_local


@contextmanager
def staged(frame: DataFrame, folder: str | None, name: str) -> Iterator[str]:
    """Write the rows as Parquet to a new folder named ``name`` in ``folder``, and yield its address.

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
        place = f"{folder or temporary}/{name}"
        try:
            try:
                frame.write.parquet(place)
            except (OSError, *SPARK_ERRORS) as error:
                raise DeclarationError(
                    f"the rows cannot be read and written to {place}: {describe_error(error)}"
                ) from error
            yield place
        finally:
            with suppress(*SPARK_ERRORS):
                _delete(spark, place)


def _delete(spark: SparkSession, place: str) -> None:
    jvm = spark.sparkContext._jvm  # noqa: SLF001 - PySpark has no other way to Hadoop's file systems
    assert jvm is not None
    path = jvm.org.apache.hadoop.fs.Path(place)
    path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()).delete(path, True)  # noqa: SLF001
