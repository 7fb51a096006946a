"""List the files that one order passes through: ``python -m tests.house.crossings``.

The order is one message to an endpoint of one stage on SQLite. A worker with one stage thread runs in this process. The
trace begins at the call of ``app.start`` and ends when the stage's settlement has committed (step ``committed``). An
earlier order has opened all connections by then, and the stage thread waits for work.

All threads are traced. Time stands still for them (``still_time.py``): the stage thread looks for work only after
``app.start`` has returned, and no turn of a housekeeping thread comes due. So each run prints the same list.

A file below ``src/stagepost`` counts when one of its functions is called. The bodies of modules and classes, which an
import runs, do not count. The exit code is 1 if there are more than ``LIMIT`` files.
"""

from __future__ import annotations

import inspect
import os
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from stagepost import App, Context
from stagepost.app.app import engine_of
from stagepost.worker.child import Plan
from stagepost.worker.process import WorkerProcess
from tests.house.counting import SOURCE
from tests.house.still_time import StillTime

LIMIT = 24

BELOW = f"{SOURCE / 'stagepost'}{os.sep}"


@dataclass
class Order:
    order_id: str


class Trace:
    """A profile function. ``files`` are the files entered while it ``is_on``, each with its first function entered."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.is_on = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        # Python optimizes the locals of functions, and not those of the bodies of modules and classes.
        is_function = bool(code.co_flags & inspect.CO_OPTIMIZED)
        if self.is_on and event == "call" and is_function and code.co_filename.startswith(BELOW):
            self.files.setdefault(code.co_filename.removeprefix(BELOW), code.co_qualname)


def trace_order(folder: Path) -> dict[str, str]:
    """Run an order on a new database in the folder, and return what ``Trace.files`` has of it.

    Call it once, in a process of its own. Raises ``TimeoutError`` where the order is not settled.
    """
    trace = Trace()
    settled: set[str] = set()

    def listen(step: Any, claim: Any) -> None:
        if step == "committed":
            trace.is_on = False
            settled.add(claim.flow_id)

    app = App("shop", database=f"sqlite:///{folder / 'shop.db'}", listener=listen)

    @app.endpoint("shop.order")
    def order(ctx: Context, message: Order) -> None: ...

    # Threads that are started from here on are traced, and this one.
    threading.setprofile(trace)
    sys.setprofile(trace)
    still_time = StillTime()
    app.start(order, Order("earlier"), flow_id="earlier")
    process = WorkerProcess(
        engine_of(app), Plan("", threads=1, drain=False, grace_seconds=10.0, supervisor=os.getppid())
    )
    worker = threading.Thread(target=process.run, name="worker", daemon=True)
    worker.start()
    still_time.pass_until(lambda: "earlier" in settled)
    trace.is_on = True
    app.start(order, Order("traced"), flow_id="traced")
    still_time.pass_until(lambda: "traced" in settled)
    threading.setprofile(None)
    sys.setprofile(None)
    still_time.end()
    process.stop()
    worker.join()
    app.close()
    return trace.files


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        files = trace_order(Path(folder))
    lines = [f"{number:3}  {file:34} {function}" for number, (file, function) in enumerate(files.items(), 1)]
    print(*lines, f"{len(files)} files; the limit is {LIMIT}", sep="\n")  # noqa: T201 - it is what the command is for
    return 0 if len(files) <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
