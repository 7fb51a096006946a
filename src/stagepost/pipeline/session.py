"""The Spark session that jobs run in: on this machine with nothing to install, or on a cluster with ``--master``."""

from __future__ import annotations

import importlib.resources
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from stagepost.app.settings import Place
from stagepost.flow.errors import DeclarationError
from stagepost.pipeline.java import provide_java

# How often a task may fail. A killed Python worker is a failed task, and must not fail the job.
TASK_FAILURES_MAX = 8
LOCAL = f"local[*,{TASK_FAILURES_MAX}]"


def is_local(master: str) -> bool:
    return master.startswith("local")


@contextmanager
def spark_session(name: str, master: str | None = None) -> Iterator[SparkSession]:
    """A session that ends with the block. ``master`` defaults to this machine, all of its cores.

    Raises ``DeclarationError`` where no Java is found.
    """
    provide_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Spark looks for an address of this machine to listen on; a laptop's may be anybody's.
    chosen = master or LOCAL
    if is_local(chosen):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    session = _build(name, chosen)
    try:
        yield session
    finally:
        session.stop()


def end_java() -> None:
    """End the Java process that sessions of this process share, and wait for it. The next session starts another.

    Otherwise Java would end soon after this process, and hold its standard output open until then.
    """
    gateway = SparkContext._gateway  # noqa: SLF001 - PySpark keeps the process for itself
    if gateway is None or gateway.proc is None:
        return
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


def break_off(session: SparkSession) -> None:
    """End all jobs, and close Java's standard error before: Spark would report each of them there."""
    assert session.sparkContext._jvm is not None  # noqa: SLF001 - PySpark has no other way to Java
    session.sparkContext._jvm.java.lang.System.err.close()  # noqa: SLF001
    session.sparkContext.cancelAllJobs()


def slots(session: SparkSession) -> int:
    """How many tasks run at a time."""
    return int(session.sparkContext.defaultParallelism)


def require_one_host(session: SparkSession, place: Place) -> None:
    """A SQLite file is for one machine: its locks do not reach another."""
    master = str(session.sparkContext.master)
    file = next((each for each in (place.database, place.transport) if each and each.startswith("sqlite:")), None)
    if file is not None and not is_local(master):
        raise DeclarationError(
            f"{file} is a SQLite file, which only one machine may write, and the master is {master}. "
            "Leave --master out to run on this machine's cores."
        )


def _build(name: str, master: str) -> SparkSession:
    # As a URI: Java's options are split at blanks.
    log4j = Path(str(importlib.resources.files("stagepost.pipeline") / "log4j2.properties")).as_uri()
    builder = (
        SparkSession.builder.master(master)
        .appName(name)
        .config(
            "spark.driver.extraJavaOptions",
            f"-Dlog4j2.configurationFile={log4j} -Duser.timezone=UTC",
        )
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.task.maxFailures", str(TASK_FAILURES_MAX))
        # The pipeline's own options are pushed to the store; filters on a DataFrame are applied by Spark.
        .config("spark.sql.python.filterPushdown.enabled", "false")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")
        # Long rows would make such a batch larger than a task has memory for.
        .config("spark.sql.execution.arrow.maxBytesPerBatch", "64m")
        # The day of a folder day=01 is a text: of a number it would be another flow's id.
        .config("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
        # Where in our code each column was made helps nobody, and takes five more questions to Java for every one.
        .config("spark.python.sql.dataFrameDebugging.enabled", "false")
        # A task that writes to the store is not to be run twice at a time: it would be harmless, and wasted.
        .config("spark.speculation", "false")
    )
    if is_local(master):
        builder = (
            builder.config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", str(os.cpu_count() or 2))
        )
    return builder.getOrCreate()
