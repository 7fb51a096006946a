"""Measure each job on Spark as its input grows, on ``local[*]``.

    python -m benchmarks.job_growth initiate 30000 300000
    python -m benchmarks.job_growth process 2000 20000
    python -m benchmarks.job_growth archive 100000 1000000
    python -m benchmarks.job_growth source 1000000 10000000 --store sqlite
    python -m benchmarks.job_growth sink 30000 300000
    python -m benchmarks.job_growth reconcile 300000 3000000

``growth_jobs`` says what the input of each job is. The job runs as a process for each size, as users run it, and its
result is checked. Its time is that beside Spark's start. For a command that is a run without input. The programs of
``spark_programs`` take the time themselves, after a first job. See ``peak_memory`` for the memory.

``--conf`` gives all runs a setting of Spark. Java's heap grows up to ``spark.driver.memory``, so a lower limit shows
how much of it a job needs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.growth_jobs import JOBS, Job, Site
from benchmarks.initiate_rows import new
from benchmarks.machine import describe
from benchmarks.peak_memory import MEMORY_MAX, run_measured
from benchmarks.postgres_stage import running_server
from stagepost.ports.registry import driver_of


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.job_growth")
    parser.add_argument("job", choices=sorted(JOBS))
    parser.add_argument("sizes", type=int, nargs="+")
    parser.add_argument("--store", choices=("postgres", "sqlite"), default="postgres")
    parser.add_argument("--conf", metavar="NAME=VALUE", action="append", default=[])
    options = parser.parse_args(words)
    print(describe())
    with site_of(options.store) as site:
        empty = _run(JOBS[options.job], site, 0, options.conf)
        print(json.dumps({"size": 0, **empty}), flush=True)
        found = []
        for size in options.sizes:
            measured = _run(JOBS[options.job], site, size, options.conf)
            beside_start = measured.get("own_seconds", measured["seconds"] - empty["seconds"])
            found.append({"size": size, "beside_start": round(beside_start, 1), **measured})
            print(json.dumps(found[-1]), flush=True)
    first, last = found[0], found[-1]
    growth, time_growth, memory_growth = (last[name] / first[name] for name in ("size", "beside_start", "mebibytes"))
    print(f"{growth:.1f} times the input: {time_growth:.2f} times the time, {memory_growth:.2f} times the memory")
    return 0 if time_growth <= growth and memory_growth <= MEMORY_MAX else 1


@contextmanager
def site_of(store: str) -> Iterator[Site]:
    if store == "postgres":
        with running_server() as (server, folder):
            yield Site(folder, lambda name: new(server, name))
        return
    with TemporaryDirectory(prefix="stagepost-bench-") as name:
        folder = Path(name)
        yield Site(folder, lambda each: _new_file(folder / f"{each}.db"))


def _new_file(path: Path) -> str:
    url = f"sqlite:///{path}"
    driver_of(url).open(url)
    return url


def _run(job: Job, site: Site, size: int, settings: Sequence[str]) -> dict[str, float]:
    words, check = job(site, size)
    conf = [word for each in settings for word in ("--conf", each)]
    path = f"{site.folder}:{os.environ.get('PYTHONPATH', '')}"
    measured = run_measured(
        [sys.executable, "-m", *words, *conf], {**os.environ, **site.environment, "PYTHONPATH": path}, codes=(0, 1)
    )
    answer = json.loads(measured.out.splitlines()[-1])
    check(answer)
    found = {
        "seconds": round(measured.seconds, 1),
        "mebibytes": round(measured.mebibytes),
        "java_mebibytes": round(measured.java),
    }
    return {**found, "own_seconds": round(answer["seconds"], 1)} if "seconds" in answer else found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
