"""The parts that both demos share: their screen, the commands that they run, and the kill of a working process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

LOOK_SECONDS = 0.1
# After this time without the end of a flow, a demo fails.
PATIENCE_SECONDS = 60.0

# The width of output to a file or a pipe, which has no terminal to take a width from.
out = Console(highlight=False, width=None if sys.stdout.isatty() else 140)


class DemoFailed(Exception):
    """A command failed. Its own output says why."""


def heading(number: int, title: str, what: str) -> None:
    out.print(f"\n[bold]{number}  {title}[/]  {what}")


def bar() -> Progress:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=out, transient=True)


def stagepost(name: str, *arguments: str) -> list[str]:
    """Return the command line of ``stagepost NAME``."""
    return [sys.executable, "-m", "stagepost", name, *arguments]


def result_of(line: Sequence[str], environment: Mapping[str, str] | None = None) -> Any:
    """Run a command that has the option ``--json``, and shows its progress. Return its result."""
    done = subprocess.run(line, stdout=subprocess.PIPE, check=False, env=environment)
    # An audit with findings exits with 1, and prints its result too.
    if done.returncode not in (0, 1) or not done.stdout:
        raise DemoFailed(f"stagepost {line[3]} ended with exit code {done.returncode}")
    return json.loads(done.stdout)


def kill_busiest(workers: Sequence[Mapping[str, Any]]) -> int | None:
    """Kill the worker process that runs the most messages. Return its id, or None if no process is left to kill."""
    processes = [each for each in workers if each["node"].startswith("worker@")]
    if not processes:
        return None
    victim = int(max(processes, key=lambda each: each["running"])["process"])
    try:
        os.kill(victim, signal.SIGKILL)
    except ProcessLookupError:
        return None
    return victim
