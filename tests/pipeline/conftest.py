"""One Spark session a process, for every job that need not own its Java process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stagepost.pipeline.session import TASK_FAILURES_MAX, spark_session
from stagepost.pipeline.spark_options import SparkOptions
from stagepost.recovery import suspicion
from stagepost.runtime.watchdog import ThreadWatch
from tests.pipeline.archives import Shelf, opened
from tests.pipeline.books import Books, SqliteBooks
from tests.pipeline.cluster import Cluster
from tests.pipeline.commands import Cli, Commands
from tests.processes import ROOT

# Compiling each plan takes longer than running it here. Tests of whole commands run with what the commands set.
FOR_FEW_ROWS = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Made as the commands make it. Its Python processes find the tests by the path that Java inherits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("JAVA_HOME", os.environ.get("JAVA_HOME", ""))
        with spark_session("tests", SparkOptions(f"local[2,{TASK_FAILURES_MAX}]")) as session:
            for name, value in FOR_FEW_ROWS.items():
                session.conf.set(name, value)
            yield session


@pytest.fixture(autouse=True)
def untuned(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a shop's module shortens, it shortens in this process too, where the driver runs."""
    monkeypatch.setattr(suspicion, "PAUSE_SECONDS_FIRST", suspicion.PAUSE_SECONDS_FIRST)
    monkeypatch.setattr(ThreadWatch.__init__, "__defaults__", ThreadWatch.__init__.__defaults__)


@pytest.fixture
def books(tmp_path: Path) -> SqliteBooks:
    return SqliteBooks(tmp_path / "shop.db")


@pytest.fixture
def new_books(tmp_path: Path) -> Callable[[str], SqliteBooks]:
    return lambda name: SqliteBooks(tmp_path / f"{name}.db")


@pytest.fixture
def cli(spark: SparkSession, books: Books, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """``stagepost`` in this process, on the shared session."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return Cli(spark, books, tmp_path, monkeypatch)


@pytest.fixture
def cluster(commands: Commands, tmp_path: Path) -> Cluster:
    """Without workers, which are to join."""
    return Cluster(commands, tmp_path)


@pytest.fixture
def commands(books: Books, tmp_path: Path) -> Iterator[Commands]:
    """``python -m stagepost``, in processes of its own, all of which are gone when the test is."""
    started = Commands(books.url, tmp_path)
    yield started
    started.kill_all()


@pytest.fixture
def new_shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], Shelf]]:
    with ExitStack() as stack:

        def make(kind: str) -> Shelf:
            made = (
                request.getfixturevalue("new_postgres") if kind == "postgres" else lambda: f"sqlite:///{tmp_path}/s.db"
            )
            return stack.enter_context(opened(made(), tmp_path / "archive"))

        yield make


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.more)])
def shelf(request: pytest.FixtureRequest, new_shelf: Callable[[str], Shelf]) -> Shelf:
    return new_shelf(request.param)
