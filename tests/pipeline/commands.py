"""Stagepost's commands: as processes, the way users start them, and in this process, on a session that is there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from stagepost.cli.main import main
from stagepost.pipeline.spark_options import SparkOptions
from tests.pipeline.books import Books
from tests.pipeline.shop import module_of
from tests.places import bare_environment
from tests.processes import ROOT, Process, ProcessGroup

JAVA = "org.apache.spark"
PYTHON_OF_SPARK = "pyspark.daemon"
# A line that a job writes on a pipe once a minute.
PROGRESS = re.compile(r"^stagepost \w+: .*\(after .*\)\n", re.MULTILINE)


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
        def shared(
            name: str, options: SparkOptions, *, is_divided: bool = True, is_brief: bool = False
        ) -> Iterator[SparkSession]:
            yield spark

        for command in ("initiate", "process", "audit", "reconcile", "reconcile_rows", "archive"):
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


class Command(Process):
    """``log`` holds its standard error."""

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def answer(self) -> Answer:
        """Wait for the end. On a busy machine a command takes longer than a minute, and then it tells its progress."""
        code = self.wait()
        return Answer(code, self.log.with_suffix(".out").read_text(), PROGRESS.sub("", self.said))


class Commands:
    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._folder = folder
        self._processes = ProcessGroup()
        self.pids = self._processes.pids
        self._started: list[Command] = []

    def start(self, *words: object, **environment: str) -> Command:
        """``python -m stagepost …`` in the test's folder, on the test's store."""
        arguments = [str(each) for each in words]
        return self.run([sys.executable, "-m", "stagepost", *arguments, "--database", self._url], environment)

    @property
    def path(self) -> str:
        """Where these processes find the tests."""
        return os.pathsep.join(filter(None, [str(ROOT), bare_environment().get("PYTHONPATH")]))

    def run(self, words: list[str], environment: dict[str, str], folder: Path | None = None) -> Command:
        out = self._folder / f"command{len(self._started)}.out"
        err = out.with_suffix(".err")
        variables = {**bare_environment(), "PYTHONPATH": self.path, **self._processes.environment, **environment}
        with out.open("wb") as to, err.open("wb") as errors:
            # A shell too gives each command a process group of its own.
            process = subprocess.Popen(
                words,
                cwd=folder or self._folder,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=to,
                stderr=errors,
                start_new_session=True,
            )
        self._started.append(Command(process, err))
        return self._started[-1]

    def kill_all(self) -> None:
        for each in self._started:
            each.kill()
        self._processes.kill_all()
