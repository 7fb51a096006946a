"""``stagepost process`` on a real cluster, with the app shipped as users ship it, and secrets kept where they belong.

The executors have another folder than the driver. They find Stagepost and the tests, as installed packages, and not the
app's module.
"""

from __future__ import annotations

import json
import re
import sys
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4
from zipfile import ZipFile

import pytest
from pyspark.find_spark_home import _find_spark_home

from tests.pipeline.books import orders
from tests.pipeline.cluster import Cluster
from tests.pipeline.commands import Answer, Command, Commands
from tests.pipeline.postgres_books import PostgresBooks
from tests.pipeline.shop import STAGES, module_of
from tests.pipeline.sink_streams import put
from tests.pipeline.spark_pages import answers, free_port, pages
from tests.waiting import wait_until

pytestmark = [pytest.mark.more, pytest.mark.heavy]

SLOTS = 2


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


def test_an_app_in_a_zip_runs_on_executors_and_a_password_is_seen_nowhere(
    site: Site, books: PostgresBooks, cluster: Cluster, tmp_path: Path
) -> None:
    """While a handler waits, Spark's pages are up, and say what runs. The user's settings count."""
    flows = [*orders(1, f"gate={tmp_path}/gate", name="gated"), *orders(40)]
    books.start(flows)
    port, known = free_port(), uuid4().hex
    settings = ("--conf", f"spark.ui.port={port}", "--conf", f"spark.a.b=c {known}")
    command = site.process("--py-files", site.zipped(), *settings)
    wait_until(partial(is_over, (tmp_path / "gate.entered").exists, command), "a handler runs")
    assert command.is_running(), command.said
    ui = f"http://127.0.0.1:{port}"
    wait_until(lambda: books.committed() >= 40 * len(STAGES), "all other messages are handled")
    rest = wait_until(partial(with_all_loops, ui), "each slot has a claim loop")
    running = [job["description"] for job in rest["jobs"] if job["status"] == "RUNNING"]
    assert [each for each in running if not re.fullmatch(r"stagepost process: \d+ claim loops", each)] == []
    assert ["spark.a.b", f"c {known}"] in rest["environment"]["sparkProperties"]
    assert rest["environment"]["sparkProperties"].count(["spark.speculation", "false"]) == 1
    seen = {url: text for start in (ui, *cluster.page_urls()) for url, text in pages(start).items()}
    assert len(seen) > 15
    assert any("stagepost process: " in text for text in seen.values())
    # The search finds a setting that is no secret.
    places = site.places_of(known)
    assert any("/events/" in each for each in places)
    assert any(each.endswith("/cmdline") for each in places)
    seen |= {name: json.dumps(answer) for name, answer in rest.items()}
    assert [name for name, text in seen.items() if site.canary in text] == []
    assert site.leaks() == []
    (tmp_path / "gate.open").touch()
    assert sum(succeeded(command).json["committed"].values()) == len(flows) * len(STAGES)
    assert books.problems(flows) == []
    assert books.proofs_of_life() == []
    assert site.leaks() == []


def with_all_loops(ui: str) -> Any:
    """Return the answers of Spark's REST interface once as many claim loops run as there are slots."""
    rest = answers(ui)
    return rest if sum(_loops(rest)) == SLOTS else None


def _loops(rest: dict[str, list[dict[str, int]]]) -> list[int]:
    return [job["numTasks"] for job in rest["jobs"] if job["numTasks"] and job["numActiveTasks"]]


def test_an_app_in_an_environment_runs_on_executors(site: Site, books: PostgresBooks) -> None:
    flows = orders(10)
    books.start(flows)
    python = "spark.pyspark.python=./environment/bin/python"
    archive = f"{site.packed()}#environment"
    succeeded(site.process("--archives", archive, "--conf", python, **site.driver_alone()))
    assert books.problems(flows) == []


