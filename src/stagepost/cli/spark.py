"""The common part of the commands on Spark: a session with readable errors, and a job beside a progress bar."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import click

from stagepost.cli.interruption import StopRequest
from stagepost.flow.errors import DeclarationError, StoreError
from stagepost.runtime.service import Service

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

LOOK_SECONDS = 0.25


def master_option(command: F) -> F:
    return click.option(
        "--master", metavar="URL", help="Spark's master. Default: this machine, all of its cores. SQLite stays on one."
    )(command)


def load_job(name: str) -> Any:
    """Import the module of a job, which imports Spark. Raises ``DeclarationError`` if Spark is missing."""
    try:
        return importlib.import_module(f"stagepost.pipeline.jobs.{name}")
    except ImportError as error:
        raise DeclarationError(
            f"this command runs on Spark, and {error.name} is missing: pip install 'stagepost[spark]'"
        ) from error


@contextmanager
def session(name: str, master: str | None) -> Iterator[Any]:
    """Open a Spark session for the block. Java ends with it."""
    from stagepost.pipeline.session import end_java, spark_session  # noqa: PLC0415 - slow; a job was loaded before

    manager = spark_session(name, master)
    try:
        # Spark would replace our handler of Ctrl-C, if it started in the main thread.
        spark = beside(manager.__enter__)
        try:
            yield spark
        finally:
            manager.__exit__(None, None, None)
    finally:
        end_java()


def break_off(spark: Any) -> None:
    from stagepost.pipeline.session import break_off as end_all  # noqa: PLC0415 - slow; a job was loaded before

    end_all(spark)


def watched(
    work: Callable[[], T], request: StopRequest, stop: Callable[[], object], look: Callable[[], None] = lambda: None
) -> T:
    """Do the work in a thread of its own, and call ``look`` for its progress meanwhile. Return its result.

    After a request to stop, ``stop`` is called repeatedly until the work has ended, and ``Stopped`` is raised. An error
    of the work is raised too.
    """
    request.check()

    def turn() -> None:
        if request.signal is not None:
            stop()
            return
        with suppress(StoreError):
            # The bar may be late. The job itself decides whether to wait for an unavailable database.
            look()

    result = beside(work, turn)
    request.check()
    return result


def beside(work: Callable[[], T], turn: Callable[[], None] = lambda: None) -> T:
    """Do the work in a thread of its own, and call ``turn`` regularly until it ends. Return its result, or raise its
    error."""
    results: list[T] = []
    job = Service("job", lambda: results.append(work()))
    job.start()
    while job.is_alive:
        turn()
        job.join(LOOK_SECONDS)
    if job.error is not None:
        raise job.error
    return results[0]
