"""Streams of files into the sink, and faults of the driver's side, where Spark's Python process commits a batch."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from pyspark_stagepost import sink
from stagepost.pipeline.sink import SinkPlan, StagedTask, commit_batch
from stagepost.ports.runs import RunCounts
from tests.faults.handler_faults import wait_at

ORDERS = "order_id string, quantity int"


def put(folder: Path, name: str, *rows: tuple[str, int]) -> None:
    """Files come into a folder whole."""
    folder.mkdir(exist_ok=True)
    hidden = folder / f".{name}"
    hidden.write_text("".join(json.dumps({"order_id": order, "quantity": number}) + "\n" for order, number in rows))
    hidden.rename(folder / name)


def options(app: str, **more: str) -> dict[str, str]:
    return {"app": app, "target": "shop.order", "idColumns": "order_id", "flowPrefix": "o", **more}


def run_stream(spark: SparkSession, files: Path, checkpoint: Path, app: str, **more: str) -> None:
    """Start the flows of all files that are not done, and end."""
    rows = spark.readStream.schema(ORDERS).json(str(files))
    writer = rows.writeStream.format("stagepost").options(**options(app, **more))
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


def kill_once(module: str, place: str, marker: str) -> None:
    """Kill the process that commits a batch of this app, once: when it is ``staged``, or ``committed``."""
    _at(module, place, lambda: _die_once(Path(marker)))


def wait(module: str, place: str, gate: str) -> None:
    """Hold the process that commits a batch of this app, until the gate is open."""

    def hold() -> None:
        Path(f"{gate}.entered").touch()
        wait_at(gate)

    _at(module, place, hold)


def _at(module: str, place: str, fault: Callable[[], None]) -> None:
    """Put the fault into this process, which Spark uses for later apps too. Only the latest fault stays."""

    def faulty(plan: SinkPlan, tasks: Sequence[StagedTask]) -> RunCounts | None:
        is_ours = plan.app.partition(":")[0] == module
        if is_ours and place == "staged":
            fault()
        counts = commit_batch(plan, tasks)
        if is_ours and place == "committed":
            fault()
        return counts

    sink.commit_batch = faulty  # type: ignore[attr-defined] # where Spark's process finds it


def _die_once(marker: Path) -> None:
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)
