"""Stagepost's commands: as processes, the way users start them, and in this process, on a session that is there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from stagepost.cli.main import main
from tests.pipeline.books import Books
from tests.pipeline.shop import ROOT, module_of
from tests.pipeline.waiting import DEADLINE_SECONDS, wait_until
from tests.places import bare_environment

# Says in a process's environment, and in that of all its children, which test started it.
VARIABLE = "STAGEPOST_TESTED_BY"
JAVA = "org.apache.spark"
PYTHON_OF_SPARK = "pyspark.daemon"


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def is_one_paragraph(self) -> bool:
        """What went wrong in words, with no trace of how we found out."""
        text = self.err.strip()
        return text.startswith("error (") and "Traceback" not in text and "\tat " not in text and "\n\n" not in text


class Cli:
    def __init__(self, spark: SparkSession, books: Books, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._books = books
        self._folder = folder
        self._app = ""

        @contextmanager
        def shared(name: str, master: str | None) -> Iterator[SparkSession]:
            yield spark

        for command in ("initiate", "process", "audit"):
            __import__(f"stagepost.cli.{command}")
            patch.setattr(sys.modules[f"stagepost.cli.{command}"], "session", shared)

    @property
    def app(self) -> str:
        """The name of an app without a listener, the same one each time."""
        if not self._app:
            self._app = module_of(self._folder)
        return self._app

    def __call__(self, command: str, *arguments: str, url: str | None = None) -> Answer:
        """Raises what is not an error in Stagepost's words."""
        done = CliRunner().invoke(main, [command, *arguments, "--database", url or self._books.url])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return Answer(done.exit_code, done.stdout, done.stderr)

    def initiate(self, *arguments: object, to: str = "shop.product", by: str = "sku") -> Answer:
        words = [str(each) for each in arguments]
        return self("initiate", *words, "--to", to, "--id", by, "--app", self.app, "--json")

    def audit(self, *arguments: str) -> Answer:
        return self("audit", "--json", *arguments)


class Command:
    """One that was started, with what it wrote."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path, err: Path) -> None:
        self._process = process
        self._out = out
        self._err = err
        self.pid = process.pid

    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def said(self) -> str:
        """What it has written to standard error until now."""
        return self._err.read_text(errors="replace")

    def wait(self) -> Answer:
        wait_until(lambda: not self.is_running(), f"{self._process.args!r} has ended")
        return Answer(self._process.returncode, self._out.read_text(), self._err.read_text(errors="replace"))

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Commands:
    def __init__(self, books: Books, folder: Path) -> None:
        self._books = books
        self._folder = folder
        self._name = uuid.uuid4().hex
        self._started: list[Command] = []

    def start(self, *words: object, **environment: str) -> Command:
        """``python -m stagepost …`` in the test's folder, on the test's store."""
        arguments = [str(each) for each in words]
        return self.run([sys.executable, "-m", "stagepost", *arguments, "--database", self._books.url], environment)

    def run(self, words: list[str], environment: dict[str, str], folder: Path | None = None) -> Command:
        out = self._folder / f"command{len(self._started)}.out"
        err = out.with_suffix(".err")
        kept = bare_environment()
        path = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH")]))
        variables = {**kept, "PYTHONPATH": path, VARIABLE: self._name, **environment}
        with out.open("wb") as to, err.open("wb") as errors:
            process = subprocess.Popen(
                words, cwd=folder or self._folder, env=variables, stdin=subprocess.DEVNULL, stdout=to, stderr=errors
            )
        self._started.append(Command(process, out, err))
        return self._started[-1]

    def pids(self, part: str = "") -> list[int]:
        """Processes of this test, children of children included, whose command line holds ``part``."""
        return [
            pid
            for pid in map(int, filter(str.isdecimal, (each.name for each in Path("/proc").iterdir())))
            if self._is_ours(pid, part)
        ]

    def end_all(self) -> None:
        for each in self._started:
            each.kill()
        wait_until(self._are_gone, "all processes of the test are gone")

    def _are_gone(self) -> bool:
        left = self.pids()
        for pid in left:
            kill(pid)
        return not left

    def _is_ours(self, pid: int, part: str) -> bool:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        except OSError:
            return False
        return f"{VARIABLE}={self._name}".encode() in environment and part.encode() in command


def kill(pid: int) -> None:
    """Nothing where it has ended by itself meanwhile."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


__all__ = ["DEADLINE_SECONDS", "JAVA", "PYTHON_OF_SPARK", "Answer", "Cli", "Command", "Commands", "kill"]
