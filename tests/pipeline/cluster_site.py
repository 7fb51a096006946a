"""A cluster for all tests of a module, and a user's side of it.

The executors have another folder than the driver. They find Stagepost and the tests, as installed packages, and not the
app's module.
"""

from __future__ import annotations

import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4
from zipfile import ZipFile

import pytest

from tests.pipeline.cluster import Cluster
from tests.pipeline.commands import Answer, Command, Commands
from tests.pipeline.postgres_books import PostgresBooks
from tests.pipeline.shop import module_of

# More than Spark takes for granted before the first executor has joined.
SLOTS = 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One for all tests of the module, with one worker."""
    folder = tmp_path_factory.mktemp("cluster")
    daemons = Commands("", folder)
    try:
        made = Cluster(daemons, folder)
        made.join(cores=SLOTS)
        yield made
    finally:
        daemons.kill_all()


@pytest.fixture
def books(new_postgres: Callable[[], str]) -> PostgresBooks:
    return PostgresBooks(new_postgres())


class Site:
    """The driver's side: an empty working folder, and the app's module in a place that only the driver knows."""

    def __init__(self, commands: Commands, cluster: Cluster, books: PostgresBooks, folder: Path) -> None:
        self.folder = folder / "driver"
        self.place = folder / "place"
        self.folder.mkdir()
        self.place.mkdir()
        self.canary = uuid4().hex
        self.url = books.url.replace("@", f":{self.canary}@", 1)
        assert self.canary in self.url
        self.make()
        self._commands = commands
        self._cluster = cluster
        self.commands: list[Command] = []

    def make(self, before: str = "", **settings: object) -> None:
        """Make the app, in a module of these settings."""
        self.app = module_of(self.place, before, **settings)
        self.module = f"{self.app.partition(':')[0]}.py"

    def zipped(self) -> Path:
        """Take the module from its place, so that it is in the zip alone."""
        packed = self.place / "app.zip"
        with ZipFile(packed, "w") as file:
            file.write(self.place / self.module, self.module)
        (self.place / self.module).unlink()
        return packed

    def packed(self) -> Path:
        """An environment, as conda-pack and venv-pack make it: a Python with its packages, and the app among them."""
        environment = self.place / "environment"
        (environment / "bin").mkdir(parents=True)
        (environment / "lib").mkdir()
        (environment / "lib" / self.module).write_text((self.place / self.module).read_text())
        python = environment / "bin" / "python"
        path = 'PYTHONPATH="$(dirname "$0")/../lib:$PYTHONPATH"'
        python.write_text(f'#!/bin/sh\n{path} exec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
        with tarfile.open(self.place / "environment.tar.gz", "w:gz") as file:
            file.add(environment, ".")
        return self.place / "environment.tar.gz"

    def process(self, *words: object, **environment: str) -> Command:
        return self.start("process", self.app, *words, **environment)

    def start(self, *words: object, **environment: str) -> Command:
        """Start a command of Stagepost on the cluster. The database comes by the environment."""
        command = [sys.executable, "-m", "stagepost", *(str(each) for each in words)]
        database = {"STAGEPOST_DATABASE": self.url}
        master = () if "--master" in words else ("--master", self._cluster.url)
        return self.run([*command, "--json", *master], {**database, **environment})

    def run(self, words: list[str], environment: dict[str, str]) -> Command:
        self.commands.append(self._commands.run(words, {**self._cluster.environment, **environment}, self.folder))
        return self.commands[-1]

    def driver_alone(self) -> dict[str, str]:
        """Let the driver find the module, and no executor: the variable goes to no other process than the driver's."""
        return {"PYTHONPATH": f"{self.place}:{self._commands.path}"}

    def leaks(self) -> list[str]:
        """The places of the password among those where it must not be."""
        return self.places_of(self.canary)

    def places_of(self, wanted: str) -> list[str]:
        """Search the logs, the event logs, all process lists, and the environment of the cluster's processes."""
        found = {**self._cluster.texts()}
        for each in self.commands:
            found |= {str(file): file.read_text(errors="replace") for file in (each.log, each.log.with_suffix(".out"))}
        for process in Path("/proc").iterdir():
            if process.name.isdecimal():
                found[f"{process}/cmdline"] = _text(process / "cmdline")
        for pid in self._cluster.pids():
            found[f"/proc/{pid}/environ"] = _text(Path(f"/proc/{pid}/environ"))
        return [name for name, text in found.items() if wanted in text]


def _text(file: Path) -> str:
    try:
        return file.read_bytes().decode(errors="replace")
    except OSError:
        return ""


@pytest.fixture
def site(commands: Commands, cluster: Cluster, books: PostgresBooks, tmp_path: Path) -> Site:
    return Site(commands, cluster, books, tmp_path)


def is_over(condition: Callable[[], object], command: Command) -> bool:
    """Or the command has failed before."""
    return bool(condition()) or not command.is_running()


def succeeded(command: Command) -> Answer:
    answer = command.answer()
    assert answer.code == 0, answer.err
    return answer
