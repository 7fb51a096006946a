"""``stagepost initiate --stream``: the runs of a folder that files keep coming into."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stagepost.cli.interruption import stoppable
from stagepost.cli.job_progress import job_progress
from stagepost.cli.show import echo
from stagepost.cli.spark import cancel_jobs, run_job
from stagepost.ports.runs import RunCounts


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
        """Add a run, and print its line to standard error."""
        self.runs += 1
        self.last_run_id = run_id
        self.rows_in += counts.rows_in or 0
        self.started += counts.started
        self.repeated += counts.repeated
        self.quarantined += counts.quarantined
        self.balanced &= counts.is_balanced
        echo(f"run {run_id}: {described(counts)}", err=True)


def described(counts: RunCounts | Total) -> str:
    return (
        f"{counts.rows_in} rows in = {counts.started} started + {counts.repeated} repeated + "
        f"{counts.quarantined} quarantined"
    )


def follow(job: Any, opened: Callable[[], Any], plan: Any, folder: str, *, is_endless: bool, **reading: Any) -> Total:
    """Run the stream until it ends, or until a signal stops it. Return the sum of its runs."""
    total = Total()
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
            lambda: job.initiate_files(spark, plan, folder, is_endless=is_endless, on_batch=total.add, **reading),
            request,
            stop,
            shown.look,
        )
    return total


def active(spark: Any) -> Sequence[Any]:
    """Return the session's running queries."""
    found: Sequence[Any] = spark.streams.active
    return found
