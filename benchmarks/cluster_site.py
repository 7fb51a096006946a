"""A standalone cluster on this machine, and commands of Stagepost on it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.pipeline.cluster import Cluster
from tests.pipeline.commands import Answer, Commands

APP = "bench_app:app"
MODULE = 'from benchmarks.job import make_app_on\n\napp = make_app_on("sqlite:///none.db")\n'


@dataclass(frozen=True, slots=True)
class ClusterSite:
    """A cluster, and the folder in which commands run. It has the module of ``APP``."""

    folder: Path
    commands: Commands
    cluster: Cluster

    def run(self, words: Sequence[str], url: str, *, is_local: bool = False, codes: Sequence[int] = (0,)) -> Run:
        """Run ``stagepost`` on a database: on the cluster, or on this machine alone."""
        begin = time.perf_counter()
        command = [sys.executable, "-m", "stagepost", *words, "--database", url]
        if not is_local:
            command += ["--master", self.cluster.url]
        answer = self.commands.run(command, self.cluster.environment).answer()
        seconds = time.perf_counter() - begin
        assert answer.code in codes, answer.err
        return Run(answer, seconds)


@dataclass(frozen=True, slots=True)
class Run:
    answer: Answer
    seconds: float


@contextmanager
def running_cluster(cores: Sequence[int]) -> Iterator[ClusterSite]:
    """Start a master, and a worker for each number of cores, with Spark's own settings."""
    with TemporaryDirectory(prefix="stagepost-bench-") as name:
        folder = Path(name)
        commands = Commands("", folder)
        try:
            cluster = Cluster(commands, folder, settings="")
            for each in cores:
                cluster.join(cores=each)
            (folder / f"{APP.partition(':')[0]}.py").write_text(MODULE)
            yield ClusterSite(folder, commands, cluster)
        finally:
            commands.kill_all()
