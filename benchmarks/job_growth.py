"""Measure ``initiate``, ``process`` and ``archive`` as their input grows, on PostgreSQL and ``local[*]``.

    python -m benchmarks.job_growth initiate 30000 300000
    python -m benchmarks.job_growth process 2000 20000
    python -m benchmarks.job_growth archive 100000 1000000

The input is rows of a CSV file, messages, or lines of the journal. The command runs as a process for each size, as
users run it. Its time is that beside a run without input, which is mostly Spark's start. See ``peak_memory`` for its
memory.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg

from benchmarks import audit_rows
from benchmarks.initiate_rows import APP, TEXT, new
from benchmarks.job import make_app_on, start
from benchmarks.machine import describe
from benchmarks.peak_memory import MEMORY_MAX, run_measured
from benchmarks.postgres_stage import TABLE, running_server
from stagepost.flow.clock import HOUR, SystemClock
from stagepost.ports.registry import driver_of

KEEP = 24


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.job_growth")
    parser.add_argument("job", choices=sorted(JOBS))
    parser.add_argument("sizes", type=int, nargs="+")
    options = parser.parse_args(words)
    print(describe())
    with running_server() as (server, folder):
        begin = _run(options.job, new(server, "nothing"), folder, 0)
        print(json.dumps({"size": 0, **begin}), flush=True)
        found = []
        for size in options.sizes:
            measured = _run(options.job, new(server, f"size{size}"), folder, size)
            beside = round(measured["seconds"] - begin["seconds"], 1)
            found.append({"size": size, **measured, "beside_start": beside})
            print(json.dumps(found[-1]), flush=True)
    first, last = found[0], found[-1]
    growth, time_growth, memory_growth = (last[name] / first[name] for name in ("size", "beside_start", "mebibytes"))
    print(f"{growth:.1f} times the input: {time_growth:.2f} times the time, {memory_growth:.2f} times the memory")
    return 0 if time_growth <= growth and memory_growth <= MEMORY_MAX else 1


def _run(job: str, url: str, folder: Path, size: int) -> dict[str, float]:
    (folder / "growth_app.py").write_text(APP.format(url=url))
    words = JOBS[job](url, folder, size)
    variables = {**os.environ, "STAGEPOST_DATABASE": url, "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}
    begin = time.perf_counter()
    _, mebibytes = run_measured([sys.executable, "-m", "stagepost", job, *words, "--json"], variables)
    return {"seconds": round(time.perf_counter() - begin, 1), "mebibytes": round(mebibytes)}


def _rows(url: str, folder: Path, size: int) -> list[str]:
    file = folder / f"items{size}.csv"
    file.write_text("n,text\n" + "".join(f"{n},{TEXT}\n" for n in range(size)))
    return [str(file), "--to", "bench.first", "--id", "n", "--app", "growth_app:app"]


def _messages(url: str, folder: Path, size: int) -> list[str]:
    with psycopg.connect(url) as connection:
        connection.execute(TABLE)
    app = make_app_on(url)
    # The first of two stages sends a message to the second one.
    start(app, size // 2)
    app.close()
    return ["growth_app:app"]


def _lines(url: str, folder: Path, size: int) -> list[str]:
    """Write lines of ended flows, and let all of them become old."""
    with closing(driver_of(url).open_existing(url, "the benchmark").session()) as session:
        if size:
            audit_rows.fill_session(session, size // (3 * len(audit_rows.STAGES)))
        session.begin()
        session.retention.declare("bench", {"@journal": KEEP})
        session.commit()
        for hour in range(KEEP + 2):
            session.begin()
            session.retention.count_hour(SystemClock().now() + hour * HOUR)
            session.commit()
        mark = session.retention.mark(session.retention.hours())
        assert mark is not None
        session.begin()
        session.retention.cut(mark.line)
        session.commit()
    return [str(folder / f"archive{size}")]


# Each makes its input, and returns the words of its command.
JOBS: dict[str, Callable[[str, Path, int], list[str]]] = {
    "initiate": _rows,
    "process": _messages,
    "archive": _lines,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
