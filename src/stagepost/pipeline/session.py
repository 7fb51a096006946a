"""The Spark session of a job: on this machine, on a cluster, or under spark-submit."""

from __future__ import annotations

import importlib.resources
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from py4j.java_gateway import JavaGateway
from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from stagepost.flow.errors import DeclarationError
from stagepost.flow.texts import as_sentence
from stagepost.pipeline.failures import SPARK_ERRORS, describe_error
from stagepost.pipeline.java import provide_java
from stagepost.pipeline.java_errors import JavaErrors
from stagepost.pipeline.spark_options import MASTER, REQUIRED, TIME_ZONE, SparkOptions, is_on
from stagepost.ports.registry import require
from stagepost.runtime.settings import Place

# A killed Python worker fails its task. The job continues, so a task may fail this often.
TASK_FAILURES_MAX = 8
LOCAL = f"local[*,{TASK_FAILURES_MAX}]"
# Spark's own default.
LOCAL_OF_SPARK = "local[*]"
SHUFFLES = "spark.sql.shuffle.partitions"
CONSOLE_BAR = "spark.ui.showConsoleProgress"
# How often the executors of a cluster take a part of a shuffle in turn.
SHUFFLES_PER_SLOT = 2
# The executors of a cluster join soon after the session has started. These are the longest wait for the first one, and
# the time after which no other one is expected.
JOIN_SECONDS = 10.0
SETTLED_SECONDS = 1.0
LOOK_SECONDS = 0.1
DYNAMIC = "spark.dynamicAllocation.enabled"
DESCRIPTION = "spark.job.description"
SPECULATION = "spark.speculation"
# Java would choose a collector with threads of its own, and few processors have no time for these beside Spark's.
SERIAL = "-XX:+UseSerialGC"
FEW_PROCESSORS = 2
# Java's first compiler alone: its code runs slower, and is there sooner.
QUICK = "-XX:TieredStopAtLevel=1"
JAVA_DEFAULTS = "spark.driver.defaultJavaOptions"
EXECUTOR_JAVA_DEFAULTS = "spark.executor.defaultJavaOptions"
JAVA_SETTINGS = (JAVA_DEFAULTS, "spark.driver.extraJavaOptions", "spark.driver.memory")
JAVA_VARIABLES = ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
# Where the executors find Python, if the variable PYSPARK_PYTHON does not say it.
EXECUTOR_PYTHON = "spark.pyspark.python"
# The variable by which spark-submit names its Java process to this one.
SUBMITTED_VARIABLE = "PYSPARK_GATEWAY_PORT"