def test_spark_submit_runs_the_command_with_a_password_from_the_settings_file(
    site: Site, books: PostgresBooks, cluster: Cluster
) -> None:
    flows = orders(10)
    books.start(flows)
    (site.folder / "stagepost.toml").write_text(f'database = "{site.url}"\n')
    (site.folder / "run.py").write_text("from stagepost.cli.main import main\n\nmain()\n")
    submit = str(Path(_find_spark_home()) / "bin" / "spark-submit")
    options = ["--master", cluster.url, "--py-files", str(site.zipped()), "--conf", "spark.a.b=submitted"]
    words = [submit, *options, "run.py", "process", site.app, "--json"]
    answer = succeeded(site.run(words, {"PYSPARK_PYTHON": sys.executable}))
    assert sum(answer.json["committed"].values()) == len(flows) * len(STAGES)
    assert books.problems(flows) == []
    assert any('"spark.a.b":"submitted"' in text for text in cluster.texts().values())
    assert site.leaks() == []


def test_a_file_and_its_audit_leave_no_password_in_any_log(site: Site, books: PostgresBooks, tmp_path: Path) -> None:
    """The event log holds all texts of Spark's pages."""
    file = tmp_path / "orders.csv"
    file.write_text("order_id,quantity\n" + "".join(f"{number},1\n" for number in range(20)))
    target = ("--to", "shop.order", "--id", "order_id", "--app", site.app)
    answer = succeeded(site.start("initiate", file, *target, "--py-files", site.zipped()))
    assert (answer.json["started"], answer.json["balanced"]) == (20, True)
    assert succeeded(site.start("audit")).json["flows"]["flows"] == 20
    assert site.leaks() == []


def test_executors_without_the_module_are_told_how_to_get_it(site: Site, books: PostgresBooks) -> None:
    books.start(orders(3))
    answer = site.process(**site.driver_alone()).answer()
    assert (answer.code, answer.is_one_paragraph) == (2, True), answer.err
    assert f"cannot import the app {site.app}: No module named '{site.module[:-3]}'. Ship the app with" in answer.err
    assert "--py-files" in answer.err
    assert "--archives" in answer.err
    assert (books.waiting(), books.owners(), books.proofs_of_life()) == (3, [], [])


def test_executors_that_cannot_reach_the_database_say_so(site: Site, books: PostgresBooks) -> None:
    """The driver is told the server by its environment, which executors do not have."""
    books.start(orders(3))
    host, _, port = site.url.rpartition("@")[2].partition("/")[0].partition(":")
    user, name = site.url.partition("://")[2].partition(":")[0], site.url.rpartition("/")[2]
    environment = {"PGHOST": host, "PGPORT": port, "PGUSER": user, "STAGEPOST_DATABASE": f"postgresql:///{name}"}
    answer = site.process("--py-files", site.zipped(), **environment).answer()
    assert (answer.code, "Traceback" in answer.err) == (2, False), answer.err
    assert "3 rounds of tasks failed without progress: the executor on" in answer.err
    assert f"Each executor connects to postgresql:///{name} by itself. Name a host" in answer.err
    assert (books.waiting(), books.owners(), books.proofs_of_life()) == (3, [], [])


def test_executors_die_and_join_while_messages_run_and_each_effect_happens_once(
    site: Site, books: PostgresBooks, cluster: Cluster, tmp_path: Path
) -> None:
    """The driver runs the suspects beside the tasks. The executor that joins gets claim loops of its own."""
    flows = [*orders(1, f"kill-once={tmp_path}/died", name="dies"), *orders(500)]
    books.start(flows)
    command = site.process("--py-files", site.zipped())
    wait_until(partial(is_over, lambda: books.committed() >= 150, command), "it has begun to work")
    assert command.is_running(), command.said
    cluster.lose_executors()
    cluster.join(cores=1)
    try:
        succeeded(command)
    finally:
        cluster.leave()
    assert books.problems(flows) == []
    assert books.committed() == len(flows) * len(STAGES)
    assert books.waypoints("failed") == 0
    assert books.proofs_of_life() == []


