"""The progress of a job: a bar on a terminal, a line now and then on a pipe, and nothing else on a pipe."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError
from rich.console import Console
from rich.progress import Progress

from stagepost.cli.initiate_stream import follow
from stagepost.cli.job_progress import LINE_SECONDS, JobProgress, Tasks, job_progress, running_tasks
from stagepost.cli.process import LOOKS_SHARE, QueueLook
from stagepost.pipeline.jobs.initiate import InitiationFailed
from stagepost.pipeline.stream_progress import StreamProgress
from stagepost.ports.queue import Depth, Pending


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> int:
        return 0


def shown_on(*, terminal: bool) -> Progress:
    return Progress("{task.description}", console=Console(file=io.StringIO()), disable=not terminal)


def test_on_a_pipe_a_line_comes_now_and_then() -> None:
    clock, lines = Clock(), list[str]()
    tasks: list[Tasks | None] = [None]
    made = JobProgress(
        shown_on(terminal=False), lambda: tasks[0], "stagepost initiate", monotonic=clock.monotonic, write=lines.append
    )
    made.describe("counting rows")
    made.look()
    clock.seconds = LINE_SECONDS - 1
    made.look()
    assert lines == []
    clock.seconds = LINE_SECONDS
    made.look()
    made.look()
    assert lines == ["stagepost initiate: counting rows (after 60.0 s)"]
    tasks[0] = Tasks(3, 8)
    made.describe("starting flows", Tasks(500, 2000))
    clock.seconds = 2 * LINE_SECONDS + 1
    made.look()
    assert lines[1:] == ["stagepost initiate: starting flows, 500 of 2000, 3/8 tasks (after 2 min)"]


def test_on_a_terminal_a_bar_shows_rows_or_else_tasks_and_no_line_comes() -> None:
    clock, lines = Clock(), list[str]()
    tasks: list[Tasks | None] = [Tasks(1, 4)]
    shown = shown_on(terminal=True)
    made = JobProgress(shown, lambda: tasks[0], "job", monotonic=clock.monotonic, write=lines.append)

    def bar() -> tuple[Any, ...]:
        made.look()
        (task,) = shown.tasks
        return task.description, task.completed, task.total, task.fields["units"]

    made.describe("reading")
    assert bar() == ("reading", 1, 4, "1/4 tasks")
    made.describe("writing", Tasks(10, 30))
    assert bar() == ("writing", 10, 30, "1/4 tasks")
    tasks[0] = None
    made.describe("ending")
    clock.seconds = 10 * LINE_SECONDS
    assert bar() == ("ending", 0, None, "")
    assert lines == []


def test_the_tasks_of_all_active_stages_count() -> None:
    stages = {1: SimpleNamespace(numCompletedTasks=3, numTasks=10), 2: SimpleNamespace(numCompletedTasks=0, numTasks=5)}
    tracker = SimpleNamespace(getActiveStageIds=lambda: [1, 2, 3], getStageInfo=stages.get)
    assert running_tasks(tracker) == Tasks(3, 15)
    # A stage may end between the two calls.
    assert running_tasks(SimpleNamespace(getActiveStageIds=lambda: [3], getStageInfo=stages.get)) is None


@pytest.mark.parametrize(("terminal", "url"), [(True, "http://127.0.0.1:4040"), (True, None), (False, "http://x:1")])
def test_on_a_terminal_the_address_of_sparks_pages_is_shown(
    terminal: bool, url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal)
    monkeypatch.setattr(
        "stagepost.cli.job_progress.progress", lambda *_: Progress(console=console, disable=not terminal)
    )
    context = SimpleNamespace(uiWebUrl=url, statusTracker=lambda: None)
    with job_progress(SimpleNamespace(sparkContext=context), "job"):
        pass
    assert ("Spark's own pages: http://127.0.0.1:4040" in text.getvalue()) == (terminal and url is not None)


class Queue:
    """Counts its messages slowly."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.ready = 0
        self.session = SimpleNamespace(queue=SimpleNamespace(depths=self._depths))
        self.claimer = SimpleNamespace(pending=lambda stages: Pending(self.ready > 0, True, None, None))

    def _depths(self) -> list[Depth]:
        self._clock.seconds += 2
        return [Depth("shop.order", ready=self.ready, claimed=1, delayed=0, suspect=0, dead=0, oldest_at=None)]


