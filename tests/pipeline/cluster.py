"""A real standalone cluster on this machine: a master, and workers that join and leave, each a process of its own."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from stagepost.pipeline.java import find_java, quiet_home
from tests.pipeline.commands import Command, Commands
from tests.processes import kill
from tests.waiting import wait_until

EXECUTOR = "CoarseGrainedExecutorBackend"
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"


# What a lost executor held is asked for again at once, small files are cut as large ones are, and there are few tasks.
SETTINGS = """
spark.shuffle.io.maxRetries 1
spark.shuffle.io.retryWait 100ms
spark.sql.files.openCostInBytes 0
spark.sql.shuffle.partitions 6
spark.eventLog.enabled true
spark.eventLog.compress false
"""


class Cluster:
    def __init__(self, commands: Commands, folder: Path, settings: str = SETTINGS) -> None:
        self._commands = commands
        self._folder = folder
        self._workers: list[Command] = []
        self._daemons: list[Command] = []
        self.events = folder / "events"
        self.work = folder / "work"
        self.events.mkdir()
        (folder / "conf").mkdir()
        (folder / "conf" / "spark-defaults.conf").write_text(f"{settings}spark.eventLog.dir {self.events.as_uri()}\n")
        self.environment = {
            "SPARK_CONF_DIR": str(folder / "conf"),
            "JAVA_HOME": str(quiet_home(find_java(os.environ).program)),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        master = self._start(MASTER, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self.url = wait_until(lambda: re.findall(r"spark://127\.0\.0\.1:\d+", master.said), "the master listens")[0]

    def join(self, cores: int) -> None:
        """A worker comes. An application that runs gets an executor with all of its cores."""
        words = ("--host", "127.0.0.1", "--webui-port", "0", "--cores", str(cores), "--memory", "1g")
        worker = self._start(WORKER, *words, "--work-dir", str(self.work), self.url)
        wait_until(lambda: "Successfully registered with master" in worker.said, "the worker has joined")
        self._workers.append(worker)

    def lose(self) -> None:
        """The worker that came first is killed, and with it its executor."""
        executors = set(self.executors())
        first = self._workers.pop(0)
        of_first = {pid for pid in executors if _parent(pid) == first.pid}
        first.kill()
        for pid in of_first:
            kill(pid)

    def lose_executors(self) -> None:
        """All of them are killed. Their workers start others."""
        for pid in wait_until(self.executors, "there is an executor"):
            kill(pid)

    def leave(self) -> None:
        """The worker that came last is killed, and with it its executor."""
        self._workers.insert(0, self._workers.pop())
        self.lose()

    def executors(self) -> list[int]:
        return self._commands.pids(EXECUTOR)

    def pids(self) -> list[int]:
        """Return the master, the workers, the executors and their Python processes."""
        return self._commands.pids()

    def page_urls(self) -> list[str]:
        """Return the addresses of the first pages of the master and the workers."""
        found = [re.findall(r"service '(?:Master|Worker)UI' on port (\d+)", each.said) for each in self._daemons]
        return [f"http://127.0.0.1:{port}" for ports in found for port in ports]

    def texts(self) -> dict[str, str]:
        """Return all that was logged: by the master, the workers and the executors, and in the event logs."""
        while True:
            # Spark renames an event log when its application ends.
            with suppress(FileNotFoundError):
                return self._read()

    def _read(self) -> dict[str, str]:
        files = [each for folder in (self.events, self.work) for each in folder.rglob("*") if is_text(each)]
        logs = [each for daemon in self._daemons for each in (daemon.log, daemon.log.with_suffix(".out"))]
        return {str(each): each.read_text(errors="replace") for each in [*files, *logs]}

    def _start(self, name: str, *words: str) -> Command:
        program = Path(_find_spark_home()) / "bin" / "spark-class"
        self._daemons.append(self._commands.run([str(program), name, *words], self.environment))
        return self._daemons[-1]


def is_text(file: Path) -> bool:
    return file.is_file() and file.suffix not in (".jar", ".zip", ".crc", ".gz")


def _parent(pid: int) -> int:
    try:
        return int(re.findall(r"^PPid:\t(\d+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[0])
    except OSError:
        return 0
