"""The progress of a job on Spark: a bar on a terminal, and a line now and then on a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, NamedTuple

from rich.progress import BarColumn, Progress, TextColumn

from stagepost.cli.show import duration, echo, progress
from stagepost.flow.clock import SECOND

# How often a job writes a line on a pipe.
LINE_SECONDS = 60.0


class Tasks(NamedTuple):
    """The number of tasks, rows or messages that are done, and the number of all."""

    done: int
    all: int


class JobProgress:
    """The present work of a job, and the number of its tasks that are done.

    ``describe`` is called by the job, ``look`` regularly by the thread that waits for the job.
    """

    def __init__(
        self,
        shown: Progress,
        tasks: Callable[[], Tasks | None],
        title: str,
        *,
        streams: Callable[[], str] = str,
        monotonic: Callable[[], float] = time.monotonic,
        write: Callable[[str], None] = lambda line: echo(line, err=True),
    ) -> None:
        self._shown = shown
        self._tasks = tasks
        self._title = title
        self._streams = streams
        self._text = "starting"
        self._units: Tasks | None = None
        self._monotonic = monotonic
        self._write = write
        self._begin = self._last_line = monotonic()
        self._bar = shown.add_task(self._text, total=None, units="")

    def describe(self, text: str, units: Tasks | None = None) -> None:
        """Say what the job does. ``units`` counts messages or rows; without it the bar counts Spark's tasks."""
        self._text, self._units = text, units

    def look(self) -> None:
        tasks = self._tasks()
        counted = self._units or tasks
        text = ", ".join(filter(None, (self._text, self._streams())))
        units = f"{tasks.done}/{tasks.all} tasks" if tasks is not None else ""
        total, done = (counted.all, counted.done) if counted is not None else (None, 0)
        self._shown.update(self._bar, description=text, completed=done, units=units)
        # For ``update``, None means the total as it was.
        next(each for each in self._shown.tasks if each.id == self._bar).total = total
        now = self._monotonic()
        if self._shown.disable and now - self._last_line >= LINE_SECONDS:
            self._last_line = now
            rows = "" if self._units is None else f", {self._units.done} of {self._units.all}"
            after = duration((now - self._begin) * SECOND)
            self._write(f"{self._title}: {text}{rows}{units and ', ' + units} (after {after})")


@contextmanager
def job_progress(spark: Any, title: str, *, stream_unit: str | None = None) -> Iterator[JobProgress]:
    """Show the progress of the session's jobs during the block, and first where Spark shows them itself.

    With ``stream_unit``, the name of one of the rows that streaming queries read, show the newest batch of each query.
    """
    from stagepost.pipeline.failures import SPARK_ERRORS  # noqa: PLC0415 - slow; a job was loaded before

    def tasks() -> Tasks | None:
        # If Java has died, the error of the job says so.
        with suppress(*SPARK_ERRORS):
            return running_tasks(spark.sparkContext.statusTracker())
        return None

    shown = progress(BarColumn(), TextColumn("{task.fields[units]}"))
    with shown:
        if spark.sparkContext.uiWebUrl is not None and not shown.disable:
            shown.console.print(f"Spark's own pages: {spark.sparkContext.uiWebUrl}", highlight=False)
        with stream_texts(spark, stream_unit) if stream_unit else nullcontext(str) as streams:
            yield JobProgress(shown, tasks, title, streams=streams)


@contextmanager
def stream_texts(spark: Any, unit: str = "row") -> Iterator[Callable[[], str]]:
    """Listen to the streaming queries of the session during the block. The function returns their newest batches."""
    from stagepost.pipeline.failures import SPARK_ERRORS  # noqa: PLC0415 - slow; a job was loaded before
    from stagepost.pipeline.stream_progress import StreamProgress  # noqa: PLC0415

    listener = StreamProgress(unit)
    spark.streams.addListener(listener)
    try:
        yield listener.text
    finally:
        # If Java has died, the error of the block says so.
        with suppress(*SPARK_ERRORS):
            spark.streams.removeListener(listener)


def running_tasks(tracker: Any) -> Tasks | None:
    """Return the tasks of all active stages, or None between two stages."""
    stages = [info for info in map(tracker.getStageInfo, tracker.getActiveStageIds()) if info is not None]
    return (
        Tasks(sum(each.numCompletedTasks for each in stages), sum(each.numTasks for each in stages)) if stages else None
    )
