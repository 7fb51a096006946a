"""What the commands that run on Spark share: the session, with its errors made readable, and work with a progress bar
beside it."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import click

from stagepost.cli.interruption import StopRequest
from stagepost.flow.errors import DeclarationError, StoreError

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

LOOK_SECONDS = 0.25


def master_option(command: F) -> F:
    return click.option(
        "--master", metavar="URL", help="Spark's master. Default: this machine, all of its cores. SQLite stays on one."
    )(command)


def load_job(name: str) -> Any:
    """The module of a job, which imports Spark. Raises ``DeclarationError`` where Spark is missing."""
    try:
        return importlib.import_module(f"stagepost.pipeline.jobs.{name}")
    except ImportError as error:
        raise DeclarationError(
            f"this command runs on Spark, and {error.name} is missing: pip install 'stagepost[spark]'"
        ) from error


@contextmanager
def session(name: str, master: str | None) -> Iterator[Any]:
    """A Spark session for the block, after which Java has ended too."""
    from stagepost.pipeline.session import end_java, spark_session  # noqa: PLC0415 - slow; a job was loaded before

    manager = spark_session(name, master)
    try:
        # In the main thread Spark would put its own handler of Ctrl-C in place of ours.
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
    """Do the work in a thread of its own, and look how it goes meanwhile. Raises what the work raises.

    Once there is a request to stop, ``stop`` is called again and again until the work has ended; raises ``Stopped``
    then.
    """
    request.check()

    def turn() -> None:
        if request.signal is not None:
            stop()
            return
        with suppress(StoreError):
            # What is shown may be late. Whether a database that is away is waited for, the job decides.
            look()

    result = beside(work, turn)
    request.check()
    return result


def beside(work: Callable[[], T], turn: Callable[[], None] = lambda: None) -> T:
    """Do the work in a thread of its own, and take a turn now and then until it has ended. Raises what it raises."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again below, in the thread that asked
            errors.append(error)

    thread = threading.Thread(target=run, name="job", daemon=True)
    thread.start()
    while thread.is_alive():
        turn()
        thread.join(LOOK_SECONDS)
    if errors:
        raise errors[0]
    return results[0]
