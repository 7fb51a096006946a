"""Run every benchmark (``make bench``), or only the named ones (``make bench ARGS="sqlite_stage"``)."""

from __future__ import annotations

import importlib
import sys

from benchmarks.machine import describe
from benchmarks.result import Result

BENCHMARKS = (
    "sqlite_stage",
    "sqlite_threads",
    "postgres_stage",
    "postgres_batches",
    "stored_rows",
    "audit_rows",
    "archive_rows",
    "audit_small",
    "audit_cluster",
    "initiate_rows",
    "initiate_cluster",
    "sink_rows",
    "stalled_queue",
    "purge_beside_worker",
    "process_executors",
    "gateway",
    "broker_stage",
    "broker_latency",
    "stalled_broker",
)
# Benchmarks that run only if they are named. They measure a layout that was decided once.
BY_NAME_ONLY = ("journal_lines",)


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in BENCHMARKS + BY_NAME_ONLY]
    if unknown:
        print(f"there is no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    print(describe())
    is_success = True
    for name in names or BENCHMARKS:
        result: Result = importlib.import_module(f"benchmarks.{name}").measure()
        print("\n".join(["", *result.lines()]), flush=True)
        is_success = is_success and result.is_valid and result.is_reached
    return 0 if is_success else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
