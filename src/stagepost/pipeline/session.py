"""The Spark session of a job, on this machine or on a cluster, and the plan that its tasks load the app by."""

from __future__ import annotations

import importlib.resources
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from stagepost.app.app import engine_of
from stagepost.app.loading import load_app
from stagepost.pipeline.java import provide_java
from stagepost.ports.registry import require
from stagepost.runtime.engine import Engine
from stagepost.runtime.settings import Place

# A killed Python worker fails its task. The job continues, so a task may fail this often.
TASK_FAILURES_MAX = 8
LOCAL = f"local[*,{TASK_FAILURES_MAX}]"


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """The plan of a job. It is pickled to the tasks, so it holds no connection and no open file.

    ``folder`` holds the app's module.
    """

    app: str
    folder: str
    place: Place

    def load(self) -> Engine:
        engine = engine_of(load_app(self.app, Path(self.folder)))
        engine.databases.place = self.place
        return engine


def is_local(master: str) -> bool:
    return master.startswith("local")


@contextmanager
def spark_session(name: str, master: str | None = None) -> Iterator[SparkSession]:
    """Open a session that ends with the block. ``master`` defaults to all cores of this machine.

    Raises ``DeclarationError`` if no Java is found.
    """
    provide_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Spark would listen on a network address of this machine, which other machines can reach.
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

    Without this, Java would end soon after this process, and hold its standard output open until then.
    """
    gateway = SparkContext._gateway  # noqa: SLF001 - PySpark has no public name for the process
    if gateway is None or gateway.proc is None:
        return
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


def cancel_jobs(session: SparkSession) -> None:
    """End all jobs of the session. First close Java's standard error, where Spark would report each job."""
    assert session.sparkContext._jvm is not None  # noqa: SLF001 - PySpark has no other way to Java
    session.sparkContext._jvm.java.lang.System.err.close()  # noqa: SLF001
    session.sparkContext.cancelAllJobs()


def slots(session: SparkSession) -> int:
    """Return how many tasks run at a time."""
    return int(session.sparkContext.defaultParallelism)


def require_one_host(session: SparkSession, place: Place) -> None:
    """Raise ``CapabilityMissing`` if executors on other machines could not use a store."""
    master = str(session.sparkContext.master)
    if not is_local(master):
        why = f"Other machines cannot use it, and the master is {master}. Leave --master out to run on this machine."
        for url in filter(None, (place.database, place.queue)):
            require(url, "shared", why)


def _build(name: str, master: str) -> SparkSession:
    # Java's options are split at blanks, and a URI has none.
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
        # The value 01 of a folder day=01 stays text, because the number 1 would give another flow id.
        .config("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
        # Spark would record each column's place in our code, which takes five more calls to Java for each.
        .config("spark.python.sql.dataFrameDebugging.enabled", "false")
        # A speculative second run of a task that writes to the store would only waste time.
        .config("spark.speculation", "false")
    )
    if is_local(master):
        builder = (
            builder.config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", str(os.cpu_count() or 2))
        )
    return builder.getOrCreate()