# A user's settings take precedence over these.
DEFAULTS = {
    "spark.task.maxFailures": str(TASK_FAILURES_MAX),
    # The pages of several jobs on one machine need several ports.
    "spark.port.maxRetries": "100",
    # The pipeline's own options are pushed to the store; filters on a DataFrame are applied by Spark.
    "spark.sql.python.filterPushdown.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    # Long rows would make such a batch larger than a task has memory for.
    "spark.sql.execution.arrow.maxBytesPerBatch": "64m",
    # Spark would record each column's place in our code, which takes five more calls to Java for each.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
# A shell's Java process has a value for these, which is not the user's.
OWN = {CONSOLE_BAR: "false"}
LOCAL_DEFAULTS = {
    # Spark would listen on a network address of this machine, which other machines can reach.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    SHUFFLES: str(os.cpu_count() or 2),
}


# Those of the Java process that this process has started.
_java_errors: list[JavaErrors] = []


def is_local(master: str) -> bool:
    return master.startswith("local")


@contextmanager
def spark_session(
    name: str, options: SparkOptions | None = None, *, is_divided: bool = True, is_brief: bool = False
) -> Iterator[SparkSession]:
    """Open a session that ends with the block. Raises ``DeclarationError`` if no Java is found, or Spark cannot start.

    ``is_divided``  the jobs are divided by the slots, so a session on a cluster first waits for its executors
    ``is_brief``    the jobs have few rows, and end before it pays that Java compiles them well

    Under spark-submit, its Java process and its settings are used.
    """
    options = options or SparkOptions()
    for each in _java_errors:
        each.hold()
    try:
        session = _build(name, options, is_divided=is_divided, is_brief=is_brief)
        _silence_lost_calls(session)
    except SPARK_ERRORS as error:
        reason = _reason(error)
        for each in _java_errors:
            each.drop()
        master = options.master or "of its settings"
        raise DeclarationError(
            f"Spark cannot start with the master {master}: {as_sentence(reason)} Look at the address of the master,"
            " at whether it runs, and at the settings of --conf."
        ) from error
    finally:
        for each in _java_errors:
            each.pass_on()
    try:
        yield session
    finally:
        # If Java has died, the error of the block says so.
        with suppress(*SPARK_ERRORS):
            session.stop()


def end_java() -> None:
    """End the Java process that sessions of this process share, and wait for it. The next session starts another.

    Without this, Java would end soon after this process, and hold its standard output open until then. The process of
    spark-submit is not ended.
    """
    gateway = SparkContext._gateway  # noqa: SLF001 - PySpark has no public name for the process
    if gateway is None or gateway.proc is None:
        return
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    while _java_errors:
        _java_errors.pop().wait()


def cancel_jobs(session: SparkSession) -> None:
    """End all jobs of the session. First close Java's standard error, where Spark would report each job."""
    assert session.sparkContext._jvm is not None  # noqa: SLF001 - PySpark has no other way to Java
    # If Java has died, its jobs have ended.
    with suppress(*SPARK_ERRORS):
        session.sparkContext._jvm.java.lang.System.err.close()  # noqa: SLF001
        session.sparkContext.cancelAllJobs()


def is_usable(session: SparkSession) -> bool:
    """Return whether the session can run further jobs. It cannot after Java died, or after Spark was stopped."""
    try:
        return not session.sparkContext._jsc.sc().isStopped()  # noqa: SLF001 - PySpark has no other way to Java
    except SPARK_ERRORS:
        return False


@contextmanager
def job_description(session: SparkSession, text: str) -> Iterator[None]:
    """Name the jobs that this thread starts within the block, for Spark's own pages."""
    context = session.sparkContext
    before = context.getLocalProperty(DESCRIPTION)
    context.setJobDescription(text)
    try:
        yield
    finally:
        # If Java has died, the error of the block says so.
        with suppress(*SPARK_ERRORS):
            context.setJobDescription(before)  # type: ignore[arg-type]  # None removes it


@contextmanager
def with_settings(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set the session, which may be the user's own, during the block."""
    before = {name: session.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            session.conf.set(name, value)
        yield
    finally:
        # If Java has died, the error of the block says so.
        with suppress(*SPARK_ERRORS):
            for name, former in before.items():
                if former is None:
                    session.conf.unset(name)
                else:
                    session.conf.set(name, former)


def slots(session: SparkSession) -> int:
    """Return into how many tasks a job is divided. It is 2 before the first executor of a cluster has come."""
    return int(session.sparkContext.defaultParallelism)


def slots_now(session: SparkSession) -> int:
    """Return how many tasks the present executors run at a time. It is 0 before the first one has come."""
    context = session.sparkContext._jsc.sc()  # noqa: SLF001 - PySpark has no other way to Java
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))


def time_zone(session: SparkSession) -> str:
    """Return the zone in which the session turns timestamps into texts."""
    return str(session.conf.get(TIME_ZONE))


def require_driver(session: SparkSession) -> None:
    """Raise ``DeclarationError`` for a session of Spark Connect, whose driver runs elsewhere."""
    if not hasattr(session, "_jsparkSession"):
        raise DeclarationError(
            "the session is one of Spark Connect, whose driver runs elsewhere. Make a session of this process, by "
            'SparkSession.builder.master(…). Or write the rows with df.write.format("stagepost"), if Stagepost and the '
            "app are installed where the server of Spark Connect runs."
        )


def refuse_speculation(session: SparkSession, harm: str) -> None:
    """Raise ``DeclarationError`` for a session, of a user's own, that runs copies of slow tasks.

    ``harm`` is the harm that the death of the slower copy does to the job.
    """
    if is_on(session.sparkContext.getConf().get(SPECULATION)):
        raise DeclarationError(
            f"{SPECULATION} is on: Spark kills the slower of two copies of a task, and {harm}. Make the session with "
            f"{SPECULATION}=false."
        )


def require_one_host(session: SparkSession, place: Place) -> None:
    """Raise ``CapabilityMissing`` if executors on other machines could not use a store."""
    master = str(session.sparkContext.master)
    if not is_local(master):
        why = f"Other machines cannot use it, and the master is {master}. Leave --master out to run on this machine."
        for url in filter(None, (place.database, place.queue)):
            require(url, "shared", why)


def wait_for_slots(
    slots: Callable[[], int],
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return when there are slots and their number has not changed for a second, or after ten seconds."""
    begin = changed = now = monotonic()
    seen = slots()
    while now - begin < JOIN_SECONDS and (not seen or now - changed < SETTLED_SECONDS):
        sleep(LOOK_SECONDS)
        found, now = slots(), monotonic()
        if found != seen:
            seen, changed = found, now


def _build(name: str, options: SparkOptions, *, is_divided: bool, is_brief: bool) -> SparkSession:
    if SUBMITTED_VARIABLE not in os.environ:
        _start_java(options, is_brief=is_brief)
    SparkContext._ensure_initialized()  # noqa: SLF001 - only Java knows the settings of spark-defaults.conf
    conf = SparkConf()
    conf.setAppName(name)
    master = options.master or conf.get(MASTER, LOCAL_OF_SPARK) or LOCAL_OF_SPARK
    conf.setMaster(LOCAL if master == LOCAL_OF_SPARK else master)
    for each, value in {**DEFAULTS, **(LOCAL_DEFAULTS if is_local(master) else {})}.items():
        conf.setIfMissing(each, value)
    for each, value in {**OWN, **options.settings, **REQUIRED}.items():
        conf.set(each, value)
    if options.archives:
        # YARN distributes archives itself.
        conf.set("spark.yarn.dist.archives" if master == "yarn" else "spark.archives", ",".join(options.archives))
    session = SparkSession.builder.config(conf=conf).getOrCreate()
    for each in options.py_files:
        session.sparkContext.addPyFile(each)
    # With dynamic allocation, executors come for tasks that wait.
    if is_divided and not is_local(master) and not is_on(conf.get(DYNAMIC)):
        wait_for_slots(lambda: slots_now(session))
    if not conf.contains(SHUFFLES):
        session.conf.set(SHUFFLES, str(SHUFFLES_PER_SLOT * slots(session)))
    return session


def _silence_lost_calls(session: SparkSession) -> None:
    """Print no stack traces when Java dies. The error of the job says it in a line.

    Py4J logs each call without an answer, some with the root logger. PySpark prints the broken connection of its
    accumulators.
    """
    logging.getLogger().addFilter(_is_not_of_py4j)
    logging.getLogger("py4j").propagate = False
    server = session.sparkContext._accumulatorServer  # noqa: SLF001 - PySpark has no setting for it
    server.handle_error = lambda request, client_address: None  # type: ignore[method-assign]


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return record.module != "java_gateway"


def _reason(error: Exception) -> str:
    """Return why Spark did not start, without the stack traces of a stopped context."""
    text = describe_error(error).rstrip(".")
    if "JAVA_GATEWAY_EXITED" in text and _java_errors:
        return _java_errors[-1].reason() or text
    return "the master does not answer, or has ended the application" if "stopped SparkContext" in text else text


def _start_java(options: SparkOptions, *, is_brief: bool) -> None:
    """Start the Java process of this process, unless it runs. Some settings count at its start only."""
    provide_java()
    # Java looks for the data source by this Python, so it must be known before.
    python = options.settings.get(EXECUTOR_PYTHON) or _default(EXECUTOR_PYTHON) or sys.executable
    os.environ.setdefault("PYSPARK_PYTHON", python)
    at_start = SparkConf(loadDefaults=False)
    if not _has_java_options(options):
        at_start.set(JAVA_DEFAULTS, " ".join(_java_defaults(is_brief=is_brief)))
    # A worker's environment may choose a collector for its executors, so no option here does.
    if is_brief and not _default(EXECUTOR_JAVA_DEFAULTS):
        at_start.set(EXECUTOR_JAVA_DEFAULTS, QUICK)
    if is_local(options.master or _default(MASTER) or LOCAL):
        # Spark's pages listen on the address of this variable, and by default on all addresses of the machine.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Java's options are split at blanks, and a URI has none.
    log4j = Path(str(importlib.resources.files("stagepost.pipeline") / "log4j2.properties")).as_uri()
    own = f"-Dlog4j2.configurationFile={log4j} -Duser.timezone=UTC"
    given = os.environ.get("SPARK_SUBMIT_OPTS", "")
    if own not in given:
        os.environ["SPARK_SUBMIT_OPTS"] = f"{own} {given}".strip()
    # Spark would switch its own bar on, because this process looks like a shell to it.
    at_start.set(CONSOLE_BAR, OWN[CONSOLE_BAR])
    for name, value in options.settings.items():
        at_start.set(name, value)
    if SparkContext._gateway is None:  # noqa: SLF001 - PySpark has no public name for the process
        SparkContext._ensure_initialized(gateway=_launch(at_start))  # noqa: SLF001


def _launch(at_start: SparkConf) -> JavaGateway:
    """Start Java in a process group of its own. Ctrl-C on a terminal comes to this process alone, which ends Java."""
    reader, writer = os.pipe()
    _java_errors.append(JavaErrors(reader))
    try:
        gateway: JavaGateway = launch_gateway(  # type: ignore[no-untyped-call]  # PySpark has no types there
            at_start, {"stderr": writer, "start_new_session": True}
        )
        return gateway
    finally:
        os.close(writer)


def _java_defaults(*, is_brief: bool) -> Iterator[str]:
    if (os.cpu_count() or 1) <= FEW_PROCESSORS:
        yield SERIAL
    if is_brief:
        yield QUICK


def _has_java_options(options: SparkOptions) -> bool:
    """Return whether a user gave options for Java, which does not start with two collectors."""
    settings = (options.settings.get(each) or _default(each) for each in JAVA_SETTINGS)
    return any((*settings, *map(os.environ.get, JAVA_VARIABLES)))


def _default(name: str) -> str | None:
    """Return the value of a setting in ``spark-defaults.conf``. Java reads that file too late for this question."""
    folder = os.environ.get("SPARK_CONF_DIR") or str(Path(_find_spark_home()) / "conf")
    try:
        text = (Path(folder) / "spark-defaults.conf").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.findall(rf"^\s*{re.escape(name)}[\s=:]+(\S+)", text, re.MULTILINE)
    return found[-1] if found else None
