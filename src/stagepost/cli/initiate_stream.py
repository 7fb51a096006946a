"""``stagepost initiate --stream``: the runs of a folder that files keep coming into."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from stagepost.cli.interruption import stoppable
from stagepost.cli.job_progress import job_progress
from stagepost.cli.show import echo
from stagepost.cli.spark import cancel_jobs, run_job
from stagepost.flow.errors import StoreError
from stagepost.flow.texts import one_line
from stagepost.ports.runs import Quarantined, RunCounts


@dataclass
class Total:
    """The sum of the runs that have ended."""

    runs: int = 0
    last_run_id: str | None = None
    rows_in: int = 0
    started: int = 0
    repeated: int = 0
    quarantined: int = 0
    balanced: bool = True

    def add(self, run_id: str, counts: RunCounts) -> None:
        self.runs += 1
        self.last_run_id = run_id
        self.rows_in += counts.rows_in or 0
        self.started += counts.started
        self.repeated += counts.repeated
        self.quarantined += counts.quarantined
        self.balanced &= counts.is_balanced


def described(counts: RunCounts | Total) -> str:
    return (
        f"{counts.rows_in} rows in = {counts.started} started + {counts.repeated} repeated + "
        f"{counts.quarantined} quarantined"
    )


def quarantine_lines(run_id: str, rows: Sequence[Quarantined]) -> Iterator[str]:
    """Yield a line for each of a run's first quarantined rows, and the command that lists all of them."""
    for row in rows:
        yield f"  quarantined  {one_line(row.file)} record {row.record}: {one_line(row.reason)}"
    yield f"  stagepost quarantine list --run {run_id} lists all of them"


def follow(
    job: Any,
    opened: Callable[[], Any],
    plan: Any,
    folder: str,
    first_quarantined: Callable[[str], Sequence[Quarantined]],
    *,
    is_endless: bool,
    **reading: Any,
) -> Total:
    """Run the stream until it ends, or until a signal stops it. Return the sum of its runs.

    Each run that ended is printed to standard error. ``first_quarantined`` returns the first quarantined rows of a run.
    """
    total = Total()

    def add(run_id: str, counts: RunCounts) -> None:
        total.add(run_id, counts)
        echo(f"run {run_id}: {described(counts)}", err=True)
        if counts.quarantined:
            rows: Sequence[Quarantined] = ()
            # The run has ended, so the stream continues without the reason.
            with suppress(StoreError):
                rows = first_quarantined(run_id)
            for line in quarantine_lines(run_id, rows):
                echo(line, err=True)

    with (
        stoppable() as request,
        opened() as spark,
        job_progress(spark, "stagepost initiate", stream_unit="file") as shown,
    ):
        shown.describe("waiting for files")

        def stop() -> None:
            cancel_jobs(spark)
            for query in active(spark):
                query.stop()

        run_job(
            lambda: job.initiate_files(spark, plan, folder, is_endless=is_endless, on_batch=add, **reading),
            request,
            stop,
            shown.look,
        )
    return total


def active(spark: Any) -> Sequence[Any]:
    """Return the session's running queries."""
    found: Sequence[Any] = spark.streams.active
    return found
