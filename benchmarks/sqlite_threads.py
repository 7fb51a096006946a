"""Measure four worker threads on SQLite against one. Handlers that only write gain nothing: one writes at a time."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.machine import watched
from benchmarks.result import Ratio
from benchmarks.sqlite_stage import ITEMS, ROUNDS, copy_of, prepare, run_engine

THREADS = 4


def measure() -> Ratio:
    with TemporaryDirectory(prefix="stagepost-bench-") as folder:
        template = Path(folder) / "template.db"
        prepare(template)
        several: list[float] = []
        one: list[float] = []
        with watched() as quiet:
            for number in range(ROUNDS):
                several.append(run_engine(copy_of(template, f"several{number}"), threads=THREADS))
                one.append(run_engine(copy_of(template, f"one{number}")))
    messages = 2 * ITEMS
    return Ratio(
        name=f"SQLite, one message a transaction, {THREADS} worker threads, synchronous=FULL",
        unit="messages/s",
        ours=[messages / seconds for seconds in several],
        limit=[messages / seconds for seconds in one],
        limit_name="one worker thread",
        goal=None,
        others=quiet.others,
    )