def test_a_killed_driver_leaves_no_claims_and_the_next_one_continues(
    site: Site, books: PostgresBooks, cluster: Cluster
) -> None:
    flows = orders(400)
    books.start(flows)
    packed = site.zipped()
    command = site.process("--py-files", packed, "--continuous")
    wait_until(partial(is_over, lambda: books.committed() >= 150, command), "it has begun to work")
    assert command.is_running(), command.said
    command.kill()
    wait_until(lambda: not cluster.executors(), "the executors have ended")
    assert not books.is_drained()
    succeeded(site.process("--py-files", packed))
    assert books.problems(flows) == []
    assert books.committed() == len(flows) * len(STAGES)
    assert (books.owners(), books.proofs_of_life()) == ([], [])
    assert books.waypoints("failed") == 0


SINK = """
import sys
from pathlib import Path
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from tests.pipeline.sink_streams import put, run_stream
master, packed, app, files, checkpoint = sys.argv[1:]
spark = SparkSession.builder.master(master).config("spark.ui.enabled", False).getOrCreate()
spark.sparkContext.addPyFile(packed)
def run():
    run_stream(spark, Path(files), Path(checkpoint), app, target="shop.gated")
try:
    run()
except StreamingQueryException:
    put(Path(files), "3.json", ("c", 1), ("a0", 0))
    run()
"""


def test_the_sink_starts_each_flow_once_though_an_executor_dies_and_a_commit_has_no_answer(
    site: Site, books: PostgresBooks, cluster: Cluster, tmp_path: Path
) -> None:
    """The executor dies while it stages rows. The process that commits dies after the database's commit."""
    gate, killed = tmp_path / "gate", tmp_path / "killed"
    fault = f"sink_streams.kill_once(__name__, 'committed', {str(killed)!r})"
    site.make(f"from tests.pipeline import sink_streams\n{fault}", gate=str(gate))
    files = tmp_path / "files"
    put(files, "1.json", *((f"a{number}", number) for number in range(700)))
    put(files, "2.json", *((f"b{number}", number) for number in range(700)), ("gate", 0))
    words = [cluster.url, str(site.zipped()), site.app, str(files), str(tmp_path / "checkpoint")]
    variables = {"STAGEPOST_DATABASE": site.url, "PYSPARK_PYTHON": sys.executable}
    driver = site.run([sys.executable, "-c", SINK, *words], variables)
    wait_until(partial(is_over, Path(f"{gate}.entered").exists, driver), "a task stages rows")
    assert driver.is_running(), driver.said
    cluster.lose_executors()
    Path(f"{gate}.open").touch()
    succeeded(driver)
    assert killed.exists()
    flows = books.rows("SELECT flow_id, count(*) FROM stagepost_journal WHERE waypoint = 'accepted' GROUP BY flow_id")
    assert (len(flows), {count for _, count in flows}) == (1402, {1})
    assert books.waiting() == 1402
    assert books.rows("SELECT batch, row_count FROM stagepost_sink_batch ORDER BY batch") == [(0, 1401), (1, 2)]
    assert books.number("SELECT count(*) FROM stagepost_staged_row") == 0
    assert site.leaks() == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--master", "spark://127.0.0.1:1"), "Spark cannot start with the master spark://127.0.0.1:1: "),
        (("--conf", "spark.executor.memory=much"), "Spark cannot start with the master spark://"),
    ],
    ids=["master", "setting"],
)
def test_a_master_or_a_setting_that_spark_cannot_use_is_told_in_a_paragraph(
    site: Site, words: tuple[str, str], says: str
) -> None:
    """Java may have written lines of its own before."""
    answer = site.process("--py-files", site.zipped(), *words).answer()
    assert (answer.code, "Traceback" in answer.err) == (2, False), answer.err
    assert says in answer.err
    assert "Look at the address of the master" in answer.err
