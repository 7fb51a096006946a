"""The common part of the commands on Spark: their options, a session, and a job in a thread beside its progress."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import click

from stagepost.cli.exits import readable_errors
from stagepost.cli.interruption import StopRequest
from stagepost.flow.errors import DeclarationError, StoreError
from stagepost.pipeline.spark_options import SparkOptions
from stagepost.runtime.service import Service

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

LOOK_SECONDS = 0.25

_OPTIONS = (
    click.option(
        "--master", metavar="URL", help="Spark's master. Default: all cores of this machine. SQLite needs one machine."
    ),
    click.option("--conf", "settings", metavar="NAME=VALUE", multiple=True, help="A setting of Spark. Repeatable."),
    click.option(
        "--py-files", metavar="FILES", multiple=True, help="The app's code for executors: .py or .zip, with commas."
    ),
    click.option("--archives", metavar="FILES", multiple=True, help="Packed environments for executors, with commas."),
)


def on_spark(command: F) -> F:
    """Add the options of Spark to a command. It gets them checked, as ``spark_options``."""

    @functools.wraps(command)
    def checked(
        *arguments: Any,
        master: str | None,
        settings: tuple[str, ...],
        py_files: tuple[str, ...],
        archives: tuple[str, ...],
        **others: Any,
    ) -> Any:
        with readable_errors():
            options = SparkOptions.read(master, settings, py_files, archives)
            options.put_on_path()
        return command(*arguments, spark_options=options, **others)

    for option in reversed(_OPTIONS):
        checked = option(checked)
    return checked  # type: ignore[return-value]  # the wrapper has the command's other parameters


def load_job(name: str) -> Any:
    """Import the module of a job, which imports Spark. Raises ``DeclarationError`` if Spark is missing."""
    try:
        return importlib.import_module(f"stagepost.pipeline.jobs.{name}")
    except ImportError as error:
        raise DeclarationError(
            f"this command runs on Spark, and {error.name} is missing: pip install 'stagepost[spark]'"
        ) from error


@contextmanager
def session(name: str, options: SparkOptions, *, is_divided: bool = True, is_brief: bool = False) -> Iterator[Any]:
    """Open a Spark session for the block. Java ends with it. The parameters are those of ``spark_session``."""
    from stagepost.pipeline.session import end_java, spark_session  # noqa: PLC0415 - slow; a job was loaded before

    manager = spark_session(name, options, is_divided=is_divided, is_brief=is_brief)
    try:
        # In the main thread, Spark would replace our handler of Ctrl-C.
        spark = run_in_thread(manager.__enter__)
        try:
            yield spark
        finally:
            manager.__exit__(None, None, None)
    finally:
        end_java()


def cancel_jobs(spark: Any) -> None:
    """End all jobs of the session."""
    from stagepost.pipeline import session as spark_sessions  # noqa: PLC0415 - slow; a job was loaded before

    spark_sessions.cancel_jobs(spark)


def is_usable(spark: Any) -> bool:
    """Return whether the session can run further jobs."""
    from stagepost.pipeline import session as spark_sessions  # noqa: PLC0415 - slow; a job was loaded before

    return spark_sessions.is_usable(spark)


def run_job(
    work: Callable[[], T], request: StopRequest, stop: Callable[[], object], look: Callable[[], None] = lambda: None
) -> T:
    """Run ``work`` in a thread, and call ``look`` regularly to show its progress. Return its result or raise its error.

    After a request to stop, call ``stop`` repeatedly until the work has ended, and raise ``Stopped``.
    """
    request.check()

    def turn() -> None:
        if request.signal is not None:
            stop()
            return
        with suppress(StoreError):
            # Progress can be late. The job itself waits for an unavailable database.
            look()

    result = run_in_thread(work, turn)
    request.check()
    return result


def run_in_thread(work: Callable[[], T], turn: Callable[[], None] = lambda: None) -> T:
    """Run ``work`` in a thread, and call ``turn`` regularly until it ends. Return its result, or raise its error."""
    results: list[T] = []
    job = Service("job", lambda: results.append(work()))
    job.start()
    while job.is_alive:
        turn()
        job.join(LOOK_SECONDS)
    if job.error is not None:
        raise job.error
    return results[0]