def test_a_queue_that_takes_long_to_count_is_counted_less_often() -> None:
    clock = Clock()
    queue: Any = Queue(clock)
    look = QueueLook(queue, ["shop.order"], clock)
    queue.ready = 99
    assert look.is_due()
    assert look.read() == ("99 ready, 1 claimed, 0 waiting", Tasks(0, 100))
    assert not look.is_due()
    clock.seconds += 2 * LOOKS_SHARE - 0.1
    assert not look.is_due()
    clock.seconds += 0.1
    assert look.is_due()
    queue.ready = 49
    assert look.read()[1] == Tasks(50, 100)
    # Handlers send more than they take.
    queue.ready = 199
    assert look.read()[1] == Tasks(0, 200)


def test_the_newest_batch_of_a_stream_is_part_of_the_progress() -> None:
    stream = StreamProgress()
    shown = shown_on(terminal=True)
    made = JobProgress(shown, lambda: None, "job", streams=stream.text)
    made.describe("starting flows")

    def text() -> str:
        made.look()
        return shown.tasks[0].description

    assert text() == "starting flows"
    progress = SimpleNamespace(runId=1, name=None, batchId=7, numInputRows=500, processedRowsPerSecond=249.6)
    stream.onQueryProgress(SimpleNamespace(progress=progress))
    assert text() == "starting flows, batch 7, 500 rows, 249.6 rows/s"
    progress.name, progress.numInputRows = "orders", 0
    stream.onQueryProgress(SimpleNamespace(progress=progress))
    assert text() == "starting flows, orders: batch 7, 0 rows"
    stream.onQueryTerminated(SimpleNamespace(runId=1))
    assert text() == "starting flows"


class Streams:
    """A session whose Java reports one batch to each listener, and may die."""

    def __init__(self, *, dies: bool) -> None:
        self._dies = dies
        self.streams = self
        self.sparkContext = SimpleNamespace(uiWebUrl=None, statusTracker=self._tracker)

    def _tracker(self) -> Any:
        return SimpleNamespace(getActiveStageIds=list, getStageInfo=None)

    def addListener(self, listener: Any) -> None:  # noqa: N802 - Spark's name
        progress = SimpleNamespace(runId=1, name=None, batchId=0, numInputRows=1, processedRowsPerSecond=0.5)
        listener.onQueryProgress(SimpleNamespace(progress=progress))

    def removeListener(self, listener: Any) -> None:  # noqa: N802
        if self._dies:
            raise Py4JNetworkError("Answer from Java side is empty")


@pytest.mark.parametrize("dies", [False, True])
def test_a_command_that_streams_files_shows_its_batches_and_its_own_error(
    monkeypatch: pytest.MonkeyPatch, *, dies: bool
) -> None:
    shown = shown_on(terminal=True)
    monkeypatch.setattr("stagepost.cli.job_progress.progress", lambda *_: shown)
    monkeypatch.setattr("stagepost.cli.initiate_stream.run_job", look_and_fail)
    with pytest.raises(InitiationFailed):
        follow(None, lambda: nullcontext(Streams(dies=dies)), None, "folder", lambda run: [], is_endless=True)
    (task,) = shown.tasks
    assert task.description == "waiting for files, batch 0, 1 file, 0.5 files/s"


def look_and_fail(_work: object, _request: object, _stop: object, look: Callable[[], None]) -> None:
    look()
    raise InitiationFailed("the stream ended")
